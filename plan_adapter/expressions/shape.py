"""`Shape`: what is known of a value before it exists, so that a reference to a field that it will not have is found."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from plan_adapter.expressions.references import EACH

_KINDS: Mapping[str, str] = {
    "string": "string",
    "integer": "int",
    "number": "double",
    "boolean": "bool",
    "null": "null_type",
    "array": "list",
    "object": "map",
    # Types of inputs that are texts.
    "date": "string",
    "date-time": "string",
    "duration": "string",
    "secret": "string",
}


class NoMemberError(LookupError):
    """A value has no such member. `fields` are those that it has, or None if it has none because of its type."""

    def __init__(self, fields: tuple[str, ...] | None) -> None:
        """Store `fields`."""
        super().__init__()
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a value: its type, its fields or the members of its list. By default nothing is known.

    A value may also be null if `is_optional`. `rest` is the shape of the fields that are not listed, or None if there are none. `sometimes`
    are fields of what may be there in place of the value.
    """

    type: str = "dyn"  # as in CEL, without the type of a list's members
    fields: Mapping[str, "Shape"] | None = None  # of a mapping; None: not known
    rest: "Shape | None" = None
    items: "Shape | None" = None  # of a list; None: not known
    is_optional: bool = False
    sometimes: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        """The type as CEL names it: `string`, `list(int)`, `map`, `dyn`."""
        if self.is_optional:
            return "dyn"
        if self.type == "list":
            return f"list({'dyn' if self.items is None else self.items.kind.partition('(')[0].replace('null_type', 'dyn')})"
        return self.type

    def member(self, key: str | int) -> "Shape":
        """Return the shape of a field, or of a member of a list. Raises NoMemberError if the value cannot have it."""
        if self.type == "dyn" or key in self.sometimes:
            return ANYTHING
        if self.type == "list" and isinstance(key, int):
            return self.items or ANYTHING
        if self.type == "map" and key == EACH:  # a macro goes through the keys of a mapping
            return Shape("string")
        if self.type != "map" or (self.fields is None and isinstance(key, int)):
            raise NoMemberError(None)
        if self.fields is None:
            return self.rest or ANYTHING
        if isinstance(key, str) and (known := self.fields.get(key) or self.rest) is not None:
            return known
        raise NoMemberError(tuple(self.fields))


ANYTHING = Shape()


def list_of(items: Shape) -> Shape:
    """Return the shape of a list of `items`."""
    return Shape("list", items=items)


def shape_of_kind(kind: str) -> Shape:
    """Return the shape of a value of a type that is written as in CEL."""
    outer, _, inner = kind.replace("<", "(").replace(">", ")").partition("(")  # CEL's own names of types within a list have `<`
    return list_of(shape_of_kind(inner.removesuffix(")") or "dyn")) if outer == "list" else Shape(outer)


def shape_of_type(name: str, items: str | None = None) -> Shape:
    """Return the shape of a value of a JSON Schema type. `items` is the type of a list's members."""
    kind = _KINDS[name]
    return list_of(ANYTHING if items is None else shape_of_type(items)) if kind == "list" else Shape(kind)


def shape_of_schema(schema: Mapping[str, Any]) -> Shape:
    """Return the shape of the values that a JSON Schema describes. What it leaves open is not known."""
    return _SchemaReader(schema.get("$defs", {})).read(schema)


class _SchemaReader:
    """Reads a JSON Schema with its definitions. A type that contains itself is not known further down."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, Shape] = {}
        self._open: set[str] = set()

    def read(self, schema: object) -> Shape:
        if not isinstance(schema, dict):
            return ANYTHING
        parts = cast("dict[str, Any]", schema)
        if (reference := parts.get("$ref")) is not None:
            return self._read_definition(str(reference).removeprefix("#/$defs/"))
        if (alternatives := parts.get("anyOf") or parts.get("oneOf")) is not None:
            return self._unite([self.read(part) for part in alternatives])
        match parts.get("type"):
            case "object":
                return self._read_mapping(parts)
            case "array":
                return list_of(ANYTHING if "prefixItems" in parts else self.read(parts.get("items")))
            case str() as name if name in _KINDS:
                return Shape(_KINDS[name])
            case _:
                return ANYTHING

    def _read_definition(self, name: str) -> Shape:
        if name in self._open or name not in self._definitions:
            return ANYTHING
        if name not in self._known:
            self._open.add(name)
            self._known[name] = self.read(self._definitions[name])
            self._open.discard(name)
        return self._known[name]

    def _read_mapping(self, parts: Mapping[str, Any]) -> Shape:
        more = parts.get("additionalProperties", "properties" not in parts)
        rest = None if more is False and "patternProperties" not in parts else self.read(more)
        return Shape("map", {name: self.read(part) for name, part in parts.get("properties", {}).items()}, rest)

    def _unite(self, shapes: list[Shape]) -> Shape:
        is_optional = any(shape.type == "null_type" or shape.is_optional for shape in shapes)
        known = [shape for shape in shapes if shape.type != "null_type"]
        if not known or {shape.type for shape in known} != {known[0].type} or known[0].type == "dyn":
            return ANYTHING if known else Shape("null_type")
        first = known[0]
        if len(known) > 1 and first.type == "map":
            names = dict.fromkeys(name for shape in known for name in shape.fields or ())
            members = {name: self._unite([_field(shape, name) for shape in known if _has_field(shape, name)]) for name in names}
            rest = [shape.rest for shape in known if shape.rest is not None]
            first = Shape("map", members, ANYTHING if rest else None)
        elif len(known) > 1 and first.type == "list":
            first = list_of(self._unite([shape.items or ANYTHING for shape in known]))
        return replace(first, is_optional=is_optional)


def _has_field(shape: Shape, name: str) -> bool:
    return name in (shape.fields or ()) or shape.rest is not None


def _field(shape: Shape, name: str) -> Shape:
    return (shape.fields or {}).get(name) or shape.rest or ANYTHING
