"""The references in the guide, written from the code: the command line, Python, settings, problem codes."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import griffe
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from plan_adapter.cli.app import ADMIN_GROUPS, GROUPS, OPTIONS, VERBS, Verb, build_app
from plan_adapter.cli.examples import EXAMPLES
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.help_text import command_of, description_of, example_command, usage_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.problems import CATALOGUE

MODULES = (
    "plan_adapter",
    *(f"plan_adapter.{name}" for name in ("plans", "runs", "gates", "tools", "agent", "store", "errors")),
)
LINE = 100
"""The columns into which a signature fits."""


def command_line() -> str:
    """Return the reference of the command line: each verb with its options, and the exit codes."""
    app = build_app()
    commands = [(name, command_of(app, name)) for verb in VERBS.values() for name in verb.commands]
    codes = [f"| {code.value} | {doc} |" for code, doc in zip(ExitCode, _attribute_docs(ExitCode).values(), strict=True)]
    parts = [
        "# Reference: the command line",
        "`plan VERB --help` prints one verb. Generated from the code by `make generated`.",
        "\n".join(_contents(title, found) for title, found in (*GROUPS.items(), *ADMIN_GROUPS.items())),
        "These options work with every verb:",
        _table(("option", "what it does"), [(f"`{name}`", text) for name, text in OPTIONS]),
        "## Exit codes",
        "\n".join(["| code | meaning |", "|---|---|", *codes]),
        *(_command_text(name, found) for name, found in commands),
    ]
    return "\n\n".join(parts) + "\n"


def _contents(title: str, verbs: tuple[Verb, ...]) -> str:
    links = ", ".join(f"[{name}](#plan-{name.replace(' ', '-')})" for verb in verbs for name in verb.commands)
    return f"- **{title}**: {links}"


def _command_text(name: str, app: Any) -> str:
    rows = list[tuple[str, str]]()
    for argument in app.assemble_argument_collection(parse_docstring=True):
        is_positional = argument.index is not None
        names = [name for name in argument.names if not name.startswith(("--no-", "--empty-"))]
        shown = ", ".join(f"`{name}`" for name in names) + _value_text(argument.hint, is_positional=is_positional)
        if is_positional and names[0].startswith("-"):  # an argument that is also an option
            shown = f"`{names[0].lstrip('-').upper()}`, {shown}"
        rows.append((shown, " ".join((argument.parameter.help or "").split())))
    description = description_of(inspect.getdoc(app.default_command) or "")
    usage = usage_of(app, name).removeprefix("Usage: ")
    text = f"## plan {name}\n\n```console\n{usage}\n```\n\n{_paragraphs(description)}"
    shown = EXAMPLES[name]
    examples = "\n".join(f"$ {example_command(name, example)}  # {example.text}" for example in shown.examples)
    parts = [text, *([_table(("argument or option", "what it does"), rows)] if rows else []), f"```console\n{examples}\n```"]
    return "\n\n".join([*parts, f"Read on: [{shown.page}]({shown.page}.md)"])


def _value_text(hint: Any, *, is_positional: bool) -> str:
    """Return how a value is written after the name of its option: nothing for a switch."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if get_origin(hint) in (Union, UnionType) else [hint]
    kind, repeated = kinds[0], ""
    if get_origin(kind) in (list, tuple):
        kind, repeated = get_args(kind)[0], ", repeatable"
    if get_origin(kind) is Literal:
        return " " + " or ".join(f"`{choice}`" for choice in get_args(kind)) + repeated
    if kind is bool or is_positional:
        return repeated
    return f" {kind.__name__.upper()}{repeated}"


@cache
def _package() -> Any:
    """Return the source of the package as griffe reads it."""
    return griffe.load("plan_adapter", search_paths=[Path(__file__).parents[2]])


def python() -> str:
    """Return the reference of Python: each public name with its signature and documentation."""
    package = _package()
    parts = [
        "# Reference: Python",
        "Each public name is in exactly one module. `plan guide embedding` says how they fit together. "
        "Generated from the code by `make generated`.",
    ]
    for module in MODULES:
        parts += [f"## {module}", (import_module(module).__doc__ or "").strip()]
        parts += [_name_text(package, module, name) for name in import_module(module).__all__]
    return "\n\n".join(parts) + "\n"


