"""A function's signature as a pydantic model: the JSON Schema of its parameters, and validation of values against it."""

import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Required, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.model.problems import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Mismatch: TypeAlias = tuple[str, str, str]
"""A path below the parameters (`headers.accept`, `argv[0]`), what is wrong there, and a hint, which may be empty."""

MAX_MISMATCHES = 20


class _Schema(GenerateJsonSchema):
    # A default that is not JSON (a sentinel) is the function's own concern: the schema omits it without a warning.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # declared this way by pydantic

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes by keyword. `model` validates it; `context_names` are injected and not part of it."""

    model: type[BaseModel]
    fields: Mapping[str, str]  # parameter -> field of `model`; fields have neutral names, so that `json` or `_x` can be parameters
    own_defaults: frozenset[str]  # parameters whose default is a pydantic `Field(...)`: the model fills them in, not the function
    context_names: tuple[str, ...]
    schema: dict[str, JsonValue]

    def validate(self, parameters: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return keyword arguments of the annotated types. Raises pydantic's ValidationError."""
        model = self.model.model_validate(parameters)
        given = model.model_fields_set
        return {name: getattr(model, field) for name, field in self.fields.items() if field in given or name in self.own_defaults}

    def normalized(self, parameters: Mapping[str, JsonValue], *, with_defaults: bool = False) -> dict[str, JsonValue]:
        """Return `parameters` as the function gets them, in JSON: `1` for `"1"` where it takes an integer. `with_defaults` adds defaults.

        A value whose type JSON cannot express stays as it is, and such a default is left out. Raises pydantic's ValidationError.
        """
        model, found = self.model.model_validate(parameters), dict(parameters)
        for name, field in self.fields.items():
            if name not in parameters and not with_defaults:
                continue
            value = getattr(model, field)
            try:
                shown: JsonValue = json_adapter().dump_python(value, mode="json")
                if name in parameters and _is_same_json(shown, parameters[name]):
                    continue
                again = getattr(self.model.model_validate({**parameters, name: shown}), field)
                json.dumps(shown, allow_nan=False)
            except (ValueError, TypeError):
                continue
            if type(again) is type(value) and again == value:  # a masked secret, for example, is another value
                found[name] = shown
        return found

    def mismatches(
        self, parameters: dict[str, JsonValue], is_open: Callable[[JsonValue], bool], redact: Callable[[str], str] = str
    ) -> list[Mismatch]:
        """Return the mismatches, at most one per place. Values for which `is_open` returns True count as matching.

        `redact` hides secrets in shown values before they are cut.
        """
        places = self._errors_by_place(parameters, is_open)
        # An error inside a value says more than another union member's refusal of the whole value.
        around = {place[:length] for place in places for length in range(len(place))}
        innermost = [(place, details) for place, details in places.items() if place not in around]
        return [self._describe_mismatch(place, details, parameters, redact) for place, details in innermost[:MAX_MISMATCHES]]

    def type_mismatches(
        self, parameters: dict[str, JsonValue], is_open: Callable[[JsonValue], bool], examples: Mapping[tuple[str | int, ...], str]
    ) -> list[Mismatch]:
        """Return the mismatches of the types of values that are not known yet.

        `parameters` hold an example of each, and `examples` say by place what kind of value it is. That no value of this kind would fit is
        certain only if the type is refused: another value of the same type may have the right content.
        """
        certain = [
            (place, details)
            for place, details in self._errors_by_place(parameters, is_open).items()
            if place in examples and all(detail["type"].endswith("_type") for detail in details)
        ]
        return [
            (_path_text(place), f"`{_path_text(place)}` {_describe_wrong_value(details, examples[place])}", "")
            for place, details in certain[:MAX_MISMATCHES]
        ]

    def _errors_by_place(
        self, parameters: dict[str, JsonValue], is_open: Callable[[JsonValue], bool]
    ) -> "dict[tuple[str | int, ...], list[ErrorDetails]]":
        """Return pydantic's errors by place, without those that an open value could still avoid."""
        places: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
        try:
            self.model.model_validate(parameters)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_context=False, include_input=False):
                place, is_certain = _locate(detail, parameters, is_open)
                if is_certain:
                    places.setdefault(place, []).append(detail)
        return places

    def _describe_mismatch(
        self, place: tuple[str | int, ...], details: "list[ErrorDetails]", parameters: dict[str, JsonValue], redact: Callable[[str], str]
    ) -> Mismatch:
        path, kind = _path_text(place), details[0]["type"]
        if kind == "missing":
            hint = self._expected_type_hint(place[0]) if len(place) == 1 else ""
            return path, f"`{path}` is missing", hint
        if kind == "extra_forbidden":
            message = f"the tool has no parameter `{path}`" if len(place) == 1 else f"`{path}` is unknown here"
            return path, message, did_you_mean(str(place[-1]), list(self.fields)) if len(place) == 1 else ""
        return path, f"`{path}` " + _describe_wrong_value(details, _value_text(_value_at(parameters, place), redact)), ""

    def _expected_type_hint(self, name: str | int) -> str:
        properties = cast("dict[str, dict[str, Any]]", self.schema.get("properties", {}))
        written = properties.get(str(name), {})
        kinds = [str(option["type"]) for option in written.get("anyOf", [written]) if "type" in option]
        return "it takes " + " or ".join(_TYPE_WORDS.get(kind, kind) for kind in kinds) if kinds else ""


