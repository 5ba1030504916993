"""`plan promote`."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.drafting import Destination
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import version_json
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import StoreError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import moment
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.runbooks.promote import Promotion
from plan_adapter.runbooks.promote import promote as promote_run

if TYPE_CHECKING:
    from plan_adapter.model.record import PlanRun
    from plan_adapter.store.store import PlanStore

MAX_COMPARED_PLANS = 20
"""How many other versions of the plan are compared, newest first."""


async def promote(
    run: str,
    /,
    *,
    name: str | None = None,
    without: list[str] | None = None,
    save: bool = False,
    out: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: bool = False,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Turn a good run into a runbook: its plan, with inputs in place of what varies, for you to edit.

    It proposes an input for each literal that differs between versions or runs of the plan, that looks like a host, path, version, date,
    image tag or address, or that occurs in several places. The literal becomes the input's default, so the runbook does what the run did
    until you give another value. The plan's own inputs stay. Secrets, code and program names are never proposed. A comment beside each
    input says why it is there, and where its value is still written out.

    Args:
        run: The id of a completed run, its beginning or end, `last`, or the id of a flow run. A partial run gives a warning.
        name: The name of the runbook; default: the name of the run's plan.
        without: Leave out this input, and keep its literal. May be repeated.
        save: Store it as the next version of its name, with you as its author.
        out: The file to write: YAML, or JSON, which has no comments, if its name ends in .json; default: stdout.
        force: Overwrite that file.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        json: Print one JSON object: plan, inputs with their reasons and places, notes, and the stored version.
    """
    registry = tools_of(tools or [])
    destination = Destination(out, force=force, tools=tuple(tools or ()))
    if faults := destination.faults():
        raise UsageError("; ".join(faults))
    async with open_store(Settings()) as store:
        source_run = await store.run(run)
        warnings = _warnings(source_run)
        plan = await store.get(source_run.digest)
        others = await _other_plans(source_run, store)
        promotion = promote_run(plan, registry, others=others, name=name, without=without or ())
        saved = await store.save(promotion.plan, author=os_user()) if save else None
    if json:
        output.json_line("promotion", {**_promotion_json(source_run, promotion, warnings), "saved": version_json(saved)})
    if not json or out is not None:
        origin = f"promoted from run {source_run.id}, {source_run.outcome_text}, {moment(source_run.completed_at)}"
        header = f"{origin}; check each input: rename it, or remove it"
        destination.write_plan(promotion.plan, comments={"": header, **promotion.comments})
    for text in (*warnings, *promotion.notes):
        output.note(f"note: {text}")
    _print_next(promotion, without or [], is_saved=saved is not None, is_file=out is not None)
    if saved is not None:
        command = ["plan", "run", f"store:{saved.name}", *(part for given in tools or () for part in ("--tools", given))]
        output.note(f"saved version {saved.version} of {saved.name}, by {saved.author}; next: {shlex.join(command)}")
    return ExitCode.DONE


def _warnings(run: "PlanRun") -> list[str]:
    """Return warnings about the run. Raises UsageError if it did not complete."""
    if run.status is PlanStatus.COMPLETED:
        return []
    if run.status is not PlanStatus.PARTIAL:
        raise UsageError(
            f"run {run.id} is {run.outcome_text}: only a completed run becomes a runbook", hint=f"`plan show {run.id}` shows why"
        )
    steps = ", ".join(step.id for step in run.steps if step.status is not StepStatus.COMPLETED)
    return [f"run {run.id} is only partial; nothing proves that these steps work: {steps}"]


async def _other_plans(run: "PlanRun", store: "PlanStore") -> list[tuple[str, ExecutionPlan]]:
    """Return the newest other plans with the run's name, each with the label of its version or run."""
    known = {run.digest}
    others: list[tuple[str, ExecutionPlan]] = []
    versions = [(f"version {version.version}", version.digest) for version in await store.versions(run.name)]
    runs = [(f"run {other.id}", other.digest) for other in await store.runs(500, names=[run.name])]
    for label, digest in (*versions, *runs):
        if digest in known or len(others) >= MAX_COMPARED_PLANS:
            continue
        known.add(digest)
        try:
            others.append((label, await store.get(digest)))
        except StoreError as error:  # an unreadable version does not stop the command
            output.note(f"note: {label} is not compared: {error}")
    return others


def _promotion_json(run: "PlanRun", promotion: Promotion, warnings: list[str]) -> dict[str, Any]:
    inputs = [
        {"name": proposed.name, **proposed.definition.model_dump(mode="json", exclude_none=True), **_reasons_and_places(asdict(proposed))}
        for proposed in promotion.inputs
    ]
    return {"run_id": run.id, "run": run.id, "plan": promotion.plan.to_document(), "inputs": inputs, "notes": [*warnings, *promotion.notes]}


def _reasons_and_places(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: list(fields[name]) for name in ("reasons", "places", "remains")}


def _print_next(promotion: "Promotion", without: list[str], *, is_saved: bool, is_file: bool) -> None:
    names = ", ".join(proposed.name for proposed in promotion.inputs)
    output.note(f"proposed inputs: {names}" if names else "nothing in the plan seems to vary, so it is unchanged")
    if names:
        output.note("`--without NAME` leaves one out")
    if not (is_saved or is_file):
        output.note("next: write it to a file (`--output FILE`), edit it, and `plan import FILE --save` stores it as a version")
