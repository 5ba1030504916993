"""`plan preview`."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.servers import location_line, secret_locations, with_known_variables
from plan_adapter.cli.sources import input_texts, open_store, plan_of, policy_of_store, resume_options_of, tools_of
from plan_adapter.execution.history import ResumeOptions, RunHistory, Unit
from plan_adapter.gates.approval import requires_approval
from plan_adapter.gates.freezes import freeze_json, freeze_line, shown_freezes
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.readable import item_number, listed
from plan_adapter.model.status import StepStatus
from plan_adapter.runs.folders import refuse_elsewhere
from plan_adapter.text.commands import MAX_NAMES, unit_names
from plan_adapter.text.preview import Preview, preview_plan, preview_text
from plan_adapter.validation import ValidatedPlan, bind_inputs, validate

if TYPE_CHECKING:
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.model.record import PlanRun


def preview(
    plan: str | None = None,
    /,
    *,
    input: list[str] | None = None,
    inputs: Path | None = None,
    tools: list[str] | None = None,
    resume: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    only_failed: bool = False,
    skip: list[str] | None = None,
    note: str = "",
    json: bool = False,
) -> int:
    """Show what a run would do, without running anything: order, parallel waves, parameters, retries, effects, longest duration.

    For each secret it shows where the value would come from, or that it is missing. It shows the change freezes of the store's policy that
    are in force for the plan or start within two weeks. Expressions that need a result or a missing input are
    shown as written.

    Args:
        plan: A plan document, `-` for stdin, `git:REVISION:FILE`, or a stored plan: its name, `name@version` or digest.
        input: `name=value`, an input of the run; may be repeated.
        inputs: A JSON or YAML file of inputs; `--input` overrides it.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        resume: The id of a run, instead of a plan: show what `plan resume` would do with each of its steps and items.
        from_: With `--resume`: run only this step and the steps that depend on it.
        only_failed: With `--resume`: run only the steps that failed and the steps that depend on them.
        skip: With `--resume`: skip this step from now on; may be repeated.
        note: With `--skip`: why.
        json: Print one JSON object.
    """
    options = resume_options_of(from_, only_failed=only_failed, skip=skip or [], note=note)
    if resume is not None:
        if plan is not None or input or inputs is not None:
            raise UsageError("give a plan with its inputs, or --resume with the id of a run")
        return asyncio.run(_preview_resume(resume, options, tools=tools or [], as_json=json))
    if plan is None or options is not None:
        raise UsageError("give a plan, or --resume with the id of a run")
    given = input_texts(input or [], inputs)
    validated = validate(asyncio.run(plan_of(plan)), tools_of(tools or []))
    policy = asyncio.run(policy_of_store(Settings()))
    shown = _preview_run(validated, given, policy)
    locations = secret_locations(shown.secrets, Settings())
    applying = [freeze for freeze in policy.stored.freezes if freeze.applies_to(validated.plan)]
    freezes = shown_freezes(applying, datetime.now(UTC))
    if json:
        creators = validated.created_secrets.creators
        places = [asdict(location) | {"created_by": list(creators.get(location.name, ()))} for location in locations]
        more = {"secret_places": places, "freezes": [freeze_json(freeze, in_force=now) for freeze, now in freezes]}
        output.json_line("preview", {**shown.as_json(), **more})
    else:
        output.markdown(preview_text(shown).rstrip("\n"))
        if freezes:
            lines = [f"- {freeze_line(freeze, in_force=now)}" for freeze, now in freezes]
            output.markdown("\n".join(["", "## Change freezes", "", *lines]))
        if locations:
            output.markdown("\n".join(["", "## Secrets", "", *(f"- {location_line(location, validated)}" for location in locations)]))
    return ExitCode.DONE


def _preview_run(validated: ValidatedPlan, texts: dict[str, str], policy: EffectivePolicy) -> Preview:
    """Return the preview of a run with these inputs; required ones may be missing. Raises InvalidPlanError for invalid ones."""
    show = partial(preview_plan, requires_approval=requires_approval(validated.plan, policy), gate_effects=policy.gate_effects)
    try:
        inputs = asyncio.run(with_known_variables(validated.plan, texts, Settings()))
        bound = bind_inputs(validated, inputs, from_text=True)
    except InvalidPlanError as error:
        if any(problem.code != "missing-input" for problem in error.problems):
            raise
        missing = tuple(name for name, spec in validated.plan.inputs.items() if spec.default is None and name not in texts)
        return show(validated, inputs=None, approval_digest=None, missing=missing)
    return show(bound.validated, inputs=bound.inputs, approval_digest=bound.approval_digest)


async def _preview_resume(run: str, options: ResumeOptions | None, *, tools: list[str], as_json: bool) -> int:
    """Print what `plan resume` would do with each step, without doing anything. Raises what `plan resume` would raise."""
    # Only for `--resume`: these import SQLAlchemy.
    from plan_adapter.execution.rollback_units import units_to_roll_back
    from plan_adapter.runs.operator_requests import choices_of
    from plan_adapter.runs.plan_approval import end_overdue
    from plan_adapter.runs.resume import refuse_resume, resume_action
    from plan_adapter.runs.run_rollback import roll_back, with_approved_rollbacks
    from plan_adapter.runs.tool_drift import bind_recorded_plan, code_notices, find_changed_tools

    options = options or ResumeOptions()
    async with open_store(Settings()) as store:
        found = await end_overdue(await store.run(run), store)
        recorded = await store.ledger.snapshot(found.id)
        plan, history = recorded.plan, recorded.history
        await refuse_resume(found, store)
        action = resume_action(found, plan, history, recorded.last_reason, commands=recorded.commands, options=options)
        if action is not roll_back:
            refuse_elsewhere(found, Settings())
        bound = bind_recorded_plan(found, plan, tools_of(tools))
        if action is roll_back:
            await with_approved_rollbacks(bound, found, history, store)
            return _print_rollback(found.id, units_to_roll_back(plan, history), history.labels, as_json=as_json)
        validated = bound.validated
        changes, notices = await find_changed_tools(validated, found, store), await code_notices(validated, found, store)
        unknown = {attempt.step_id for attempt in await store.outcomes.unknown(found.id) if attempt.kind == "step"}
    choices = choices_of(found, validated, history, options)
    shown = {step_id: ("unknown" if step_id in unknown and fate.kind == "run" else fate.kind) for step_id, fate in choices.items()}
    items = {step_id: _item_fates(plan, found, step_id, history) for step_id, fate in choices.items() if fate.kind == "run"}
    if as_json:
        steps = [
            {
                "id": step_id,
                "fate": kind,
                "reason": choices[step_id].reason or None,
                "items": [{**asdict(item), "item": item_number(item.item)} for item in items.get(step_id, ())],
            }
            for step_id, kind in shown.items()
        ]
        output.json_line(
            "resume_preview", {"run_id": found.id, "steps": steps, "tools": [asdict(change) for change in changes], "code": notices}
        )
        return ExitCode.DONE
    rows = [(step_id, _FATE_TEXTS[kind] + _reason_suffix(choices[step_id].reason)) for step_id, kind in shown.items()]
    output.table(("STEP", "ON RESUME"), rows)
    for step_id, fates in items.items():
        for kind, heading in _ITEM_FATE_TEXTS.items():
            if names := [item.label or str(item.item + 1) for item in fates if item.fate == kind]:
                output.line(f"{step_id}: {heading}: {listed(names, MAX_NAMES)}")
    for change in changes:
        output.line(f"the gate opens again first: tool `{change.name}` has changed since it was approved ({change.summary})")
    for notice in notices:
        output.line(notice)
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class ItemFate:
    """What a resume does with one item of a step's `for_each`."""

    item: int
    label: str | None  # None: the item is called by its number
    fate: Literal["carried", "run", "unknown", "rolled_back"]


