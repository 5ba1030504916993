"""What the `{{ }}` of an Automation document of AWS Systems Manager refer to, as values of a plan."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from plan_adapter.importers.conversion import (
    Document,
    NotConvertibleError,
    Report,
    StandIns,
    as_expression,
    conjunction,
    input_name,
    literal,
    mapping,
    members,
    negation,
)

Kind: TypeAlias = Literal["string", "integer", "boolean", "array", "object"]

_REFERENCE = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
_SELECTOR = re.compile(r"\$(?:\.[A-Za-z_][\w-]*|\[(?:\d+|\*|'[^']+'|\"[^\"]+\")\]|\.\*)*")
_CODE_KEYS = frozenset({"command", "commands", "commandline", "script", "scriptblock", "userdata"})
_IRREGULAR_NAMES: Mapping[str, str] = {
    "CreateCachediSCSIVolume": "create-cached-iscsi-volume",
    "CreateStorediSCSIVolume": "create-stored-iscsi-volume",
    "DescribeCachediSCSIVolumes": "describe-cached-iscsi-volumes",
    "DescribeStorediSCSIVolumes": "describe-stored-iscsi-volumes",
    "ExecutePartiQLBatch": "execute-partiql-batch",
    "ExecutePartiQLStatement": "execute-partiql-statement",
    "ExecutePartiQLTransaction": "execute-partiql-transaction",
    "ListHITsForQualificationType": "list-hits-for-qualification-type",
}
_QUOTED = re.compile(r"\[['\"]([^'\"]+)['\"]\]")


@dataclass(frozen=True, slots=True)
class Value:
    """A reference: its CEL code and type."""

    code: str
    kind: Kind


@dataclass(slots=True)
class Names:
    """The parameters of a document and the outputs of its steps so far, as values.

    An unknown reference becomes an input, unless it is an output of one of the document's `steps`.
    """

    report: Report
    steps: frozenset[str] = frozenset()
    inputs: dict[str, Document] = field(default_factory=dict[str, Document])
    values: dict[str, Value] = field(default_factory=dict[str, Value])  # by the text of the reference
    stand_ins: StandIns = field(init=False)

    def __post_init__(self) -> None:
        """Share the plan's inputs with the stand-ins."""
        self.stand_ins = StandIns(self.inputs)

    def add_parameter(self, aws_name: str, definition: Document) -> None:
        """Add an input for a parameter."""
        name = input_name(aws_name, self.inputs)
        if name != aws_name:
            self.report.add("changed", f"the parameter `{aws_name}` is called `{name}`")
        self.inputs[name] = definition
        self.values[aws_name] = Value(f"inputs.{name}", definition["type"])

    def value(self, reference: str, at: str) -> Value:
        """Return the value of a reference.

        Raises NotConvertibleError for an output that no converted step has. A value from before the run would not be that output.
        """
        if reference in self.values:
            return self.values[reference]
        if "." in reference and reference.partition(".")[0] in self.steps:
            raise NotConvertibleError(f"it uses `{reference}`, an output that the converted step does not have")
        return Value(f"inputs.{self.stand_ins.name_of(reference, reference.lower() if ':' in reference else reference, at)}", "string")

    def harmless(self) -> set[str]:
        """Return the parameters whose values cannot be code: numbers, booleans, and one of a list of plain words."""
        found = set[str]()
        for reference, value in self.values.items():
            words = members(self.inputs.get(value.code.removeprefix("inputs."), {}).get("enum"))
            is_plain = bool(words) and all(re.fullmatch(r"[\w.:/@+-]+", str(word)) for word in words)
            if value.kind in ("integer", "boolean") or is_plain:
                found.add(reference)
        return found

    def single_reference(self, text: Any, at: str) -> Value | None:
        """Return the value if a text is exactly one reference."""
        found = _REFERENCE.fullmatch(text.strip()) if isinstance(text, str) else None
        return None if found is None else self.value(found[1], at)

    def code(self, value: Any, at: str) -> str:
        """Return a text that may contain references as CEL code."""
        if not isinstance(value, str):
            return literal(value)
        if (whole := self.single_reference(value, at)) is not None:
            return whole.code
        parts = [self._as_text(self.value(part, at)) if index % 2 else literal(part) for index, part in enumerate(_REFERENCE.split(value))]
        return " + ".join(part for part in parts if part != "''") or "''"

    def text(self, value: Any, at: str) -> str:
        """Return a scalar as the text of a parameter."""
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str):
            value = json.dumps(value)
        if "${{" in value:
            raise NotConvertibleError("a text contains `${{`, which has a meaning of its own in plans")
        return _REFERENCE.sub(lambda found: as_expression(self.value(found[1], at).code), value)

    def as_json(self, value: Any, at: str) -> str:
        """Return a value as JSON text. The quotes in the texts of a run are escaped."""
        if isinstance(value, dict):
            entries = (f"{json.dumps(key)}: {self.as_json(member, at)}" for key, member in mapping(value).items())
            return f"{{{', '.join(entries)}}}"
        if isinstance(value, list):
            return f"[{', '.join(self.as_json(member, at) for member in members(value))}]"
        if not isinstance(value, str):
            return json.dumps(value)
        if "${{" in value:
            raise NotConvertibleError("a text contains `${{`, which has a meaning of its own in plans")
        if (whole := self.single_reference(value, at)) is not None and whole.kind != "string":
            return as_expression(whole.code)
        parts = _REFERENCE.split(value)
        return f'"{"".join(self._escape(part, at) if index % 2 else json.dumps(part)[1:-1] for index, part in enumerate(parts))}"'

    def _escape(self, reference: str, at: str) -> str:
        code = self._as_text(self.value(reference, at))
        return as_expression(f"({code}).replace('\\\\', '\\\\\\\\').replace('\"', '\\\\\"').replace('\\n', '\\\\n')")

    @staticmethod
    def _as_text(value: Value) -> str:
        return value.code if value.kind == "string" else f"string({value.code})"


