"""`graph_of`: the steps of a plan and what they wait for, with how they ended in a run; and `tree_text`, the graph as a tree of lines."""

from collections.abc import Mapping
from dataclasses import dataclass

from plan_adapter.model import graph
from plan_adapter.model.options import Effect
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.readable import listed, one_line
from plan_adapter.text.formatting import dependencies_of
from plan_adapter.text.gate_text import effect_shown
from plan_adapter.text.run_facts import SHAPES, ItemFacts, Mark, RunFacts, StepFacts

FINAL_LABEL = "always, at the end"
"""What stands above the steps of `finally`."""

SHOWN_DEPENDENCIES = 4
"""How many steps a line of the tree names after `after`."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A step: what it is, what it may change, and in a run how it ended."""

    id: str
    title: str  # its description, else what it calls
    effect: Effect | None  # None: its tool is not known here, or it has none
    asks: bool  # it has a gate of its own
    is_final: bool  # a step of `finally`
    parent: str | None  # the group or the step with a plan around it
    after: tuple[str, ...]  # among its siblings, without what another dependency implies
    mark: Mark | None = None  # None: of a plan
    detail: str = ""  # how it ended
    items: tuple[ItemFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanGraph:
    """A plan, or a run of it, as a graph. Outer steps come before the steps inside them."""

    name: str
    nodes: tuple[GraphNode, ...]

    def inside(self, parent: str | None) -> list[GraphNode]:
        """Return the steps directly inside `parent`; None is the plan itself."""
        return [node for node in self.nodes if node.parent == parent]


def graph_of(plan: ExecutionPlan, effects: Mapping[str, Effect] | None = None, *, run: RunFacts | None = None) -> PlanGraph:
    """Return the graph of `plan`, which need not be valid, with the ends of `run` if it is one of its runs.

    `effects` are those of tools, by name; a step's own effect counts before them.
    """
    finals = {step.id for step in plan.finally_}
    after = dependencies_of(plan)
    ended = {step.id: step for step in run.steps} if run is not None else {}
    nodes = list[GraphNode]()
    for siblings in _levels(plan):
        edges = {step.id: [name for name in after[step.id].all if name in siblings] for step in siblings.values()}
        order = graph.topological_order(edges)
        reduced = graph.transitive_reduction(edges, order)
        for step in siblings.values():
            effect = step.effect or (effects or {}).get(step.tool_name or "")
            nodes.append(
                GraphNode(
                    step.id,
                    one_line(step.description or _called(step)),
                    effect,
                    plan.has_gate(step, None),
                    step.id in finals,
                    step.outer,
                    reduced.get(step.id, ()),
                    *_end_of(ended.get(step.id)),
                )
            )
    return PlanGraph(one_line(plan.name), tuple(nodes))


def _end_of(step: StepFacts | None) -> tuple[Mark | None, str, tuple[ItemFacts, ...]]:
    return (None, "", ()) if step is None else (step.mark, step.detail, step.items)


def _called(step: Step) -> str:
    if step.ask is not None:
        return step.ask.question
    return step.tool_name or step.plan or step.goal or "group"


def _levels(plan: ExecutionPlan) -> list[dict[str, Step]]:
    """Return the steps that are beside each other, by id: of the plan, of `finally`, and of each group and sub-plan."""
    finals = {step.id for step in plan.finally_}
    levels = dict[tuple[str | None, bool], dict[str, Step]]()
    for step in plan.all_steps:
        key = (step.outer, step.id in finals)
        levels.setdefault(key, {})[step.id] = step
    return list(levels.values())


def tree_text(plan_graph: PlanGraph, marks: Mapping[Mark, str] = SHAPES) -> str:
    """Return the graph as a tree of lines: a line for each step, inside its group or plan. `marks` are the shapes of ends in a run."""
    outer = plan_graph.inside(None)
    parts = [[node for node in outer if not node.is_final], [node for node in outer if node.is_final]]
    lines = [plan_graph.name, *_branches(plan_graph, parts[0], "", marks)]
    if parts[1]:
        lines += [FINAL_LABEL, *_branches(plan_graph, parts[1], "", marks)]
    return "\n".join(lines) + "\n"


def _branches(plan_graph: PlanGraph, nodes: list[GraphNode], prefix: str, marks: Mapping[Mark, str]) -> list[str]:
    lines = list[str]()
    for number, node in enumerate(nodes, start=1):
        is_last = number == len(nodes)
        lines.append(f"{prefix}{'└─ ' if is_last else '├─ '}{_line_of(node, nodes[number - 2] if number > 1 else None, marks)}")
        below = f"{prefix}{'   ' if is_last else '│  '}"
        if node.items:
            lines += [f"{below}{_item_line(item, marks)}" for item in node.items]
        else:
            lines += _branches(plan_graph, plan_graph.inside(node.id), below, marks)
    return lines


def _line_of(node: GraphNode, previous: GraphNode | None, marks: Mapping[Mark, str]) -> str:
    mark = f"{marks[node.mark]} " if node.mark is not None else ""
    facts = [*([effect_shown(node.effect).replace("*", "")] if node.effect is not None else []), *(["asks"] if node.asks else [])]
    shown = f" ({', '.join(facts)})" if facts else ""
    expected = () if previous is None else (previous.id,)
    after = "" if node.after == expected else f", after {listed(node.after, SHOWN_DEPENDENCIES)}" if node.after else ", at once"
    return f"{mark}{node.id}: {node.detail or node.title}{shown}{after if previous is not None else ''}"


def _item_line(item: ItemFacts, marks: Mapping[Mark, str]) -> str:
    return f"{marks[item.mark]} {item.label}  {item.text(marks)}".rstrip()
