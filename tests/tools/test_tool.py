import asyncio
import datetime
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Optional, cast

import pytest
from pydantic import BaseModel, Field, SecretStr

from plan_adapter.model.errors import ToolDefinitionError, ToolError
from plan_adapter.tools.tool import Tool, ToolContext, as_json, as_tool, tool
from tests.tools import offered


class Colour(Enum):
    RED = "red"


class Address(BaseModel):
    """Where somebody lives."""

    city: str
    lines: list[int] = []


def test_the_decorator_without_options_makes_a_write_tool() -> None:
    @tool
    def save(text: str) -> int:
        return len(text)

    assert isinstance(save, Tool)
    assert (save.name, save.effect, save.isolation, save.is_async) == ("save", "write", "thread", False)
    assert save("abc") == 3


def test_the_options_of_the_decorator_are_kept() -> None:
    @tool(effect="read", name="look up", description="Look it up", isolation="process", permissions=["net"], literal_parameters=["q"])
    def look(q: str) -> str:
        return q

    assert (look.name, look.description, look.effect, look.isolation) == ("look up", "Look it up", "read", "process")
    assert (look.permissions, look.literal_parameters) == ({"net"}, {"q"})


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"path": "a"}, []),
        ({"path": "a", "url": None}, []),
        ({}, [("", "`path` or `url` is missing", "")]),
        ({"path": None}, [("", "`path` or `url` is missing", "")]),
        ({"path": "a", "url": "b"}, [("url", "`path` and `url` exclude each other", "give either `path` or `url`")]),
        ({"path": "a", "url": "${{ inputs.url }}"}, []),
        ({"url": "${{ inputs.url }}"}, []),
    ],
    ids=str,
)
def test_a_step_gives_exactly_one_of_some_parameters(parameters: dict[str, Any], found: list[tuple[str, str, str]]) -> None:
    @tool(exactly_one=("path", "url"))
    def load(path: str | None = None, url: str | None = None) -> str:
        return path or url or ""

    assert load.check(parameters, lambda value: isinstance(value, str) and "${{" in value) == found


def test_a_call_without_exactly_one_of_the_parameters_fails(context: ToolContext) -> None:
    @tool(exactly_one=("path", "url"))
    def load(path: str | None = None, url: str | None = None) -> str:
        return path or url or ""

    assert load.bind({"url": "b"}, context) == {"url": "b"}
    with pytest.raises(ToolError, match="the parameters do not match `load`: `path` and `url` exclude each other"):
        load.bind({"path": "a", "url": "b"}, context)


async def test_an_async_function_stays_async() -> None:
    assert offered.whisper.is_async
    assert await offered.whisper("HI") == "hi"


def test_a_tool_keeps_the_name_and_signature_of_its_function() -> None:
    import inspect

    assert offered.shout.__name__ == "shout"  # type: ignore[attr-defined]
    assert list(inspect.signature(offered.shout).parameters) == ["text", "context", "times"]


def test_the_schema_comes_from_annotations_and_the_docstring() -> None:
    assert offered.shout.description == "Say it loudly."
    assert offered.shout.parameters_schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["text"],
        "properties": {
            "text": {"type": "string", "description": "What to say."},
            "times": {"type": "integer", "default": 1, "description": "How often to say it."},
        },
    }


def test_a_description_in_the_annotation_takes_precedence_over_the_docstring() -> None:
    @tool
    def find(key: Annotated[str, Field(description="The key", min_length=2)]) -> None:
        """Find.

        Args:
            key: Something else.
        """

    assert find.parameters_schema["properties"] == {"key": {"type": "string", "minLength": 2, "description": "The key"}}


def test_the_definition_excludes_documentation_but_keeps_a_parameter_called_title() -> None:
    def bare(title: str, address: Address) -> None: ...

    def documented(title: Annotated[str, Field(description="x")], address: Address) -> None:
        """Explain.

        Args:
            title: A title.
        """

    definition = as_tool(documented, name="t").definition()
    assert definition == as_tool(bare, name="t").definition()
    parameters = definition["parameters"]
    assert isinstance(parameters, dict)
    assert "Where somebody" not in str(parameters)
    assert parameters["properties"] == {"title": {"type": "string"}, "address": {"$ref": "#/$defs/Address"}}


def test_a_default_that_is_not_json_is_omitted_from_the_schema(recwarn: pytest.WarningsRecorder) -> None:
    missing: Any = object()

    @tool
    def find(key: str = missing) -> bool:
        return key is missing

    assert find.parameters_schema["properties"] == {"key": {"type": "string"}}
    assert not recwarn.list


