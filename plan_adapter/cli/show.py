"""`plan show`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.records import run_json
from plan_adapter.cli.sources import STDIN, STORED, is_stored, open_store, plan_of
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.plan import ExecutionPlan
    from plan_adapter.record import PlanRun


async def show(plan_or_run: str, /, *, json: bool = False) -> int:
    """Show a plan with every dependency, those that references make included, or a run with its steps, their ends and why.

    Args:
        plan_or_run: A plan document, `-` for stdin, `store:name@version`, the id of a run or its beginning, or a plan's digest.
        json: Print one JSON object; that of a run has its `steps`.
    """
    from plan_adapter.canonical import plan_digest
    from plan_adapter.formatting import format_plan
    from plan_adapter.record import PlanRun

    found = await _find(plan_or_run)
    as_object = run_json(found, steps=True) if isinstance(found, PlanRun) else _plan_json(found, plan_digest(found))
    if json:
        output.json_line(as_object)
    else:
        output.line(format_plan(found).rstrip("\n"))
    return ExitCode.DONE


async def _find(word: str) -> "ExecutionPlan | PlanRun":
    # Ids of runs and digests of plans are both hexadecimal; a file of that name goes before both, a run before a plan.
    from plan_adapter.errors import RunConflictError, StoreError

    if word == STDIN or word.startswith(STORED) or _looks_like_a_file(word):
        return await plan_of(word)
    async with open_store(Settings()) as store:
        try:
            return await store.run(word)
        except RunConflictError as no_run:
            if not is_stored(word):
                raise UsageError(f"`{word}` is no file, and {no_run}") from no_run
            try:
                return await plan_of(word, store)
            except StoreError as no_plan:
                raise UsageError(f"{no_run}; {no_plan}") from no_plan


def _looks_like_a_file(word: str) -> bool:
    return Path(word).suffix != "" or "/" in word or Path(word).exists()


def _plan_json(plan: "ExecutionPlan", digest: str) -> dict[str, Any]:
    from plan_adapter.formatting import dependencies_of

    steps: list[dict[str, Any]] = []
    for step, after in zip(plan.steps, dependencies_of(plan).values(), strict=True):
        written = step.model_dump(mode="json", exclude_defaults=True)
        steps.append({**written, "depends_on": list(after.all), "implied_by_reference": list(after.implied)})
    return {"digest": digest, **plan.to_document(), "name": plan.name, "steps": steps}
