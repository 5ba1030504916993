"""Reads and writes plan documents, YAML or JSON, locates everything in them, and gives their JSON Schema.

The readers are imported on use, so that a command that reads no document does not import yaml.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import JsonValue

from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import one_line
from plan_adapter.model.values import find_bad_values

if TYPE_CHECKING:
    from plan_adapter.documents.reading import TriggersFile, TypedFile
    from plan_adapter.documents.typed import M
    from plan_adapter.model.inventory import HostGroup

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def plan_schema() -> dict[str, JsonValue]:
    """Return the JSON Schema (draft 2020-12) of a plan document in snake_case.

    `read_document` or validation refuses everything that the schema refuses, with two exceptions: other spellings of keys, and the
    execution fields of the original implementations.
    """
    from plan_adapter.documents.shorthand import add_to_schema

    schema: dict[str, Any] = ExecutionPlan.model_json_schema(by_alias=True)
    schema = _simplify(schema)
    definitions: dict[str, Any] = schema.pop("$defs")
    kinds = (["tool_name"], ["ask"], ["goal"], ["for_each", "steps"], ["plan"])
    definitions["Step"]["properties"]["pinned"] |= {"$ref": "#"}
    definitions["Step"]["oneOf"] = [{"required": fields} for fields in kinds]
    properties: dict[str, Any] = schema["properties"]
    properties["steps"]["minItems"] = 1
    properties["description"]["minLength"] = 1
    for named in (properties["inputs"], definitions["Question"]["properties"]["fields"]):
        named["propertyNames"] = {"pattern": "^[A-Za-z][A-Za-z0-9_]*$"}
    properties["$schema"] = {"type": "string", "description": "Where editors find this schema."}
    schema["required"] = ["description", "steps"]
    schema["title"] = "Plan document"
    schema["$defs"] = definitions
    add_to_schema(schema)
    return {"$schema": DIALECT, **schema}


def _simplify(schema: Any) -> Any:
    """Return `schema` without titles that repeat a name, and without null, which only means that a field is absent."""
    if isinstance(schema, list):
        return [_simplify(member) for member in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    parts = {key: _simplify(part) for key, part in cast("dict[str, Any]", schema).items()}
    if isinstance(parts.get("title"), str):
        del parts["title"]
    if parts.get("default", ...) is None:
        del parts["default"]
    choices: list[Any] = parts.get("anyOf", [])
    if len(choices) == 2 and choices[1] == {"type": "null"}:
        del parts["anyOf"]
        parts |= choices[0]
    return parts


__all__ = [
    "dump_plan",
    "is_test_file",
    "load_plan",
    "locate",
    "plan_schema",
    "read_content",
    "read_document",
    "read_documents",
    "read_file",
    "read_mapping",
    "read_mapping_text",
    "read_source",
    "read_typed",
]


def read_document(text: str, *, file: str | None = None) -> tuple[ExecutionPlan | None, list[Problem]]:
    """Return the plan in `text`, and every problem with its file, line and column.

    A plan with problems lacks the fields concerned, so that the rest can still be checked. It keeps its problems and has no digest. The
    plan is None if the text is not a mapping. If `file` ends in `.json`, the text is read as JSON only.
    """
    from plan_adapter.documents.reading import read_text

    return read_text(text, file)


def read_documents(text: str, *, file: str | None = None) -> list[tuple[ExecutionPlan | None, list[Problem]]]:
    """Return the result of `read_document` for each plan in `text`.

    The text is a JSON array of plans, one plan per line (JSON Lines), or a single plan.
    """
    from plan_adapter.documents.reading import read_several

    return read_several(text, file)


def read_file(path: str | Path) -> tuple[ExecutionPlan | None, list[Problem]]:
    """Return the result of `read_document` for the file at `path`. A file that cannot be read is reported as a problem."""
    from plan_adapter.documents.reading import read_path

    return read_path(Path(path))


def read_inventory(path: Path) -> "tuple[dict[str, HostGroup], list[Problem]]":
    """Return the groups of hosts in an inventory and every problem: YAML for `.yaml`, `.yml` and `.json`, else Ansible's INI."""
    from plan_adapter.documents.reading import read_inventory

    return read_inventory(path)


def read_triggers(path: Path) -> "TypedFile[TriggersFile]":
    """Return a file with `triggers`, as a plan has them, and its problems. Raises InvalidPlanError if it is not a mapping."""
    from plan_adapter.documents import reading

    return reading.read_triggers(path)