def test_parameters_can_have_names_that_pydantic_uses(context: ToolContext) -> None:
    @tool
    def odd(json: str, model_config: int, _hidden: bool, copy: list[str], schema: str = "s") -> None: ...

    given = {"json": "a", "model_config": 1, "_hidden": True, "copy": []}
    assert odd.bind(given, context) == given
    assert odd.check({**given, "json": 1}, lambda _: False) == [("json", "`json` should be a string, but is 1", "")]


def test_bind_returns_the_annotated_types_and_leaves_defaults_to_the_function(context: ToolContext) -> None:
    @dataclass
    class Point:
        x: int

    @tool
    def draw(
        at: Point,
        day: datetime.date,
        colour: Colour,
        home: Path,
        address: Address | None = None,
        size: int = 3,
        limit: int = Field(5, ge=1),
    ) -> None: ...

    bound = draw.bind({"at": {"x": 1}, "day": "2024-02-29", "colour": "red", "home": "a", "address": {"city": "北京"}}, context)
    assert bound == {
        "at": Point(1),
        "day": datetime.date(2024, 2, 29),
        "colour": Colour.RED,
        "home": Path("a"),
        "address": Address(city="北京"),
        "limit": 5,
    }


def test_the_context_is_found_by_annotation_and_is_not_a_parameter(context: ToolContext) -> None:
    @tool
    def first(ctx: ToolContext) -> None: ...

    @tool
    def second(a: int, ctx: Optional[ToolContext] = None) -> None: ...  # noqa: UP045

    @tool
    def third(ctx: "Annotated[ToolContext | None, 'x']" = None) -> None: ...

    assert first.bind({}, context) == {"ctx": context}
    assert second.bind({"a": 1}, context) == {"a": 1, "ctx": context}
    assert third.bind({}, context) == {"ctx": context}
    assert offered.shout.bind({"text": "hi"}, context) == {"text": "hi", "context": context}
    assert second.check({"a": 1, "ctx": {}}, lambda _: False)[0][:2] == ("ctx", "the tool has no parameter `ctx`")


def test_bind_reports_all_mismatches(context: ToolContext) -> None:
    message = "the parameters do not match `shout`: `text` is missing; `times` should be an integer, but is the text"
    with pytest.raises(ToolError, match=message):
        offered.shout.bind({"times": "often"}, context)


@pytest.mark.parametrize("value", [math.nan, "\ud800"])
def test_bind_refuses_values_that_are_not_json(context: ToolContext, value: Any) -> None:
    with pytest.raises(ToolError, match="the parameters of `shout` are not JSON"):
        offered.shout.bind({"text": value}, context)


def test_a_decorated_function_keeps_its_signature(context: ToolContext) -> None:
    def noisy(fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    @noisy
    def double(a: int) -> int:
        return 2 * a

    doubled = as_tool(double)
    assert doubled.fn(**doubled.bind({"a": 2}, context)) == 4


def variadic(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def positional(a: int, /) -> None: ...
def unannotated(a) -> None: ...  # type: ignore[no-untyped-def]
def unknown(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def callback(first: int, then: Callable[[int], int]) -> None: ...
def arbitrary(a: int, b: asyncio.Lock) -> None: ...
def generator(a: int) -> Iterator[int]:
    yield a


async def stream(a: int) -> AsyncIterator[int]:
    yield a


class Thing:
    def __init__(self, a: int) -> None: ...
    def method(self, a: int) -> int:
        return a


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (variadic, "`variadic` cannot be a tool: parameter `args` takes any number of arguments"),
        (keywords, "parameter `kwargs` takes any number of arguments"),
        (positional, "parameter `a` is positional-only"),
        (unannotated, "parameter `a` has no annotation; annotate it"),
        (unknown, "parameter `a` has an annotation that cannot be evaluated: name 'Missing' is not defined"),
        (callback, "`callback` cannot be a tool: parameter `then` has no JSON Schema"),
        (arbitrary, "parameter `b` has no JSON Schema"),
        (generator, "it is a generator, but a tool returns one result"),
        (stream, "it is a generator"),
        (Thing, "it is a class"),
        (Thing.method, "parameter `self` belongs to a method; pass the method of an object"),
        (partial(callback, 1), "is not a function; wrap it in one with `def`"),
        (lambda: 1, "has no name of its own"),
        (3, "cannot be a tool: give a typed function"),
        (None, "cannot be a tool: give a typed function"),
    ],
)
def test_the_error_for_an_invalid_tool_gives_the_reason(source: object, message: str) -> None:
    with pytest.raises(ToolDefinitionError) as error:
        as_tool(source)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "safe"},
        {"isolation": "vm"},
        {"name": "a\nb"},
        {"name": " a"},
        {"literal_parameters": ["z"]},
        {"exactly_one": ["a", "z"]},
        {"public_parameters": ["z"]},
    ],
    ids=str,
)
def test_invalid_options_are_refused_by_the_decorator(options: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError):
        tool(**options)(positional_free)


