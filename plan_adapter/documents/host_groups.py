"""The hosts of a plan as people write them: with lists and nested groups as in Ansible, or in its INI inventories."""

import re
import shlex
from collections.abc import Iterator

from plan_adapter.documents.nodes import Node, UnreadableError
from plan_adapter.model.inventory import EVERY, MAX_HOSTS
from plan_adapter.model.problems import Problem
from plan_adapter.model.values import join

_RANGE = re.compile(r"\[(\w+):(\w+)(?::(\d+))?\]")
_HEADING = re.compile(r"\[([^\[\]:]+)(?::(vars|children|hosts))?\]\s*(?:[#;].*)?")
_ASSIGNMENT = re.compile(r"([^\s=]+)\s*=\s*(.*)")
_PORT = re.compile(r"(.+):(\d+)")

UNGROUPED = "ungrouped"
"""The group of the hosts that stand before the first heading of an INI file, as Ansible calls it."""


def expand_groups(hosts: Node) -> list[tuple[Node, str, str]]:
    """Rewrite the groups at `hosts` as the model has them: a list of names as hosts without variables, nested groups beside each other.

    Return what cannot be rewritten: the node, its path and a message.
    """
    problems: list[tuple[Node, str, str]] = []
    if isinstance(hosts.value, list):
        hosts.value = {EVERY: Node(hosts.line, hosts.column, {"hosts": Node(hosts.line, hosts.column, hosts.value)})}
    if isinstance(hosts.value, dict):
        found: dict[str, Node] = {}
        _collect(hosts.value, found, problems)
        hosts.value = found
    return problems


def _collect(groups: dict[str, Node], found: dict[str, Node], problems: list[tuple[Node, str, str]]) -> None:
    for name, group in groups.items():
        if group.value is None or isinstance(group.value, list):
            group.value = {} if group.value is None else {"hosts": Node(group.line, group.column, group.value)}
        if not isinstance(group.value, dict):
            found[name] = group
            continue
        if (hosts := group.value.get("hosts")) is not None:
            problems += [(node, join("hosts", name), f"`{node.value}` stands twice in `{name}`") for node in _expand_hosts(hosts)]
        children = group.value.get("children")
        if children is not None and isinstance(children.value, dict):
            inner = children.value
            children.value = [Node(node.line, node.column, child) for child, node in inner.items()]
            _collect(inner, found, problems)
        known = found.get(name)
        found[name] = group if known is None else _merged(known, group)


def _expand_hosts(hosts: Node) -> list[Node]:
    """Rewrite hosts as a mapping of names to variables. Return the members of a list that stand in it twice."""
    twice: list[Node] = []
    if isinstance(hosts.value, list) and all(isinstance(node.value, str) for node in hosts.value):
        names: dict[str, Node] = {}
        for node in hosts.value:
            if str(node.value) in names:
                twice.append(node)
            names[str(node.value)] = Node(node.line, node.column, None)
        hosts.value = names
    if isinstance(hosts.value, dict):
        named = [(name, node) for pattern, node in hosts.value.items() for name in expand_range(pattern)]
        hosts.value = {name: Node(node.line, node.column, {} if node.value is None else node.value) for name, node in named}
    return twice


def _merged(first: Node, second: Node) -> Node:
    """Return a group that is described in two places as one."""
    if not (isinstance(first.value, dict) and isinstance(second.value, dict)):
        return second
    merged = dict(first.value)
    for key, node in second.value.items():
        known = merged.get(key)
        if known is None:
            merged[key] = node
        elif isinstance(known.value, dict) and isinstance(node.value, dict):
            merged[key] = Node(known.line, known.column, {**known.value, **node.value})
        elif isinstance(known.value, list) and isinstance(node.value, list):
            names = {member.value for member in known.value if isinstance(member.value, str)}
            merged[key] = Node(known.line, known.column, [*known.value, *(member for member in node.value if member.value not in names)])
    return Node(first.line, first.column, merged)


def expand_range(pattern: str) -> Iterator[str]:
    """Yield the names that `web-[01:20]` or `node-[a:f]` stands for; else `pattern` itself."""
    if (found := _RANGE.search(pattern)) is None:
        yield pattern
        return
    first, last, step = found[1], found[2], max(1, int(found[3] or 1))
    if first.isdecimal() and last.isdecimal():
        # One more than a plan may have, so that validation sees that there are too many.
        members = [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1, step)[: MAX_HOSTS + 1]]
    elif len(first) == len(last) == 1:
        members = [chr(number) for number in range(ord(first), ord(last) + 1, step)]
    else:
        members = [found[0]]
    for member in members:
        yield from (f"{pattern[: found.start()]}{member}{rest}" for rest in expand_range(pattern[found.end() :]))


def ini_groups(text: str) -> Node:
    """Return the groups of an inventory in Ansible's INI. Raises UnreadableError."""
    groups: dict[str, Node] = {}
    name, kind = UNGROUPED, "hosts"
    for line, written in enumerate(text.splitlines(), start=1):
        stripped = written.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if stripped.startswith("["):
            heading = _HEADING.fullmatch(stripped)
            if heading is None:
                raise _unreadable(line, "this is no heading such as `[web]`, `[web:vars]` or `[web:children]`")
            name, kind = heading[1].strip(), heading[2] or "hosts"
            _part(groups, name, kind, line)
            continue
        part = _part(groups, name, kind, line)
        if kind == "children":
            part[stripped.split("#")[0].strip()] = Node(line, 1, None)
        elif kind == "vars":
            assignment = _ASSIGNMENT.fullmatch(stripped)
            if assignment is None:
                raise _unreadable(line, "a variable is written as `name=value`")
            part[assignment[1]] = _scalar(assignment[2], line)
        else:
            host, variables = _host(stripped, line)
            if host in part:
                raise _unreadable(line, f"`{host}` stands twice in `{name}`")
            part[host] = variables
    return Node(1, 1, groups)


def _part(groups: dict[str, Node], name: str, kind: str, line: int) -> dict[str, Node]:
    """Return the hosts, the variables or the children of a group, which is added."""
    group = groups.setdefault(name, Node(line, 1, {}))
    parts = group.value if isinstance(group.value, dict) else {}
    found = parts.setdefault(kind, Node(line, 1, {}))
    return found.value if isinstance(found.value, dict) else {}


def _host(written: str, line: int) -> tuple[str, Node]:
    """Return the name and the variables of a line such as `web-1:2222 ansible_user=deploy`."""
    try:
        host, *rest = shlex.split(written, comments=True)
    except ValueError as error:
        raise _unreadable(line, f"this is no host with variables: {error}") from None
    variables: dict[str, Node] = {}
    if (found := _PORT.fullmatch(host)) is not None:
        host, variables["ansible_port"] = found[1], Node(line, 1, int(found[2]))
    for word in rest:
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment is None:
            raise _unreadable(line, "a host is followed by variables as `name=value`")
        variables[assignment[1]] = _scalar(assignment[2], line)
    return host, Node(line, 1, variables)


def _scalar(text: str, line: int) -> Node:
    """Return the value of a variable: a number, true or false, or else a text."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return Node(line, 1, text[1:-1])
    if text in ("True", "true", "False", "false"):
        return Node(line, 1, text.lower() == "true")
    if re.fullmatch(r"-?(?:0|[1-9]\d{0,14})", text):
        return Node(line, 1, int(text))
    return Node(line, 1, text)


def _unreadable(line: int, message: str) -> UnreadableError:
    return UnreadableError(Problem("syntax", at="hosts", line=line, column=1, message=message))
