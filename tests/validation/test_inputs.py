"""The inputs of a plan: their definitions, and the values of a run."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.validation import BoundPlan, bind_inputs, find_problems, validate
from plan_adapter.validation.inputs import form_schema, input_from_schema, read_values, value_schema
from tests.cases import for_each
from tests.validation.builders import TOOLS, plan, step


def with_inputs(**inputs: Input) -> ExecutionPlan:
    """A plan with these inputs."""
    return plan(step("a", parameters={"value": [f"${{{{ inputs.{name} }}}}" for name in inputs if name.isidentifier()]}), inputs=inputs)


def bind(given_values: dict[str, Any] | None = None, *, from_text: bool = False, **inputs: Input) -> BoundPlan:
    """Bind values to a plan with these inputs."""
    return bind_inputs(validate(with_inputs(**inputs), TOOLS), given_values, from_text=from_text)


def refused(definition: Input, value: Any, *, from_text: bool = False) -> list[tuple[str, str]]:
    """Code and message of what is wrong with `value`."""
    with pytest.raises(InvalidPlanError) as error:
        bind({"x": value}, from_text=from_text, x=definition)
    assert all(problem.at.startswith("inputs.x") for problem in error.value.problems)
    return [(problem.code, problem.message) for problem in error.value.problems]


def test_given_values_are_kept_and_defaults_filled_in() -> None:
    bound = bind({"host": "web-1"}, host=Input(pattern="^web-[0-9]+$"), force=Input(type="boolean", default=False), any=Input(default="x"))
    assert bound.inputs == {"host": "web-1", "force": False, "any": "x"}


def test_every_wrong_input_is_named_at_once() -> None:
    with pytest.raises(InvalidPlanError) as error:
        bind({"count": "3", "hots": "x"}, host=Input(description="Node to restart"), count=Input(type="integer"))
    assert [(problem.code, problem.at) for problem in error.value.problems] == [
        ("missing-input", "inputs.host"),
        ("bad-input", "inputs.count"),
        ("unknown-input", "inputs.hots"),
    ]
    assert "Node to restart" in error.value.problems[0].message
    assert error.value.problems[2].hint == "did you mean `host`?"


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", ["", "中文"], [1, None, True, ["a"]]),
        ("integer", [0, -5, 1.0], [True, 1.5, "1", None]),
        ("number", [1, 2.5, -1e300], [True, "1.5", None]),
        ("boolean", [True, False], [0, 1, "true", None]),
        ("array", [[], [1, "a"]], [{}, "[]", None]),
        ("object", [{}, {"a": {"b": 1}}], [[], "{}", None]),
        (
            "date",
            ["2024-02-29"],
            ["2026-02-29", "2026-1-1", "20260101", "2026-W01-1", "2026-01-01T00:00:00Z", "２０２６-01-01", 20260101, None],
        ),
        (
            "date-time",
            ["2026-11-29T14:30:00+08:00", "2026-11-29T06:30:00Z", "2026-11-29T06:30:00.123Z"],
            ["2026-11-29T14:30:00", "2026-11-29 14:30:00Z", "2026-11-29T24:30:00Z", "2026-11-29", 0],
        ),
        ("duration", ["30s", "1h30m", "1.5h", "250ms"], ["2d", "30", "1h 30m", "PT30S", "", 30]),
    ],
)
def test_types_are_strict(kind: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert bind({"x": value}, x=Input(type=kind)).inputs == {"x": value}
    for value in bad:
        assert [code for code, _ in refused(Input(type=kind), value)] == ["bad-input"], value


@pytest.mark.parametrize(
    ("definition", "value", "says"),
    [
        (Input(enum=["a", "b"]), "c", "is none of `a`, `b`"),
        (Input(type="integer", enum=[1]), 2, "is none of `1`"),
        (Input(pattern="^web-[0-9]+$"), "web-1\n", "does not match the pattern"),
        (Input(pattern="^(a+)+$"), "a" * 100 + "!", "does not match the pattern"),
        (Input(min_length=2), "中", "has 1 characters, but needs at least 2"),
        (Input(max_length=2), "abc", "has 3 characters; the limit is 2"),
        (Input(type="array", max_length=1), [1, 2], "has 2 members"),
        (Input(type="integer", minimum=3), 2, "is smaller than 3"),
        (Input(type="number", maximum=3.5), 4, "is larger than 3.5"),
        (Input(type="array", items="integer"), [1, True], "has true or false at [1], not an integer"),
        (Input(type="array", items="string"), ["a", None], "has null at [1], not text"),
        (Input(type="array", items="date"), ["2026-01-01", "soon"], "has text at [1], not a date"),
    ],
)
def test_limits_are_enforced(definition: Input, value: Any, says: str) -> None:
    ((code, message),) = refused(definition, value)
    assert code == "bad-input"
    assert says in message


def test_true_is_not_one_in_an_enum() -> None:
    assert refused(Input(type="array", enum=[[1]]), [True])
    assert bind({"x": [1]}, x=Input(type="array", enum=[[1]])).inputs == {"x": [1]}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"a": float("nan")}, "not-a-number"),
        ({"a": 2**60}, "too-large"),
        ({"a": "\ud800"}, "bad-text"),
        ({"__prefect_kind": 1}, "reserved-key"),
        ({"a": object()}, "wrong-type"),
    ],
    ids=["NaN", "large", "surrogate", "reserved", "object"],
)
def test_a_value_the_store_cannot_hold_is_refused(value: Any, code: str) -> None:
    assert [found for found, _ in refused(Input(type="object"), value)] == [code]


def test_an_endlessly_nested_value_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert [code for code, _ in refused(Input(type="array"), endless)] == ["too-deep"]


def test_a_message_shows_the_wrong_value_of_an_input_but_no_answer_of_a_person() -> None:
    for definition, value in ((Input(enum=["a"]), "数据库 1"), (Input(pattern="^a"), "数据库 1"), (Input(type="integer"), "数据库 1")):
        for from_text in (False, True):
            assert "`数据库 1`" in str(refused(definition, value, from_text=from_text))
            (problem,) = read_values({"x": definition}, {"x": value}, from_text=from_text, what="field")[1]
            assert "数据库" not in str(problem)
    ((_, message),) = refused(Input(pattern="^a$"), "x" * 1000 + "\u202e`")
    assert message.startswith(f"the value `{'x' * 80}` does not match")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "007", "007"),
        ("string", "", ""),
        ("integer", "-12", -12),
        ("integer", "1.0", 1),
        ("integer", "1e0", 1),
        ("integer", "-2.50e1", -25),
        ("integer", "9007199254740991.0", 9007199254740991),
        ("array", "[1.0, 1e0]", [1, 1]),
        ("number", "12", 12),
        ("number", "1.5e3", 1500),
        ("number", "-0.0", 0),
        ("boolean", "true", True),
        ("boolean", "false", False),
        ("array", '["a", 1]', ["a", 1]),
        ("object", '{"a": null}', {"a": None}),
        ("date", "2026-11-29", "2026-11-29"),
        ("date-time", "2026-11-29T06:30:00Z", "2026-11-29T06:30:00Z"),
        ("duration", "1h30m", "1h30m"),
    ],
)
def test_command_line_text_is_parsed_by_the_input_type(kind: Any, text: str, value: Any) -> None:
    found = bind({"x": text}, from_text=True, x=Input(type=kind)).inputs["x"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "1.5"),
        ("integer", "1e-1"),
        ("integer", "1e20"),
        ("integer", "1e999999999"),
        ("integer", "1_000"),
        ("integer", "１２"),
        ("integer", ""),
        ("integer", "9" * 5000),
        ("number", "nan"),
        ("number", "1e999"),
        ("number", "0x10"),
        ("boolean", "yes"),
        ("boolean", "True"),
        ("array", "a,b"),
        ("array", "{}"),
        ("array", "[" * 100_000),
        ("object", '{"a": 1, "a": 2}'),
        ("object", '{"a": NaN}'),
        ("object", "[]"),
        ("date", "2026-02-30"),
        ("date-time", "2026-11-29"),
        ("duration", "2d"),
    ],
    ids=lambda text: text[:20],
)
def test_text_that_does_not_match_the_input_type_is_refused(kind: Any, text: str) -> None:
    assert refused(Input(type=kind), text, from_text=True)


def test_bound_values_are_copies_and_defaults_are_not_shared() -> None:
    given_value = {"a": [1]}
    definition = Input(type="array", default=[1])
    first = bind({"x": given_value}, x=Input(type="object"), y=definition)
    given_value["a"].append(2)
    assert first.inputs == {"x": {"a": [1]}, "y": [1]}


def test_the_approval_digest_covers_the_inputs_and_tells_equal_values_apart() -> None:
    bound = [bind({"x": value}, x=Input(type="integer", default=1)).approval_digest for value in (1, 2)]
    assert bound[0] == bind(x=Input(type="integer", default=1)).approval_digest
    assert bound[0] != bound[1]


@pytest.mark.parametrize(
    ("definition", "place"),
    [
        (Input(type="integer", pattern="x"), "pattern"),
        (Input(type="boolean", min_length=1), "min_length"),
        (Input(minimum=1), "minimum"),
        (Input(items="string"), "items"),
        (Input(pattern="("), "pattern"),
        (Input(pattern="(?=x)"), "pattern"),
        (Input(type="integer", minimum=2, maximum=1), "minimum"),
        (Input(min_length=2, max_length=1), "min_length"),
        (Input(enum=[]), "enum"),
        (Input(enum=["a", 1]), "enum[1]"),
        (Input(type="integer", default="1"), "default"),
        (Input(type="integer", default=True), "default"),
        (Input(pattern="^a", default="b"), "default"),
        (Input(enum=["a"], default="b"), "default"),
        (Input(default="${{ inputs.y }}"), "default"),
        (Input(pattern="^CHG-", example="123"), "example"),
        (Input(enum=["a"], example="b"), "example"),
        (Input(type="date", default="tomorrow"), "default"),
        (Input(type="duration", pattern="s$"), "pattern"),
    ],
)
def test_a_contradictory_definition_is_refused(definition: Input, place: str) -> None:
    assert [(p.code, p.at) for p in find_problems(with_inputs(x=definition), TOOLS)] == [("bad-input-definition", f"inputs.x.{place}")]


def test_a_wrong_date_is_refused_with_the_form_of_a_right_one() -> None:
    with pytest.raises(InvalidPlanError, match="`2026-02-30` is not a date; write it as 2026-11-29"):
        bind({"x": "2026-02-30"}, from_text=True, x=Input(type="date"))


def test_forms_and_schemas_know_the_types_that_are_texts() -> None:
    inputs = {
        "day": Input(type="date"),
        "at": Input(type="date-time"),
        "wait": Input(type="duration"),
        "days": Input(type="array", items="date"),
    }
    found = {name: value_schema(declared) for name, declared in inputs.items()}
    assert found["day"] == {"type": "string", "format": "date"}
    assert found["at"] == {"type": "string", "format": "date-time"}
    assert found["wait"]["type"] == "string" and re.fullmatch(str(found["wait"]["pattern"]), "1h30m")
    assert found["days"] == {"type": "array", "items": {"type": "string", "format": "date"}}
    assert input_from_schema(found["at"]) == inputs["at"]
    assert input_from_schema(found["days"]) == inputs["days"]


def test_a_form_shows_an_example_after_the_rule() -> None:
    change = Input(description="The change ticket", pattern="^CHG-[0-9]+$", example="CHG-123")
    schema: Any = form_schema({"change": change, "count": Input(type="integer", example=3)})
    assert schema["properties"]["change"]["description"] == "The change ticket. Pattern `^CHG-[0-9]+$`, for example `CHG-123`."
    assert schema["properties"]["count"]["description"] == "For example `3`."


@pytest.mark.parametrize("name", ["my-host", "1st", "", "a b", "ä", "a\n", "_x", "class", "in", "true", "self", "return_state"], ids=ascii)
def test_the_name_of_an_input_is_an_identifier(name: str) -> None:
    assert ("bad-name", f"inputs.{name}") in [(p.code, p.at) for p in find_problems(plan(inputs={name: Input(default="x")}), TOOLS)]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("环境", "use a name such as `env`; its `description`, which forms show, can be in any language"),
        ("my-input", "use `my_input`"),
        ("地区-eu", "use `eu`"),
    ],
)
@pytest.mark.parametrize("used", ["${{ inputs.NAME }}", "to ${{ inputs.NAME + 'x' }}", "nowhere"])
def test_an_invalid_input_name_is_one_problem_at_its_definition(name: str, hint: str, used: str) -> None:
    [problem] = find_problems(plan(step("a", parameters={"value": used.replace("NAME", name)}), inputs={name: Input()}), TOOLS)
    allowed = "a name is a letter, then letters from a to z, digits or underscores"
    assert (problem.code, problem.at, problem.hint) == ("bad-name", f"inputs.{name}", hint)
    assert problem.message == f"'{name}' cannot be the name of an input: {allowed}"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-100, 100) | st.floats(-9, 9) | st.text("ab\ud800\0", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)
definitions = st.builds(
    Input,
    type=st.sampled_from(["string", "integer", "number", "boolean", "array", "object"]),
    default=json_values,
    enum=st.none() | st.lists(json_values, max_size=3),
    pattern=st.none() | st.text("ab(+", max_size=4),
    min_length=st.none() | st.integers(0, 3),
    minimum=st.none() | st.floats(),
    items=st.none() | st.sampled_from(["string", "integer"]),
)


@given(definitions, json_values | st.text(max_size=5), st.booleans())
def test_any_definition_and_any_value_give_inputs_or_problems(definition: Input, value: Any, from_text: bool) -> None:
    checked = with_inputs(x=definition)
    if find_problems(checked, TOOLS):
        return
    try:
        bound = bind_inputs(validate(checked, TOOLS), {"x": value}, from_text=from_text)
    except InvalidPlanError as error:
        assert error.problems
    else:
        assert bind_inputs(bound.validated, bound.inputs).approval_digest == bound.approval_digest


@for_each(
    text_message=[
        ("1e30", "`1e30` is not an integer from -9007199254740991 to 9007199254740991"),
        ("1.5", "`1.5` is not an integer"),
        ("hunter2", "this is not an integer"),  # a person may have answered with a secret
    ]
)
def test_a_wrong_answer_is_shown_if_it_is_a_number(text_message: tuple[str, str]) -> None:
    text, message = text_message
    _, (problem,) = read_values({"n": Input(type="integer")}, {"n": text}, from_text=True, what="field")
    assert problem.message == message
    _, (problem,) = read_values({"password": Input(type="integer")}, {"password": text}, from_text=True, what="field")
    assert text not in problem.message
