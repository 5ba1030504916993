"""`HostGroup` and `Inventory`: the hosts of a plan, in groups with variables, and the lists that `hosts('web:!web-3')` gives.

The structure, the patterns and the precedence of variables are those of Ansible.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import ClassVar

from pydantic import Field, JsonValue

from plan_adapter.model.options import Input, PlanPart
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.values import Unknown

ON = "on"
"""The input of a plan with hosts that says on which of them a run works."""

EVERY = "all"
"""The group of all hosts."""

MAX_HOSTS = 10_000

ON_INPUT = Input(
    default=EVERY, example="web:!web-3", description="The hosts of this run: names and groups, as in `web-1,web-2` or `web:!web-3`."
)

_NAME = re.compile(r"\w[\w.-]*")
_NUMBER = re.compile(r"(\d+)")
_CONNECTION: Mapping[str, tuple[str, ...]] = {
    "host": ("host", "ansible_host", "ansible_ssh_host"),
    "user": ("user", "ansible_user", "ansible_ssh_user"),
    "port": ("port", "ansible_port", "ansible_ssh_port"),
    "jump": ("jump",),
}
"""The variables that say how to connect to a host, by the member of the host that has their value."""


class HostGroup(PlanPart):
    """Some hosts of a plan, and variables for all of them."""

    noun: ClassVar[str] = "a group of hosts"

    hosts: dict[str, dict[str, JsonValue]] = Field(default_factory=dict, description="The hosts, by name, each with its variables.")
    children: list[str] = Field(default_factory=list, description="The groups whose hosts belong to this group as well.")
    vars: dict[str, JsonValue] = Field(default_factory=dict, description="Variables of every host of the group.")


class PatternError(ValueError):
    """A pattern cannot be read, or names what does not exist. `hint` says what to write."""

    def __init__(self, message: str, hint: str = "") -> None:
        """Store `hint`."""
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Inventory:
    """The hosts of a plan, by group. Groups without a parent belong to `all`."""

    groups: Mapping[str, HostGroup]

    @cached_property
    def members(self) -> Mapping[str, frozenset[str]]:
        """The names of the hosts of each group, with those of the groups inside it. `all` has every host."""
        found = {name: self._members_of(name, frozenset()) for name in self.groups}
        return {**found, EVERY: frozenset(host for hosts in found.values() for host in hosts)}

    def _members_of(self, name: str, around: frozenset[str]) -> frozenset[str]:
        group = self.groups.get(name)
        if group is None or name in around:
            return frozenset()
        inner = (self._members_of(child, around | {name}) for child in group.children)
        return frozenset(group.hosts).union(*inner)

    @cached_property
    def _inside(self) -> Mapping[str, frozenset[str]]:
        """The names of all groups inside each group."""
        return {name: self._groups_inside(name, frozenset()) for name in self.groups}

    def _groups_inside(self, name: str, around: frozenset[str]) -> frozenset[str]:
        group = self.groups.get(name)
        if group is None or name in around:
            return frozenset()
        return frozenset(group.children).union(*(self._groups_inside(child, around | {name}) for child in group.children))

    def find_loop(self) -> list[str]:
        """Return the names of groups that contain each other in a circle, the first one also as the last. Empty without a circle."""
        done = set[str]()
        for name in self.groups:
            if found := self._loop_from(name, (), done):
                return found
        return []

    def _loop_from(self, name: str, around: tuple[str, ...], done: set[str]) -> list[str]:
        if name in around:
            return [*around[around.index(name) :], name]
        group = self.groups.get(name)
        if group is None or name in done:
            return []
        for child in group.children:
            if found := self._loop_from(child, (*around, name), done):
                return found
        done.add(name)
        return []

    def conflicts(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield each variable to which two groups give different values for one host, unless one is inside the other or the host has one.

        A conflict is a host, a variable and two groups.
        """
        for host in sorted(self.members[EVERY], key=_natural):
            given: dict[str, str] = {}
            for name in filter(EVERY.__ne__, self._groups_of(host)):
                for variable, value in self.groups[name].vars.items():
                    other = given.setdefault(variable, name)
                    differs = self.groups[other].vars[variable] != value
                    if differs and name not in self._inside[other] and variable not in self._own_variables(host):
                        yield host, variable, other, name

    def _groups_of(self, host: str) -> list[str]:
        """Return the groups that a host belongs to, those around others first."""
        names = [name for name in self.groups if host in self.members[name]]
        return sorted(names, key=lambda name: (name != EVERY, sum(name in self._inside[other] for other in names), name))

    def _own_variables(self, host: str) -> dict[str, JsonValue]:
        found: dict[str, JsonValue] = {}
        for group in self.groups.values():
            found |= group.hosts.get(host, {})
        return found

    @cached_property
    def hosts(self) -> Mapping[str, dict[str, JsonValue]]:
        """Each host as expressions see it, by name: {name, host, user, port, jump, groups, vars}. The order is that of the names."""
        return {name: self._host(name) for name in sorted(self.members[EVERY], key=_natural)}

    def _host(self, name: str) -> dict[str, JsonValue]:
        groups, variables = self._groups_of(name), dict[str, JsonValue]()
        for group in groups:
            variables |= self.groups[group].vars
        variables |= self._own_variables(name)
        connection: dict[str, JsonValue] = {
            member: next((variables[variable] for variable in spellings if variable in variables), None)
            for member, spellings in _CONNECTION.items()
        }
        hidden = {variable for spellings in _CONNECTION.values() for variable in spellings}
        shown = {variable: value for variable, value in variables.items() if variable not in hidden}
        inside = [group for group in groups if group != EVERY]
        return {"name": name, **connection, "host": connection["host"] or name, "groups": list[JsonValue](sorted(inside)), "vars": shown}

    def select(self, pattern: str) -> list[str]:
        """Return the names of the hosts that `pattern` means, in order: names, groups and `web-*`, with `!` without, with `&` only also in.

        Raises PatternError for what no host or group is called.
        """
        chosen, without, within = set[str](), set[str](), list[frozenset[str]]()
        terms = [term.strip() for term in re.split("[:,]", pattern)]
        if not any(terms):
            raise PatternError("no hosts are named", f"name hosts or groups, such as `{EVERY}`")
        for term in filter(None, terms):
            found = self._named(term.lstrip("!&"))
            if term.startswith("!"):
                without |= found
            elif term.startswith("&"):
                within.append(found)
            else:
                chosen |= found
        if all(term[0] in "!&" for term in terms if term):
            chosen = {*self.members[EVERY]}
        return [name for name in self.hosts if name in chosen - without and all(name in found for found in within)]

    def _named(self, term: str) -> frozenset[str]:
        if (group := self.members.get(term)) is not None:
            return group
        if term in self.hosts:
            return frozenset((term,))
        names = [*self.members, *self.hosts]
        matching = [name for name in names if fnmatchcase(name, term)] if {*term} & {*"*?["} else []
        if not matching:
            raise PatternError(f"no host or group is called `{term[:80]}`", did_you_mean(term, names) or f"there are {_listed(names)}")
        return frozenset(host for name in matching for host in self.members.get(name, (name,)))


@dataclass(frozen=True, slots=True)
class HostLists(Mapping[str, JsonValue]):
    """The list of hosts that each pattern gives in a run, which works on those that `on` selects. If that is unknown, so is each list."""

    inventory: Inventory
    on: str

    def __getitem__(self, pattern: str) -> JsonValue:
        """Return the hosts, each as a mapping. Raises KeyError for a pattern that names what does not exist."""
        if isinstance(self.on, Unknown):
            return Unknown(f"${{{{ hosts('{pattern}') }}}}")
        try:
            chosen = {*self.inventory.select(self.on)}
            return [dict(self.inventory.hosts[name]) for name in self.inventory.select(pattern) if name in chosen]
        except PatternError as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the groups."""
        return iter(self.inventory.members)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.inventory.members)


def is_host_name(name: str) -> bool:
    """Return whether a host or a group can be called `name` in patterns."""
    return bool(_NAME.fullmatch(name))


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Return a key that sorts `web-9` before `web-10`."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in _NUMBER.split(name) if part]


def _listed(names: Iterable[str]) -> str:
    found = [*dict.fromkeys(names)]
    return ", ".join(f"`{name}`" for name in found[:10]) + (", …" if len(found) > 10 else "")