def references(value: Any) -> set[str]:
    """Return every reference in a part of a document."""
    if isinstance(value, str):
        return set(_REFERENCE.findall(value))
    return {found for member in [*mapping(value).values(), *members(value)] for found in references(member)}


def code_problem(inputs: Mapping[str, Any], names: Names) -> str:
    """Return why the values in `inputs` would be read as code on another machine, or "" if none would.

    Numbers, booleans and values from a fixed list of plain words cannot be code.
    """
    for key, value in inputs.items():
        found = sorted(references(value) - names.harmless()) if key.lower().replace("_", "") in _CODE_KEYS else []
        if found:
            return f"its `{key}` contains `{{{{ {found[0]} }}}}`, and a value inside a remote command would be read as code"
        for inner in (value, *members(value)):
            if problem := code_problem(mapping(inner), names):
                return problem
    return ""


def kebab(name: str) -> str:
    """Return the name of an API operation or parameter as the AWS command line writes it: `describe-db-instances`."""
    if name in _IRREGULAR_NAMES:
        return _IRREGULAR_NAMES[name]
    name = re.sub(r"[A-Z]{2,}s$", lambda plural: f"-{plural[0].lower()}", name)  # `TargetGroupARNs`
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1-\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", spaced).lower().replace("--", "-")


def is_selector(selector: str) -> bool:
    """Return whether `query_of` can translate a JSONPath selector."""
    return _SELECTOR.fullmatch(selector.strip()) is not None


def query_of(selector: str) -> str:
    """Return a JSONPath selector as JMESPath, for `--query`. Raises NotConvertibleError."""
    if not is_selector(selector):
        raise NotConvertibleError(f"the selector `{selector}` has no equivalent")
    path = _QUOTED.sub(r'."\1"', selector.strip().removeprefix("$"))
    path = re.sub(r"\.([A-Za-z_]\w*-[\w-]*)", r'."\1"', path).replace("[*]", "[]")
    return path.removeprefix(".") or "@"


_KINDS: Mapping[str, Kind] = {
    "String": "string",
    "StringList": "array",
    "Boolean": "boolean",
    "Integer": "integer",
    "StringMap": "object",
    "MapList": "array",
}


def is_mapping_type(aws_type: str) -> bool:
    """Return whether a type is of values that only JSON can write."""
    return aws_type in ("StringMap", "MapList")