def _name_text(package: Any, module: str, name: str) -> str:
    value = getattr(import_module(module), name)
    path = _places(module)[name].removeprefix("plan_adapter.").split(".")
    found = package[(*path, name)]
    if found.is_attribute and callable(value):  # the sync twin of an async function
        found = package[(*path, f"a{name}")]
        return _function_text(found, name, inspect.getdoc(value) or "", heading="###", is_async=False)
    if found.is_function:
        return _function_text(found, name, inspect.getdoc(value) or "", heading="###", is_async="async" in found.labels)
    return _class_text(found, value)


@cache
def _places(module: str) -> dict[str, str]:
    """Return the module from which each public name of a module is imported, as its stub says."""
    stub = Path(str(import_module(module).__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: place for place, name in re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)}


def _function_text(found: Any, name: str, doc: str, *, heading: str, is_async: bool) -> str:
    signature = _signature(found, name, is_async=is_async)
    return f"{heading} {name}\n\n```python\n{signature}\n```\n\n{_docstring(doc)}".rstrip()


def _signature(found: Any, name: str, *, is_async: bool) -> str:
    parameters, star = list[str](), False
    given = [parameter for parameter in found.parameters if parameter.name not in ("self", "cls")]
    for index, parameter in enumerate(given):
        kind = str(parameter.kind.value)
        if kind == "keyword-only" and not star:
            parameters.append("*")
            star = True
        star = star or kind == "variadic positional"
        parameters.append(_parameter(parameter, kind))
        following = str(given[index + 1].kind.value) if index + 1 < len(given) else ""
        if kind == "positional-only" and following != kind:
            parameters.append("/")
    returns = f" -> {found.returns}" if found.returns is not None else ""
    prefix = f"{'async ' if is_async else ''}def {name}("
    line = f"{prefix}{', '.join(parameters)}){returns}"
    return line if len(line) <= LINE else "\n".join([prefix, *(f"    {text}," for text in parameters), f"){returns}"])


def _parameter(parameter: Any, kind: str) -> str:
    stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
    annotation = f": {parameter.annotation}" if parameter.annotation is not None else ""
    if parameter.default is None or stars:
        return f"{stars}{parameter.name}{annotation}"
    return f"{parameter.name}{annotation} = {parameter.default}" if annotation else f"{parameter.name}={parameter.default}"


def _class_text(found: Any, value: Any) -> str:
    members = [member for name, member in found.members.items() if not name.startswith("_")]
    parts = [f"### {found.name}", _docstring(inspect.getdoc(value) or "")]
    fields: Mapping[str, FieldInfo] = getattr(value, "model_fields", {})
    attributes = [member for member in members if member.is_attribute and (member.has_docstring or _is_field(member, fields))]
    if attributes:
        rows = [(f"`{member.name}`", _annotation(member), _meaning(member, fields)) for member in attributes]
        parts.append(_table(("attribute", "type", "meaning"), rows))
    for member in members:
        if member.is_function and member.has_docstring and not member.name.startswith("model_"):  # pydantic's hooks
            signature = _signature(member, member.name, is_async="async" in member.labels)
            parts.append(f"```python\n{signature}\n```\n\n{_docstring(inspect.cleandoc(member.docstring.value))}")
    return "\n\n".join(part for part in parts if part)


def _is_field(member: Any, fields: Mapping[str, FieldInfo]) -> bool:
    """Return whether a member is a value of each instance, not a constant of the class."""
    return member.name in fields if fields else "instance-attribute" in member.labels


def _annotation(member: Any) -> str:
    annotation = member.annotation
    if annotation is not None and str(annotation).startswith("Annotated["):
        annotation = annotation.slice.elements[0]
    return f"`{' '.join(str(annotation).split())}`" if annotation is not None else ""


def _meaning(member: Any, fields: Mapping[str, FieldInfo]) -> str:
    if member.has_docstring:
        return " ".join(member.docstring.value.partition("\n\n")[0].split())
    if member.name in fields:
        return fields[member.name].description or ""
    return _comment_of(member)


def _comment_of(member: Any) -> str:
    """Return the comment at the end of the line that declares a field, as a sentence."""
    is_field = "instance-attribute" in member.labels and member.annotation is not None
    if not (is_field or member.name.isupper()) or member.lineno is None:
        return ""
    line = Path(member.filepath).read_text(encoding="utf-8").splitlines()[member.lineno - 1]
    comment = line.partition("  # ")[2].strip()
    return f"{comment[0].upper()}{comment[1:].rstrip('.')}." if comment else ""


