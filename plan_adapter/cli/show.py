"""`plan show`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.records import gate_json, run_json
from plan_adapter.cli.sources import STDIN, STORED, is_stored, open_store, plan_of
from plan_adapter.cli.waiting import Standing, standing_of
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.plan import ExecutionPlan


async def show(plan_or_run: str, /, *, json: bool = False) -> int:
    """Show a plan with every dependency, those that references make, too, or a run with its steps, their ends and why, and its approvals.

    Args:
        plan_or_run: A plan document, `-` for stdin, `store:name@version`, the id of a run or its beginning, or a plan's digest.
        json: Print one JSON object; that of a run has its `steps`, open `gates` and `approvals`.
    """
    from plan_adapter.canonical import plan_digest
    from plan_adapter.formatting import format_plan

    found = await _find(plan_or_run)
    if isinstance(found, Standing):
        _show_run(found, as_json=json)
        return ExitCode.DONE
    as_object = _plan_json(found, plan_digest(found))  # a plan whose document has problems has no digest: they are raised
    if json:
        output.json_line(as_object)
    else:
        output.line(format_plan(found).rstrip("\n"))
    return ExitCode.DONE


def _show_run(found: Standing, *, as_json: bool) -> None:
    from plan_adapter.formatting import format_plan

    if as_json:
        gates, answers = [gate_json(gate) for gate in found.gates], [asdict(answer) for answer in found.answers]
        output.json_line({**run_json(found.run, steps=True), "gates": gates, "approvals": answers})
        return
    output.line("\n".join([format_plan(found.run).rstrip("\n"), *found.lines()]))
    if (hint := found.hint()) is not None:
        output.note(hint)


async def _find(word: str) -> "ExecutionPlan | Standing":
    # Ids of runs and digests of plans are both hexadecimal; a file of that name goes before both, a run before a plan.
    from plan_adapter.errors import RunConflictError, StoreError

    if word == STDIN or word.startswith(STORED) or _looks_like_a_file(word):
        return await plan_of(word)
    async with open_store(Settings()) as store:
        try:
            return await standing_of(await store.run(word), store)
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
