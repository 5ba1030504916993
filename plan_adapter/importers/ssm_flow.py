"""The order of the steps of an Automation document: which follows which, and under which condition."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from plan_adapter.importers.conversion import NotConvertibleError, Report, mapping, members
from plan_adapter.model.graph import topological_order

BRANCH = "aws:branch"
_MOST_ALTERNATIVES = 32

Way: TypeAlias = frozenset[tuple[str, int]]
"""One way to a step: the choices taken on it, each a branch and the number of its choice."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One step that follows another. `choice` is the number of the choice of a branch that leads there."""

    source: str
    target: str
    choice: int | None = None


@dataclass(slots=True)
class StepOrder:
    """The steps that a run can reach, in topological order, with the ways to each."""

    order: list[str]
    edges: list[Edge]
    choices: Mapping[str, int]  # how many ways out each branch has
    _ways: dict[str, frozenset[Way]] = field(default_factory=dict[str, frozenset[Way]])

    def before(self, name: str) -> list[str]:
        """Return the steps right before `name`."""
        return list(dict.fromkeys(edge.source for edge in self.edges if edge.target == name))

    def after(self, name: str) -> list[str]:
        """Return the steps right after `name`."""
        return list(dict.fromkeys(edge.target for edge in self.edges if edge.source == name))

    def ways(self, name: str) -> frozenset[Way]:
        """Return the alternatives under which a run reaches `name`; one without choices means always.

        Raises NotConvertibleError if there are too many.
        """
        if name not in self._ways:
            found = {
                way | ({(edge.source, edge.choice)} if edge.choice is not None else frozenset[tuple[str, int]]())
                for edge in self.edges
                if edge.target == name
                for way in self.ways(edge.source)
            }
            self._ways[name] = self._merge(found) if found else frozenset({Way()})
        return self._ways[name]

    def _merge(self, ways: set[Way]) -> frozenset[Way]:
        """Return `ways` without the choices that do not matter because every choice of their branch leads here."""
        while (shorter := next(self._find_shorter(ways), None)) is not None:
            ways = {way for way in ways if not shorter <= way} | {shorter}
        if len(ways) > _MOST_ALTERNATIVES:
            raise NotConvertibleError(f"its branches lead to one step in more than {_MOST_ALTERNATIVES} ways")
        return frozenset(ways)

    def _find_shorter(self, ways: set[Way]) -> Iterator[Way]:
        for way in sorted(ways, key=sorted):
            for branch, choice in sorted(way):
                rest = way - {(branch, choice)}
                if all(any(other <= rest | {(branch, number)} for other in ways) for number in range(self.choices[branch])):
                    yield rest


def order_of(steps: Sequence[Mapping[str, Any]], report: Report) -> StepOrder:
    """Return the order of `steps`. What a run never reaches without a failure, and jumps back, are reported and left out."""
    names = [str(step["name"]) for step in steps]
    edges = [
        edge for index, step in enumerate(steps) for edge in _edges_from(step, names[index + 1 : index + 2], report) if edge.target in names
    ]
    reached, edges = _find_reachable(names[0], edges, report)
    for step in steps:
        if step["name"] not in reached:
            report.add("left out", "the step, because a run reaches it only after a failure, or never", str(step["name"]))
    graph = {name: [edge.source for edge in edges if edge.target == name] for name in names if name in reached}
    counts = {str(step["name"]): len(list(_edges_from(step, ["-"], Report()))) for step in steps if step.get("action") == BRANCH}
    return StepOrder(topological_order(graph), edges, counts)


def choices_of(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of a branch."""
    return [mapping(choice) for choice in members(mapping(step.get("inputs")).get("Choices"))]


def _edges_from(step: Mapping[str, Any], following: list[str], report: Report) -> Iterator[Edge]:
    name, is_end = str(step["name"]), str(step.get("isEnd", "")).lower() == "true"
    next_step = str(step["nextStep"]) if step.get("nextStep") else following[0] if following else None
    if step.get("action") == BRANCH:
        choices = choices_of(step)
        yield from (Edge(name, str(choice.get("NextStep")), index) for index, choice in enumerate(choices))
        default = mapping(step.get("inputs")).get("Default") or (None if is_end else next_step)
        # The way out if no choice is true counts as a choice even if the run ends there.
        yield Edge(name, str(default), len(choices))
        return
    failure = str(step.get("onFailure", ""))
    if failure.lower().startswith("step:"):
        report.add("left out", f"`onFailure: {failure}`: a failure ends the run; see `plan guide failures` for rollbacks", name)
    if next_step is not None and not is_end:
        yield Edge(name, next_step)


def _find_reachable(start: str, edges: Sequence[Edge], report: Report) -> tuple[set[str], list[Edge]]:
    """Return the steps that can be reached, and the edges between them without those that jump back."""
    after: dict[str, list[Edge]] = {}
    for edge in edges:
        after.setdefault(edge.source, []).append(edge)
    reached, kept, open_steps = {start}, list[Edge](), [start]
    stack = [iter(after.get(start, []))]
    while stack:
        edge = next(stack[-1], None)
        if edge is None:
            stack.pop()
            open_steps.pop()
        elif edge.target in open_steps:
            report.add("left out", f"the jump back to `{edge.target}`: a plan has no loops; use `max_retries` and `done_when`", edge.source)
        else:
            kept.append(edge)
            if edge.target not in reached:
                reached.add(edge.target)
                open_steps.append(edge.target)
                stack.append(iter(after.get(edge.target, [])))
    return reached, kept