def read_signature(fn: Callable[..., object], *, context_type: type) -> Signature:
    """Return the signature of `fn`. Parameters annotated with `context_type`, optional or not, are kept separately.

    Raises ToolDefinitionError, which names the parameter, if JSON Schema cannot express it or a keyword cannot set it.
    """
    name = getattr(fn, "__name__", repr(fn))
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ToolDefinitionError(f"`{name}` cannot be a tool: its signature cannot be read ({error})") from error
    definitions: dict[str, tuple[Any, Any]] = {}
    fields: dict[str, str] = {}
    context_names: list[str] = []
    for parameter in parameters.values():
        annotation = _annotation(fn, parameter, context_type)
        if _is_or_contains(annotation, context_type):
            context_names.append(parameter.name)
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = field = f"p{len(fields)}"
        definitions[field] = (Annotated[annotation, Field(validation_alias=parameter.name)], default)
    model, schema = _build_model_or_explain(name, definitions, fields)
    own_defaults = frozenset(parameter for parameter in fields if isinstance(parameters[parameter].default, FieldInfo))
    return Signature(model, fields, own_defaults, tuple(context_names), schema)


def read_result_schema(fn: Callable[..., object], *, context_type: type) -> dict[str, JsonValue]:
    """Return the JSON Schema of what `fn` returns, or an empty one if its annotation does not say.

    Results are written by their own class, with the names of its fields. A class with aliases may write either, so nothing is said of it.
    """
    adapter = read_result_type(fn, context_type=context_type)
    if adapter is None:
        return {}
    try:
        schema, aliased = (
            adapter.json_schema(mode="serialization", by_alias=by_alias, schema_generator=_Schema) for by_alias in (False, True)
        )
    except Exception:  # a type may have code of its own, which may raise anything
        return {}
    return cast("dict[str, JsonValue]", without_documentation(schema)) if schema == aliased else {}


def read_result_type(fn: Callable[..., object], *, context_type: type) -> TypeAdapter[Any] | None:
    """Return the type of what `fn` returns, or None if its annotation does not say."""
    annotation = getattr(fn, "__annotations__", {}).get("return", inspect.Signature.empty)
    if annotation is inspect.Signature.empty:
        return None
    try:
        return TypeAdapter[Any](_evaluate(fn, "return", annotation, context_type))
    except Exception:  # an annotation is code and may raise anything; it was never needed to call the function
        return None