def positional_free(a: int) -> None: ...


def test_a_bound_method_is_a_tool(context: ToolContext) -> None:
    method = as_tool(Thing(1).method)
    assert method.fn(**method.bind({"a": 2}, context)) == 2


def test_as_tool_with_another_effect_returns_a_new_tool() -> None:
    read = as_tool(offered.plain, effect="read")
    changed = as_tool(read, effect="write", name="plainly")
    assert (changed.effect, changed.name, changed.definition()["name"]) == ("write", "plainly", "plainly")
    assert (read.effect, read.name) == ("read", "plain")
    assert as_tool(read) is read


def test_a_tool_in_a_module_has_an_import_string() -> None:
    @tool
    def local() -> None: ...

    assert offered.shout.import_string == "tests.tools.offered:shout"
    assert as_tool(offered.plain).import_string == "tests.tools.offered:plain"
    assert local.import_string is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Address(city="北京"), {"city": "北京", "lines": []}),
        ((1, [Path("a")], {"d": datetime.date(2024, 1, 2)}), [1, ["a"], {"d": "2024-01-02"}]),
        (Decimal("1.10"), "1.10"),
        ({1: Colour.RED, "n": None}, {"1": "red", "n": None}),
        (b"ab", "ab"),
    ],
)
def test_results_are_converted_to_json(value: object, expected: object) -> None:
    assert as_json(value) == expected


@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}, object(), b"\xff", "\ud800", print, ValueError("x")])
def test_a_result_that_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(ToolError, match="the result is not JSON: "):
        as_json(value)


def test_a_result_that_contains_itself_is_refused() -> None:
    circular: list[object] = []
    circular.append(circular)
    with pytest.raises(ToolError, match="not JSON"):
        as_json(circular)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effct": "read"}, "`@tool` has no such option: `effct`: did you mean `effect`?"),
        ({"isolaton": "process", "Name": "x"}, "`Name`: did you mean `name`?; `isolaton`: did you mean `isolation`?"),
        ({"retries": 3}, "`retries`: known: `description`, `effect`"),
    ],
)
def test_the_error_for_an_unknown_decorator_option_suggests_the_nearest_one(options: dict[str, Any], message: str) -> None:
    decorate: Any = tool
    with pytest.raises(ToolDefinitionError) as error:
        decorate(**options)
    assert message in str(error.value)


UNSAID = SecretStr("x")


def send(path: Path, n: int = 1, colour: Colour = Colour.RED, home: Address | None = None, token: SecretStr = UNSAID) -> None:
    """Send."""


SENT = {
    "as it is": ({"path": "a", "n": 1}, {"path": "a", "n": 1}),
    "a number as text": ({"path": "a", "n": "1"}, {"path": "a", "n": 1}),
    "a whole number": ({"path": "a", "n": 1.0}, {"path": "a", "n": 1.0}),
    "a path": ({"path": "a//b/./c"}, {"path": "a/b/c"}),
    "a choice": ({"path": "a", "colour": "red"}, {"path": "a", "colour": "red"}),
    "a part with its own defaults": ({"path": "a", "home": {"city": "x"}}, {"path": "a", "home": {"city": "x", "lines": []}}),
    "a secret type": ({"path": "a", "token": "hush"}, {"path": "a", "token": "hush"}),
    "what does not fit": ({"path": "a", "n": "seven"}, {"path": "a", "n": "seven"}),
    "an unknown one": ({"path": "a", "m": "1"}, {"path": "a", "m": "1"}),
}


@pytest.mark.parametrize(("given", "expected"), SENT.values(), ids=[*SENT])
def test_parameters_are_normalized_to_what_the_function_gets(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert tool(send).normalized(given) == expected


def test_defaults_are_filled_in_where_json_can_express_them() -> None:
    filled = tool(send).normalized({"path": "a"}, with_defaults=True)
    assert filled == {"path": "a", "n": 1, "colour": "red", "home": None}


def test_a_default_that_its_own_type_refuses_is_left_out() -> None:
    def odd(n: int = cast("int", None), m: object = object()) -> None:
        """Do nothing."""

    assert tool(odd).normalized({}, with_defaults=True) == {}
