"""What a person asks for when a run goes on, and what would become of its steps."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.execution.carry import Unit
    from plan_adapter.execution.redrive import Redrive


def asked_for(from_step: str | None, *, only_failed: bool, skip: list[str], because: str) -> "Redrive | None":
    """Return what the options ask for, None where they ask for nothing special; raises UsageError."""
    from plan_adapter.execution.redrive import Redrive

    if bool(skip) != bool(because.strip()):
        raise UsageError("--skip STEP and --because WHY go together")
    if from_step is None and not only_failed and not skip:
        return None
    return Redrive(from_step, only_failed, dict.fromkeys(skip, because))


async def preview_resume(run: str, asked: "Redrive | None", *, tools: list[str], as_json: bool) -> int:
    """Print what would become of each step of a run that goes on, without doing anything; raises as `plan resume` would."""
    from plan_adapter.execution.redrive import Redrive
    from plan_adapter.execution.rollback import units_to_undo
    from plan_adapter.runs.approving import end_overdue
    from plan_adapter.runs.folders import refuse_elsewhere
    from plan_adapter.runs.going_on import refuse_resume, work_left
    from plan_adapter.runs.redrive import fates_of
    from plan_adapter.runs.retooling import as_recorded, changes_of_tools, code_notices
    from plan_adapter.runs.rollback import roll_back, with_approved_rollbacks

    asked = asked or Redrive()
    async with open_store(Settings()) as store:
        found = await end_overdue(await store.run(run), store)
        recorded = await store.recorded(found.id)
        plan, past = recorded.plan, recorded.past
        await refuse_resume(found, store)
        work = work_left(found, plan, past, recorded.kept, asked=asked)
        if work is not roll_back:
            refuse_elsewhere(found, Settings())
        bound = as_recorded(found, plan, tools_of(tools))
        if work is roll_back:
            await with_approved_rollbacks(bound, found, past, store)
            return _tell_rollback(found.id, units_to_undo(plan, past), past.labels, as_json=as_json)
        validated = bound.validated
        changes, notices = await changes_of_tools(validated, found, store), await code_notices(validated, found, store)
        unknown = {attempt.step_id for attempt in await store.unknown(found.id)}
    fates = fates_of(found, validated, past, asked)
    shown = {step_id: ("unknown" if step_id in unknown and fate.kind == "run" else fate.kind) for step_id, fate in fates.items()}
    if as_json:
        steps = [{"id": step_id, "fate": kind, "reason": fates[step_id].reason or None} for step_id, kind in shown.items()]
        output.json_line({"run_id": found.id, "steps": steps, "tools": [asdict(change) for change in changes], "code": notices})
        return ExitCode.DONE
    rows = [(step_id, _WORDS[kind] + _because(fates[step_id].reason)) for step_id, kind in shown.items()]
    output.table(("STEP", "WHAT BECOMES OF IT"), rows)
    for change in changes:
        output.line(f"first it is asked about: tool `{change.name}` changed since it was approved ({change.summary})")
    for notice in notices:
        output.line(notice)
    return ExitCode.DONE


def _tell_rollback(run_id: str, left: "list[Unit]", labels: "Mapping[Unit, str]", *, as_json: bool) -> int:
    from plan_adapter.execution.standing import unit_names

    if as_json:
        output.json_line({"run_id": run_id, "steps": [], "rollback": [{"id": step_id, "item": item} for step_id, item in left]})
    else:
        undone = ", ".join(unit_names(left, labels)) or "nothing: it only remains to say so"
        output.line(f"no step goes on, because the run is being rolled back; its rollback goes on, and undoes {undone}")
    return ExitCode.DONE


_WORDS = {
    "carried": "carried: it has succeeded",
    "run": "run, if its condition and its dependencies let it",
    "skipped": "skipped, and what depends on it goes on",
    "left": "left for another time, with what depends on it",
    "unknown": "asked about: whether it was done is unknown (its tool's probe, the form, the terminal or `plan resolve` says it)",
}


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
