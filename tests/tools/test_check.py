from typing import Annotated

import pytest
from pydantic import BaseModel, Field, JsonValue

from plan_adapter.tools.tool import tool


class Server(BaseModel):
    host: str
    ports: list[int] = []


class Socket(BaseModel):
    path: str


@tool
def connect(
    server: Server | Socket,
    tries: int = 1,
    headers: dict[str, str] | None = None,
    status: int | list[int] | None = None,
    spare: Server | None = None,
) -> None: ...


def is_open(value: JsonValue) -> bool:
    return isinstance(value, str) and "${{" in value


GOOD: dict[str, JsonValue] = {"server": {"host": "a"}}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({}, [], id="all is well"),
        pytest.param({"tries": "often"}, [("tries", '`tries` should be an integer, but is the text "often"', "")], id="wrong type"),
        pytest.param({"tries": [1, 2]}, [("tries", "`tries` should be an integer, but is a list of 2", "")], id="list for a number"),
        pytest.param({"tris": 1}, [("tris", "the tool has no parameter `tris`", "did you mean `tries`?")], id="misspelt"),
        pytest.param({"headers": {"a": 1}}, [("headers.a", "`headers.a` should be a string, but is 1", "")], id="nested"),
        pytest.param({"status": "x"}, [("status", '`status` should be an integer or a list, but is the text "x"', "")], id="union"),
        pytest.param({"status": [1, None]}, [("status[1]", "`status[1]` should be an integer, but is null", "")], id="inside a union"),
        pytest.param({"spare": {}}, [("spare.host", "`spare.host` is missing", "")], id="missing inside"),
        pytest.param({"tries": "${{ inputs.n }}"}, [], id="open"),
        pytest.param(
            {"headers": {"a": "${{ inputs.n }}", "b": 2}}, [("headers.b", "`headers.b` should be a string, but is 2", "")], id="beside open"
        ),
        pytest.param({"server": {"host": 1, "path": "${{ x }}"}}, [], id="an open value might choose the member of a union"),
        pytest.param({"spare": {"ports": "${{ x }}"}}, [("spare.host", "`spare.host` is missing", "")], id="missing beside open"),
        pytest.param({"status": ["${{ x }}"]}, [], id="open inside a union"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, JsonValue], expected: list[tuple[str, str, str]]) -> None:
    assert connect.check(GOOD | parameters, is_open) == expected


def test_the_problem_of_a_missing_parameter_names_its_type() -> None:
    @tool
    def needs(a: list[int], b: int | str, c: Server) -> None: ...

    assert needs.check({}, is_open) == [
        ("a", "`a` is missing", "it takes a list"),
        ("b", "`b` is missing", "it takes an integer or a string"),
        ("c", "`c` is missing", ""),
    ]


def test_a_list_that_is_too_short_is_not_called_a_wrong_type() -> None:
    @tool
    def run(statements: str | Annotated[list[str], Field(min_length=1)]) -> None: ...

    [(_, message, _)] = run.check({"statements": []}, is_open)
    assert "at least 1 item" in message
    assert "a string" not in message


def test_only_the_first_twenty_problems_are_reported() -> None:
    @tool
    def add(numbers: list[int]) -> None: ...

    found = add.check({"numbers": ["x"] * 1000}, is_open)
    assert [path for path, _, _ in found] == [f"numbers[{index}]" for index in range(20)]


def test_a_long_value_is_truncated_in_the_message() -> None:
    message = connect.check(GOOD | {"tries": "长" * 1_000_000}, is_open)[0][1]
    assert len(message) < 100
