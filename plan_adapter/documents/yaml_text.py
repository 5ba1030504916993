"""Parses YAML text into a tree of nodes, and writes documents as YAML. The only module that imports yaml.

It takes the events of libyaml's parser one by one and builds the tree without recursion: `yaml.compose` crashes with a segmentation fault
on 100,000 brackets. Plain scalars follow the core schema of YAML 1.2, so `no` is text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import JsonValue

from plan_adapter.documents.nodes import Node, Scalar, TreeBuilder, UnreadableError
from plan_adapter.model.problems import Problem
from plan_adapter.model.reference import Reference
from plan_adapter.model.values import TOO_DEEP

_CONSTANTS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_PREFIXED_INTEGER = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_ANCHOR = ("anchor", "anchors and aliases are refused", "write the value out")
_UNKNOWN_ALIAS = ("anchor", "an alias names no anchor that ends before it", "write the value out")
_TOO_MANY_COPIES = ("too-large", "the aliases of the file stand for too many values", "write fewer aliases inside what anchors name")
_TAG = ("tag", "tags (`!name`) are refused", "remove the tag, or put the text in quotes")
_SEVERAL_DOCUMENTS = ("several-documents", "the file contains more than one YAML document", "keep one plan per file")

MAX_COPIED = 100_000
"""The most values that the aliases of a text may stand for together."""


def read_yaml(text: str, *, aliases: bool = False) -> tuple[Node | None, list[Problem]]:
    """Return the tree of `text`, or None if it holds no document, and its problems. Raises UnreadableError if it is not YAML.

    With `aliases`, each alias is replaced by a copy of what its anchor names. Otherwise anchors are refused.
    """
    builder = TreeBuilder()
    documents = 0
    try:
        for event in _expand_aliases(builder, _parse_events(text)) if aliases else _parse_events(text):
            if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                builder.close()
            elif isinstance(event, yaml.NodeEvent):
                _add_event(builder, event)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise builder.unreadable(_SEVERAL_DOCUMENTS, *_position(event))
    except yaml.YAMLError as error:
        raise _syntax_error(builder, error, text) from None
    return builder.root, builder.problems


def _parse_events(text: str) -> Iterator[yaml.Event]:
    return yaml.parse(text, Loader=yaml.CSafeLoader)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # untyped


@dataclass(slots=True)
class _Anchored:
    """What an anchor names, as events without aliases."""

    name: str
    depth: int
    events: list[Any] = field(default_factory=list[Any])


def _expand_aliases(builder: TreeBuilder, events: Iterator[Any]) -> Iterator[Any]:
    """Yield the events with a copy of the anchored ones in place of each alias. Raises UnreadableError if that makes too many."""
    anchors, opened, depth, copied = dict[str, list[Any]](), list[_Anchored](), 0, 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            if name not in anchors:
                raise builder.unreadable(_UNKNOWN_ALIAS, *_position(event))
            replayed = anchors[name]
            copied += len(replayed)
            if copied > MAX_COPIED:
                raise builder.unreadable(_TOO_MANY_COPIES, *_position(event))
        else:
            replayed = [event]
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                opened.append(_Anchored(str(event.anchor), depth))
                event.anchor = None
        for each in replayed:
            depth += isinstance(each, yaml.CollectionStartEvent) - isinstance(each, yaml.CollectionEndEvent)
            for anchored in opened:
                anchored.events.append(each)
            yield each
        while opened and opened[-1].depth == depth:
            anchored = opened.pop()
            anchors[anchored.name] = anchored.events


def _position(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _add_event(builder: TreeBuilder, event: Any) -> None:
    line, column = _position(event)
    if event.anchor is not None:
        if builder.expects_key:
            raise builder.unreadable(_ANCHOR, line, column)
        builder.report(_ANCHOR, line, column)
        if isinstance(event, yaml.AliasEvent):  # nothing stands for what it names, so that a document cannot grow
            builder.scalar(None, line, column)
            return
    if event.tag is not None:
        builder.report(_TAG, line, column)
    if not isinstance(event, yaml.ScalarEvent):
        builder.open({} if isinstance(event, yaml.MappingStartEvent) else [], line, column)
        return
    value: Scalar = event.value if event.style or event.tag else _resolve_scalar(builder, event)
    if builder.expects_key:
        fault = None if isinstance(value, str) else ("wrong-type", f"the key `{event.value[:60]}` is not text", "put it in quotes")
        builder.key(event.value, line, column, fault)
    else:
        builder.scalar(value, line, column)


def _resolve_scalar(builder: TreeBuilder, event: Any) -> Scalar:
    try:
        return core_value(event.value)
    except ValueError:  # an integer with thousands of digits
        fault = ("too-large", "a number has thousands of digits", "write it as text, in quotes")
        raise builder.unreadable(fault, *_position(event)) from None


def core_value(text: str) -> Scalar:
    """Return the value of the plain scalar `text` in YAML 1.2. Raises ValueError for an integer with thousands of digits."""
    first = text[:1]
    if first.isalpha() and first not in "nNtTfF":  # most scalars are words
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _PREFIXED_INTEGER.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def _syntax_error(builder: TreeBuilder, error: yaml.YAMLError, text: str) -> UnreadableError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        if "maximum nesting depth" in reason:  # the limit of libyaml itself, since PyYAML 6.0.4, which reads ahead of the events
            return builder.unreadable(TOO_DEEP, line, column)
    else:
        found = _UNPRINTABLE.search(text)
        before = text[: found.start()] if found else ""
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        reason = f"the character U+{ord(found.group()):04X} is not allowed in a text file" if found else "the text cannot be read"
    return builder.unreadable(("syntax", f"not YAML: {reason}", _hint(text, line, reason)), line, column)


def _hint(text: str, line: int, reason: str) -> str:
    lines = text.splitlines()[max(0, line - 2) : line]
    if any("${{" in written for written in lines):
        return 'put a text with `${{ }}` in quotes: "${{ … }}"'
    if "'\\t'" in reason or any(written.lstrip(" ").startswith("\t") for written in lines):
        return "indent with spaces, not tabs"
    if "mapping values are not allowed" in reason:
        return "put a text with `: ` in quotes"
    return ""


class _Dumper(yaml.CSafeDumper):
    """Writes text so that both YAML 1.1 and 1.2 read it back as text."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True, so that no anchors are written."""
        return True


def _represent_text(dumper: Any, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_scalar_style(text))


def _scalar_style(text: str) -> str | None:
    """Return the scalar style: block for lines, quotes if plain text would be misread, or None for the writer's choice."""
    if "\n" in text:
        is_block_safe = (
            text[0] not in " \n\t" and not _UNPRINTABLE.search(text) and not re.search("[\r\x85\u2028\u2029\ufeff]| \n| $", text)
        )
        return "|" if is_block_safe else '"'
    try:
        return None if isinstance(core_value(text), str) else '"'
    except ValueError:
        return '"'


def _represent_list(dumper: Any, items: list[JsonValue]) -> yaml.SequenceNode:
    """Write a few short values on one line, anything else on a line each."""
    short = all(not isinstance(item, dict | list) and len(str(item)) <= 40 for item in items) and len(str(items)) <= 90
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(Reference, lambda dumper, text: _represent_text(dumper, str.__str__(text)))
_Dumper.add_representer(list, _represent_list)


def write_yaml(document: dict[str, JsonValue]) -> str:
    """Return `document` as YAML in the order of its keys, with lines as block scalars and without escaping any script."""
    text: str = yaml.dump(document, Dumper=_Dumper, allow_unicode=True, sort_keys=False, default_flow_style=False, width=2**31 - 1)
    return text
