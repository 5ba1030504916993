"""A document as a tree of located nodes, built from the values that a YAML or JSON reader finds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import JsonValue

from plan_adapter.model.problems import Problem
from plan_adapter.model.values import MAX_DEPTH, TOO_DEEP, Fault, join, key_fault, normalize, scalar_fault

MAX_NODES = 1_000_000
"""The most values in one document. 10,000 steps need about 150,000."""

Scalar: TypeAlias = str | int | float | bool | None


@dataclass(slots=True, eq=False)
class Node:
    """A value and its position, from 1. An entry of a mapping is located at its key, a member of a list at its start."""

    line: int
    column: int
    value: "dict[str, Node] | list[Node] | Scalar"

    def plain(self) -> JsonValue:
        """Return the value without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def find(self, at: str) -> "Node":
        """Return the node at the path `at`, or its nearest parent."""
        node = self
        while at:
            child = node._child(at)
            if child is None:
                return node
            node, at = child
        return node

    def _child(self, at: str) -> "tuple[Node, str] | None":
        """Return the entry that `at` starts with, and the rest of the path. Keys may contain dots and brackets."""
        if isinstance(self.value, list):
            number, closed, rest = at.removeprefix("[").partition("]")
            known = closed and number.isdecimal() and int(number) < len(self.value)
            return (self.value[int(number)], rest) if known else None
        if not isinstance(self.value, dict):
            return None
        at = at.removeprefix(".")
        keys = (at[:end] for end in _key_ends(at))
        key = next((key for key in keys if key in self.value), None)
        return None if key is None else (self.value[key], at[len(key) :])


def _key_ends(at: str) -> Iterator[int]:
    """Yield every position where the first key of `at` may end, the longest first."""
    yield len(at)
    yield from (index for index in range(len(at) - 1, 0, -1) if at[index] in ".[")


class UnreadableError(Exception):
    """The rest of the text cannot be read. `problem` says where and why."""

    def __init__(self, problem: Problem) -> None:
        """Store `problem`."""
        super().__init__(problem.message)
        self.problem = problem


@dataclass(slots=True)
class _OpenContainer:
    """A list or mapping that has not ended yet."""

    node: Node
    name: str | int | None = None  # its key or index in its parent
    key: str | None = None  # in a mapping: the key of the next value
    line: int = 0
    column: int = 0


@dataclass(slots=True)
class TreeBuilder:
    """Builds a tree from values in text order. Problems that do not end the reading collect in `problems`."""

    problems: list[Problem] = field(default_factory=list[Problem])
    root: Node | None = None
    _open: list[_OpenContainer] = field(default_factory=list[_OpenContainer])
    _count: int = 0

    @property
    def expects_key(self) -> bool:
        """Whether the next scalar is a mapping's key."""
        return bool(self._open) and self._open[-1].key is None and type(self._open[-1].node.value) is dict

    def key(self, key: str, line: int, column: int, fault: Fault | None = None) -> None:
        """Add the key of the next entry. `fault` is the reader's objection to it."""
        top = self._open[-1]
        top.key, top.line, top.column = key, line, column
        if fault := fault or key_fault(key):
            self.report(fault, line, column)

    def scalar(self, value: Scalar, line: int, column: int) -> None:
        """Add a value that is neither list nor mapping. An invalid one is reported and becomes null."""
        if fault := scalar_fault(value):
            self.report(fault, line, column)
            value = None
        self._add(Node(line, column, normalize(value)))

    def open(self, container: dict[str, Node] | list[Node], line: int, column: int) -> None:
        """Start the empty `container`."""
        if self.expects_key:
            raise self.unreadable(("wrong-type", "a key must be text, not a list or mapping", "put it in quotes"), line, column)
        if len(self._open) >= MAX_DEPTH:
            raise self.unreadable(TOO_DEEP, line, column)
        node = Node(line, column, container)
        name = self._next_name()
        self._add(node)
        self._open.append(_OpenContainer(node, name))

    def close(self) -> None:
        """End the container opened last."""
        self._open.pop()

    def path(self) -> str:
        """Return the path of the next value, or of the open container if a key comes next."""
        at = ""
        for name in (*(opened.name for opened in self._open), self._next_name()):
            at = at if name is None else join(at, name)
        return at

    def _next_name(self) -> str | int | None:
        if not self._open:
            return None
        container = self._open[-1].node.value
        return len(container) if isinstance(container, list) else self._open[-1].key

    def report(self, fault: Fault, line: int, column: int) -> None:
        """Add a problem with the next value. An entry of a mapping is located at its key."""
        top = self._open[-1] if self._open else None
        if top is not None and top.key is not None:
            line, column = top.line, top.column
        code, message, hint = fault
        self.problems.append(Problem(code, at=self.path(), line=line, column=column, message=message, hint=hint))

    def unreadable(self, fault: Fault, line: int, column: int) -> UnreadableError:
        """Return the error that ends the reading here."""
        code, message, hint = fault
        return UnreadableError(Problem(code, at=shorten_path(self.path()), line=line, column=column, message=message, hint=hint))

    def _add(self, node: Node) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise self.unreadable(("too-large", f"more than {MAX_NODES:,} values", "split the plan"), node.line, node.column)
        if not self._open:
            self.root = node
            return
        top = self._open[-1]
        container = top.node.value
        if isinstance(container, list):
            container.append(node)
        elif isinstance(container, dict) and top.key is not None:
            node.line, node.column = top.line, top.column
            if top.key in container:
                fault = ("duplicate-key", f"`{top.key[:60]}` is written twice in one mapping", "remove one of them")
                self.report(fault, node.line, node.column)
            else:
                container[top.key] = node
            top.key = None


def shorten_path(at: str) -> str:
    """Return `at`, with the middle left out if it is very long."""
    return at if len(at) <= 120 else f"{at[:60]}…{at[-30:]}"