def _item_fates(plan: "ExecutionPlan", run: "PlanRun", step_id: str, history: "RunHistory") -> list[ItemFate]:
    """Return the fate of each item of a step that runs. Items that depend on a later result are left out."""
    from plan_adapter.execution.items import recorded_items
    from plan_adapter.execution.rollback_units import rolled_back_items

    labels = dict(enumerate(recorded_items(plan, run, step_id)))
    known = [item for name, item in history.attempts if name == step_id and item is not None]
    labels |= {item: history.labels.get((step_id, item)) or labels.get(item) for item in known}
    group = plan.find_step(plan.step(step_id).group or step_id)
    ended = run.step(step_id).items  # of a group
    undone = rolled_back_items(group, plan, history) if group is not None and group.is_group else ()

    def fate_of(item: int) -> Literal["carried", "run", "unknown", "rolled_back"]:
        unit = (step_id, item)
        if item in undone:
            return "rolled_back"
        if item < len(ended) and ended[item].status is StepStatus.COMPLETED:
            return "carried"
        return "carried" if unit in history.succeeded else "unknown" if unit in history.unknown else "run"

    return [ItemFate(item, labels[item], fate_of(item)) for item in sorted(labels)]


def _print_rollback(run_id: str, left: "list[Unit]", labels: "Mapping[Unit, str]", *, as_json: bool) -> int:
    if as_json:
        output.json_line(
            "resume_preview",
            {"run_id": run_id, "steps": [], "rollback": [{"id": step_id, "item": item_number(item)} for step_id, item in left]},
        )
    else:
        targets = ", ".join(unit_names(left, labels))
        rest = f"continues with {targets}" if targets else "has nothing left to undo"
        output.line(f"the run is being rolled back: no step runs, and the rollback {rest}")
    return ExitCode.DONE


_FATE_TEXTS = {
    "carried": "kept: it has succeeded",
    "run": "run, if its condition and its dependencies allow it",
    "skipped": "skipped; the steps that depend on it still run",
    "left": "left for a later resume, with the steps that depend on it",
    "unknown": "outcome unknown: its tool's probe, the form, the terminal or `plan resolve` settles it first",
}


_ITEM_FATE_TEXTS = {
    "carried": "items kept",
    "unknown": "items whose outcome is unknown",
    "rolled_back": "items that failed and are rolled back",
    "run": "items that run",
}


def _reason_suffix(reason: str) -> str:
    return f": {reason}" if reason else ""