def parameter_descriptions(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text of a Google-style docstring before its sections, and the descriptions under `Args:` by parameter."""
    from griffe import Docstring, DocstringSectionKind  # only where a tool is described

    text, described = list[str](), dict[str, str]()
    for section in Docstring(docstring, parser="google").parse("google", warnings=False):
        if section.kind is DocstringSectionKind.text and not described:
            text.append(str(section.value))
        elif section.kind is DocstringSectionKind.parameters:
            described.update({item.name: " ".join(item.description.split()) for item in section.value})
    return "\n\n".join(text).strip(), described


def _annotation(fn: Callable[..., object], parameter: inspect.Parameter, context_type: type) -> Any:
    """Return the evaluated annotation of a parameter that can be set by keyword."""
    what = f"`{getattr(fn, '__name__', fn)}` cannot be a tool: parameter `{parameter.name}`"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ToolDefinitionError(f"{what} takes any number of arguments, which a schema cannot express; use a list or a dict")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise ToolDefinitionError(f"{what} is positional-only, but steps pass parameters by name; remove the `/`")
    if parameter.annotation is parameter.empty and parameter.name in ("self", "cls"):
        raise ToolDefinitionError(f"{what} belongs to a method; pass the method of an object, as in `tool(thing.method)`")
    if parameter.annotation is parameter.empty:
        raise ToolDefinitionError(f"{what} has no annotation; annotate it (`Any` accepts every JSON value)")
    try:
        return _evaluate(fn, parameter.name, parameter.annotation, context_type)
    except Exception as error:  # an annotation is code and may raise anything
        raise ToolDefinitionError(f"{what} has an annotation that cannot be evaluated: {error}; import its names at run time") from error


def _evaluate(fn: Callable[..., object], name: str, annotation: object, context_type: type) -> Any:
    """Return the type that `annotation` of `fn` means."""
    inner = inspect.unwrap(fn)
    # Include ToolContext, which may be imported only for type checkers.
    names = {context_type.__name__: context_type, **getattr(inner, "__globals__", {})}
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    evaluated = typing.get_type_hints(holder, globalns=names, include_extras=True)[name]
    return evaluated if sys.version_info >= (3, 12) else _readable_by_pydantic(evaluated)


def _readable_by_pydantic(annotation: Any, around: tuple[object, ...] = ()) -> Any:
    """Return `annotation` with the TypedDict of `typing_extensions` for that of `typing`, which pydantic refuses on Python 3.11.

    A TypedDict inside itself becomes a mapping of anything. `around` are the classes around `annotation`.
    """
    if annotation in around:
        return dict[str, Any]
    if typing.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _convert_typed_dict(annotation, (*around, annotation))
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return Annotated[(_readable_by_pydantic(parts[0], around), *parts[1:])]  # pyright: ignore[reportInvalidTypeForm]
    if origin is None or origin is Literal:
        return annotation
    converted = tuple[Any, ...](_readable_by_pydantic(part, around) for part in parts)
    if all(new is old for new, old in zip(converted, parts, strict=True)):
        return annotation
    if origin in (typing.Union, types.UnionType):
        return typing.Union[converted]  # noqa: UP007  # of as many as there are
    return types.GenericAlias(origin, converted)


def _convert_typed_dict(cls: Any, around: tuple[object, ...]) -> Any:
    optional: frozenset[str] = cls.__optional_keys__
    fields = {
        name: NotRequired[hint] if name in optional else Required[hint]
        for name, annotation in typing.get_type_hints(cls, include_extras=False).items()
        for hint in (_readable_by_pydantic(annotation, around),)
    }
    return TypedDict(cls.__name__, fields)  # pyright: ignore[reportArgumentType]


def _is_or_contains(annotation: Any, wanted: type) -> bool:
    if annotation is wanted:
        return True
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, Annotated):
        return any(_is_or_contains(part, wanted) for part in typing.get_args(annotation))
    return False


def _build_model_or_explain(
    name: str, definitions: Mapping[str, tuple[Any, Any]], fields: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, JsonValue]]:
    try:
        return _build_model(name, definitions)
    except _NO_SCHEMA as error:
        for parameter, field in fields.items():
            if (reason := _why_no_schema(name, field, definitions[field])) is not None:
                raise ToolDefinitionError(f"`{name}` cannot be a tool: parameter `{parameter}` has no JSON Schema: {reason}") from error
        raise ToolDefinitionError(f"`{name}` cannot be a tool: its parameters have no JSON Schema: {_first_line(error)}") from error


# TypeError: a default that its own annotation cannot hold, or metadata that pydantic does not know.
_NO_SCHEMA = (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError, TypeError, NameError)


def _build_model(name: str, definitions: Mapping[str, tuple[Any, Any]]) -> tuple[type[BaseModel], dict[str, JsonValue]]:
    config = ConfigDict(extra="forbid", protected_namespaces=())
    model = create_model(name, __config__=config, **cast("dict[str, Any]", definitions))
    schema = model.model_json_schema(schema_generator=_Schema)
    schema.pop("title", None)
    return model, schema


def _why_no_schema(name: str, field: str, definition: tuple[Any, Any]) -> str | None:
    try:
        _build_model(name, {field: definition})
    except _NO_SCHEMA as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _locate(
    detail: "ErrorDetails", parameters: dict[str, JsonValue], is_open: Callable[[JsonValue], bool]
) -> tuple[tuple[str | int, ...], bool]:
    """Return the place of a finding in `parameters`, and whether it holds for all values of the open expressions.

    Pydantic's locations also name union members, which are not part of the document. What one member refuses, another might accept once an
    open value inside is known.
    """
    place, node = list[str | int](), cast("JsonValue", parameters)
    union: tuple[JsonValue] | None = None
    *_, last = detail["loc"] or ("",)
    for part in detail["loc"]:
        child = _child(node, part)
        if child is not None:
            node = child[0]
            place.append(part)
        elif detail["type"] == "missing" and part == last:
            place.append(part)
            return tuple(place), union is None or not _contains_open(union[0], is_open)
        else:
            union = union or (node,)
        if is_open(node):
            return tuple(place), False
    return tuple(place), not _contains_open(union[0] if union else node, is_open)


def _child(node: JsonValue, part: str | int) -> tuple[JsonValue] | None:
    if isinstance(node, dict) and part in node:
        return (node[part],)
    if isinstance(node, list) and isinstance(part, int) and part < len(node):
        return (node[part],)
    return None


def _value_at(parameters: dict[str, JsonValue], place: tuple[str | int, ...]) -> JsonValue:
    node: JsonValue = parameters
    for part in place:
        child = _child(node, part)
        node = child[0] if child else None
    return node


def _contains_open(node: JsonValue, is_open: Callable[[JsonValue], bool]) -> bool:
    if is_open(node):
        return True
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return any(_contains_open(part, is_open) for part in parts)


def _path_text(place: tuple[str | int, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


_TYPE_WORDS = {
    "a valid dictionary": "an object", "a valid list": "a list", "a valid array": "a list", "a valid string": "a string",
    "a valid integer": "an integer", "a valid number": "a number", "a valid boolean": "true or false",
    "object": "an object", "array": "a list", "string": "a string", "integer": "an integer", "number": "a number",
    "boolean": "true or false",
}  # fmt: skip


def _describe_wrong_value(details: "list[ErrorDetails]", shown: str) -> str:
    # If one type of several accepts the kind of value, only what it says about the content helps.
    details = [detail for detail in details if not detail["type"].endswith(("_type", "_parsing"))] or details
    prefix = "Input should be "
    wanted = [detail["msg"].removeprefix(prefix) for detail in details if detail["msg"].startswith(prefix)]
    if not wanted:
        return f"is refused: {details[0]['msg'].removeprefix('Value error, ')} (it is {shown})"
    words = (re.split(r", unable| or instance of", text)[0] for text in wanted)
    return "should be " + " or ".join(dict.fromkeys(_TYPE_WORDS.get(word, word) for word in words)) + f", but is {shown}"


def _value_text(value: JsonValue, redact: Callable[[str], str]) -> str:
    """Return `value` for a message: short texts as they are, containers by size."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, str):
        text = redact(value)
        return f"the text {json.dumps(text[:40] + ('…' if len(text) > 40 else ''), ensure_ascii=False)}"
    return json.dumps(value)


@cache
def json_adapter() -> TypeAdapter[Any]:
    """Return what converts any value to JSON."""
    return TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))  # NaN would silently become null


def _is_same_json(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two values are the same JSON. A whole number is the same however it is written."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return isinstance(one, bool) == isinstance(other, bool) and one == other
    return json.dumps(one) == json.dumps(other)


_KEYS_BY_NAME = ("properties", "patternProperties", "$defs", "dependentSchemas")
_KEYS_OF_VALUES = ("default", "const", "enum")
_DOCUMENTATION_KEYS = ("title", "description", "examples")


def without_documentation(schema: JsonValue) -> JsonValue:
    """Return a JSON Schema without titles, descriptions and examples. Properties with these names are kept."""
    if isinstance(schema, list):
        return [without_documentation(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, JsonValue] = {}
    for key, value in schema.items():
        if key in _KEYS_BY_NAME and isinstance(value, dict):
            kept[key] = {name: without_documentation(part) for name, part in value.items()}
        elif key not in _DOCUMENTATION_KEYS:
            kept[key] = value if key in _KEYS_OF_VALUES else without_documentation(value)
    return kept