def read_mapping(path: str | Path) -> tuple[dict[str, JsonValue] | None, list[Problem]]:
    """Return the mapping in a YAML or JSON file that is not a plan, such as a file of inputs, and every problem."""
    from plan_adapter.documents.reading import read_values

    return read_values(Path(path))


def read_mapping_text(text: str, *, file: str | None = None, aliases: bool = False) -> tuple[dict[str, JsonValue] | None, list[Problem]]:
    """Return the result of `read_mapping` for a text that was read from `file`.

    With `aliases`, a copy of what its anchor names replaces each YAML alias. Otherwise anchors are a problem.
    """
    from plan_adapter.documents.reading import read_values_text

    return read_values_text(text, file, aliases=aliases)


def read_typed(path: str | Path, model: "type[M]", *, context: object = None, max_bytes: int | None = None) -> "TypedFile[M]":
    """Return the YAML or JSON file at `path`, read as `model`, with its problems. Raises InvalidPlanError if it is not a mapping.

    The value lacks what has problems. `context` is for the validators of the model. `max_bytes` may be less than for other documents.
    """
    from plan_adapter.documents import reading

    return reading.read_typed(Path(path), model, context=context, max_bytes=max_bytes)


TEST_SUFFIXES = (".test.yaml", ".test.yml")


def is_test_file(path: str | Path) -> bool:
    """Return whether `path` names a file of test cases, such as `restart.test.yaml` beside the plan `restart.yaml`."""
    return str(path).lower().endswith(TEST_SUFFIXES)


def read_content(path: Path, *, max_bytes: int) -> str:
    """Return the text of a file that is no document, such as a calendar. Raises InvalidPlanError if it cannot be read or is larger."""
    from plan_adapter.documents.nodes import UnreadableError
    from plan_adapter.documents.reading import read_content

    try:
        return read_content(path, max_bytes)
    except UnreadableError as error:
        raise InvalidPlanError([error.problem]) from None


def read_source(path_or_text: str | Path) -> tuple[ExecutionPlan | None, list[Problem]]:
    """Return the result of `read_document` for a file or a text.

    A text counts as a path if a file of that name exists, or if it is one line that ends in .yaml, .yml or .json.
    """
    return read_file(path_or_text) if _is_path(path_or_text) else read_document(str(path_or_text))


def load_plan(path_or_text: str | Path) -> ExecutionPlan:
    """Return the plan in a file or text, without the plans that its steps run. Raises InvalidPlanError with every problem."""
    plan, problems = read_source(path_or_text)
    if plan is None or problems:
        raise InvalidPlanError(problems)
    return plan


def _is_path(path_or_text: str | Path) -> bool:
    if isinstance(path_or_text, Path):
        return True
    if "\n" in path_or_text or not path_or_text.strip():
        return False
    if path_or_text.lower().endswith((".yaml", ".yml", ".json")):
        return True
    try:
        return Path(path_or_text).exists()
    except (OSError, ValueError):  # too long for a file name, or with a NUL: a text
        return False


def dump_plan(plan: ExecutionPlan, *, comments: Mapping[str, str] | None = None) -> str:
    """Return the plan as YAML that `load_plan` reads back as an equal plan: in snake_case, without defaults.

    `comments` are written above the value at their path, such as `inputs.host`; the comment of "" goes to the top. Raises InvalidPlanError
    if the plan contains values that a document cannot hold.
    """
    from plan_adapter.documents.yaml_text import write_yaml

    document = plan.to_document()
    if problems := find_bad_values(document):
        raise InvalidPlanError(problems)
    text = write_yaml(document)
    return _add_comments(text, comments) if comments else text


def _add_comments(text: str, comments: Mapping[str, str]) -> str:
    written, _ = read_document(text)
    lines = text.split("\n")
    marks = {at: locate(written, at)[1:] if at and written is not None else (1, 1) for at in comments}
    for at in sorted(comments, key=lambda at: marks[at][0] or 1, reverse=True):
        line, column = marks[at]
        lines.insert((line or 1) - 1, f"{' ' * ((column or 1) - 1)}# {one_line(comments[at])}")
    return "\n".join(lines)


def locate(plan: ExecutionPlan, at: str) -> tuple[str | None, int | None, int | None]:
    """Return file, line and column, from 1, of the path `at` or its nearest parent. Each is None if it is unknown."""
    marks, file = plan._marks, plan._file  # pyright: ignore[reportPrivateUsage]  # set by the reader of the document
    return (file, None, None) if marks is None else (file, *marks.find(at))
