from typing import Any

import pytest

from plan_adapter.model.errors import ToolError
from plan_adapter.tools.python import python
from plan_adapter.tools.tool import ToolContext


@pytest.fixture(autouse=True)
def _allowed_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_PYTHON_PREFIXES", "no_such_package,tests.tools")


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        ("plain", {"number": 2}, 4),
        ("untyped", {"a": "x"}, ["x", 1]),
        ("shout", {"text": "hi", "times": "2"}, "run: HIHI"),
    ],
)
def test_a_function_of_an_allowed_module_is_called(
    context: ToolContext, function: str, arguments: dict[str, Any], expected: object
) -> None:
    assert python(f"tests.tools.offered:{function}", context, arguments) == expected


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("os:system", "`os` matches none of the allowed prefixes no_such_package, tests.tools"),
        ("tests.toolsmith:x", "matches none of the allowed prefixes"),
        ("tests.tools.offered:system", "is defined in `posix`, which matches none"),
        ("tests.tools.offered:registry.add", "is not a public function"),
        ("tests.tools.offered:_plain", "is not a public function"),
        ("tests.tools.offered", "is not a public function"),
        ("tests.tools.offered:plan", "has no `plan`; did you mean `plain`"),
        ("no_such_package.jobs:run", "there is no module `no_such_package`"),
        ("tests.tools.offered:later", "is async; make it a tool of its own"),
        ("tests.tools.offered:whisper", "is async"),
        ("tests.tools.test_tool:Thing", "is not a function"),
    ],
)
def test_other_functions_are_refused(context: ToolContext, function: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        python(function, context, {"text": "x"} if "whisper" in function else None)


@pytest.mark.parametrize("function", ["plain", "shout"])
def test_arguments_that_do_not_match_are_refused(context: ToolContext, function: str) -> None:
    with pytest.raises(ToolError, match="do not match"):
        python(f"tests.tools.offered:{function}", context, {"what": 1})


def test_no_function_is_allowed_by_default(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_PYTHON_PREFIXES")
    with pytest.raises(ToolError, match="is disabled: PLAN_ADAPTER_PYTHON_PREFIXES is empty"):
        python("tests.tools.offered:plain", context, {"number": 1})


def test_the_function_name_must_be_literal() -> None:
    assert python.literal_parameters == {"function"}