def kind_of(aws_type: str) -> Kind:
    """Return the type of an input for a parameter of type `aws_type`, such as `StringList` or `List<AWS::EC2::Instance::Id>`."""
    return "array" if aws_type.startswith("List<") else _KINDS.get(aws_type, "string")


def read_outputs(outputs: list[tuple[str, str]], text: str, *, separator: str, is_sure: bool) -> dict[str, Value]:
    """Return the outputs, each a name and a type, that the code `text` has between separators.

    They are empty if the step is not sure to run.
    """
    found = dict[str, Value]()
    for index, (name, aws_type) in enumerate(outputs):
        # Not trimmed if there are several: the first may be empty.
        line = text if separator == "\n" else f"{text}.split('\\n')[0]"
        part = f"{text}.trim()" if len(outputs) == 1 else f"{line}.split({literal(separator)})[{index}]"
        kind = kind_of(aws_type)
        empty: dict[Kind, str] = {"array": "[]", "integer": "0", "boolean": "false"}
        code = {"array": f"{part}.split(',')", "integer": f"int({part})", "boolean": f"{part}.lowerAscii() == 'true'"}.get(kind, part)
        shown: Kind = "string" if kind == "object" else kind
        sure = text.removesuffix(".result.stdout") + ".status == 'completed'"
        found[name] = Value(f"({code})" if is_sure else f"({sure} ? {code} : {empty.get(kind, literal(''))})", shown)
    return found


_TEXTS = {
    "StringEquals": "{text} == {wanted}",
    "EqualsIgnoreCase": "{text}.lowerAscii() == {wanted}.lowerAscii()",
    "StartsWith": "{text}.startsWith({wanted})",
    "EndsWith": "{text}.endsWith({wanted})",
    "Contains": "{text}.contains({wanted})",
}
_NUMBERS = {
    "NumericEquals": "==",
    "NumericGreater": ">",
    "NumericLesser": "<",
    "NumericGreaterOrEquals": ">=",
    "NumericLesserOrEquals": "<=",
}


def condition_of(choice: Mapping[str, Any], names: Names, at: str) -> str:
    """Return a choice as a condition. Raises NotConvertibleError."""
    found = list[str]()
    for word, inner in choice.items():
        parts = [mapping(part) for part in (members(inner) or [inner])]
        if word in ("And", "Or"):
            found.append((" && " if word == "And" else " || ").join(f"({condition_of(part, names, at)})" for part in parts))
        elif word == "Not":
            found += [negation(condition_of(part, names, at)) for part in parts]
    if "Variable" in choice:
        found.append(_convert_comparison(choice, names, at))
    if not any(found):
        raise NotConvertibleError("it compares nothing")
    return conjunction(*found)


def _convert_comparison(choice: Mapping[str, Any], names: Names, at: str) -> str:
    value = names.single_reference(choice.get("Variable"), at)
    if value is None:
        raise NotConvertibleError(f"its variable is {choice.get('Variable')!r}, which is not one reference")
    for operator, wanted in choice.items():
        if operator in _TEXTS:
            text = value.code if value.kind == "string" else f"string({value.code})"
            return _TEXTS[operator].format(text=text, wanted=names.code(_as_text(wanted), at))
        if operator in _NUMBERS:
            return f"{_as_double(value)} {_NUMBERS[operator]} {_wanted_double(wanted, names, at)}"
        if operator == "BooleanEquals":
            is_true = str(wanted).lower() == "true"
            text = value.code if value.kind == "boolean" else f"{value.code}.lowerAscii() == 'true'"
            return text if is_true else negation(text)
    raise NotConvertibleError(f"`{', '.join(choice)}` is not a known comparison")


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_double(value: Value) -> str:
    return f"double({value.code})"


def _wanted_double(wanted: Any, names: Names, at: str) -> str:
    if (whole := names.single_reference(wanted, at)) is not None:
        return _as_double(whole)
    if not re.fullmatch(r"-?\d+(\.\d+)?", str(wanted)):
        raise NotConvertibleError(f"`{wanted}` is not a number")
    return literal(float(wanted))
