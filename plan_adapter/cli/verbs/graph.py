"""`plan graph`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from plan_adapter.cli import output as streams
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.run_view import shapes
from plan_adapter.cli.sources import policy_of_store, tools_of
from plan_adapter.cli.verbs.show import ShownRun, find_plan_or_run
from plan_adapter.gates.approval import gated_steps
from plan_adapter.local.settings import Settings
from plan_adapter.text.pictures import mermaid
from plan_adapter.text.plan_graph import PlanGraph, graph_of, tree_text
from plan_adapter.validation import validate

if TYPE_CHECKING:
    from plan_adapter.model.options import Effect
    from plan_adapter.model.plan import ExecutionPlan


async def graph(
    plan_or_run: str,
    /,
    *,
    format: Literal["tree", "svg", "mermaid"] = "tree",
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: bool = False,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Draw the steps of a plan: what waits for what, what may change something, what asks first; or of a run, with how each step ended.

    Args:
        plan_or_run: A plan, named as for `plan run`, or a run: its id, the beginning or end of it, or `last`.
        format: `tree`, lines for a terminal; `svg`, a picture for a browser or a document; `mermaid`, a flowchart as Mermaid text.
        output: The file to write; default: stdout.
        force: Overwrite that file.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        json: Print the graph as one JSON object, instead of a drawing.
    """
    found = await find_plan_or_run(plan_or_run)
    if isinstance(found, ShownRun):
        plan = found.plan
        drawn = graph_of(plan, _effects(tools or []), run=found.facts)
    else:
        plan, drawn = found, graph_of(found, _effects(tools or []))
    if json:
        streams.json_line("graph", asdict(drawn))
        return ExitCode.DONE
    text = await mermaid_text(plan, tools or []) if format == "mermaid" else _drawn(drawn, format)
    if output is None:
        streams.line(text.rstrip("\n"))
    else:
        with streams.atomic_file(output, overwrite=force) as file:
            file.write(text)
        streams.note(f"wrote {output}")
    return ExitCode.DONE


def _effects(tools: list[str]) -> "dict[str, Effect]":
    return {tool.name: tool.effect for tool in tools_of(tools)}


def _drawn(drawn: PlanGraph, format: Literal["tree", "svg"]) -> str:
    if format == "tree":
        return tree_text(drawn, shapes(is_unicode=streams.is_unicode(sys.stdout)))
    from plan_adapter.text.drawing import graph_svg  # only for pictures

    return graph_svg(drawn)


async def mermaid_text(plan: "ExecutionPlan", tools: list[str]) -> str:
    """Return the flowchart of a valid plan. Raises InvalidPlanError."""
    validated, policy = validate(plan, tools_of(tools)), await policy_of_store(Settings())
    gated = gated_steps(validated, policy)
    effects: dict[str, Effect] = {step_id: validated.effect_of(step_id) for step_id in validated.steps}
    return mermaid(validated.plan.all_steps, validated.edges, effects=effects, gated=gated) + "\n"