def settings() -> str:
    """Return the reference of the settings: each environment variable with its type and default."""
    docs = _attribute_docs(Settings)
    rows = [
        (f"`PLAN_ADAPTER_{name.upper()}`", _type_text(field), _default_text(field), _of_variables(docs[name]))
        for name, field in Settings.model_fields.items()
    ]
    return SETTINGS_HEAD + _table(("variable", "value", "default", "meaning"), rows) + "\n"


def _of_variables(doc: str) -> str:
    """Return the text of a setting for people who set variables."""
    return doc.replace("None: ", "If it is not set: ").replace("`home`", "`PLAN_ADAPTER_HOME`")


SETTINGS_HEAD = """\
# Reference: settings

Settings are environment variables. `plan doctor` checks them. Generated from the code by `make generated`.

- **Lists** are separated by commas: `PLAN_ADAPTER_TOOLS=acme.tools:registry,acme.more:deploy`.
- **The server** is named by Prefect's own settings: `PREFECT_API_URL` or a profile. If it cannot be reached, that is
  an error, and no other server is started.
- **Secrets** of plans are `PLAN_ADAPTER_SECRET_NAME`: `plan guide secrets`.
- **The policy of the store** (`plan policy`) takes precedence over the settings about approval: settings can only be stricter.

"""


def _type_text(field: FieldInfo) -> str:
    """Return the values that a setting may have."""
    given = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind: Any = given[0] if get_origin(field.annotation) in (Union, UnionType) else field.annotation
    names = {Path: "path", str: "text", SecretStr: "text, secret", bool: "`true` or `false`", int: "whole number", float: "number"}
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    text = {tuple: "list", dict: "JSON"}.get(get_origin(kind) or kind) or names[kind]
    limits = [(words, getattr(limit, name)) for limit in field.metadata for name, words in LIMITS.items() if hasattr(limit, name)]
    return ", ".join([text, *(f"{words} {limit:g}" for words, limit in limits)])


LIMITS = {"ge": "at least", "gt": "more than", "le": "at most"}


def _default_text(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{str(value).replace(str(Path.home()), '~')}`" if value not in (None, "", (), {}) else ""


def problems() -> str:
    """Return the reference of the problem codes: what `plan explain` prints."""
    entries = [f"## {code}\n\n{text}" for code, text in CATALOGUE.items()]
    head = "# Reference: problem codes\n\n`plan explain CODE` prints the entry of one code. Generated from the code by `make generated`."
    return "\n\n".join([head, *entries]) + "\n"


def _attribute_docs(cls: type) -> Mapping[str, str]:
    """Return the text below each attribute of a class, on one line."""
    module = _package()[cls.__module__.removeprefix("plan_adapter.")]
    members = module[cls.__name__].members.items()
    return {name: " ".join(member.docstring.value.split()) for name, member in members if member.is_attribute and member.has_docstring}


def _docstring(text: str) -> str:
    """Return a docstring as Markdown: its sections are lists."""
    parts = list[str]()
    for section in griffe.parse_google(griffe.Docstring(text), warnings=False):
        match section.kind.value:
            case "text":
                parts.append(_paragraphs(str(section.value)))
            case "parameters":
                parts.append("\n".join(f"- `{entry.name}`: {' '.join(entry.description.split())}" for entry in section.value))
            case "raises":
                parts.append("\n".join(f"- Raises `{entry.annotation}`: {' '.join(entry.description.split())}" for entry in section.value))
            case kind:
                raise NotImplementedError(f"the section `{kind}` of a docstring: {text}")
    return "\n\n".join(parts)


def _paragraphs(text: str) -> str:
    """Return a text with one line per paragraph. Lists and indented code stay as they are."""
    blocks = re.split(r"\n\n+", text)
    return "\n\n".join(block if re.search(r"^(- | )", block, re.MULTILINE) else " ".join(block.split()) for block in blocks)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def lines() -> Iterator[str]:
        yield f"| {' | '.join(head)} |"
        yield "|" + "---|" * len(head)
        for row in rows:
            yield f"| {' | '.join(_cell(cell) for cell in row)} |"

    return "\n".join(lines())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


REFERENCES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "reference-cli.md": command_line,
        "reference-python.md": python,
        "reference-settings.md": settings,
        "reference-problems.md": problems,
    }
)
"""The pages, and what writes each of them."""
