"""`plan prune`."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.asking import ask_to_confirm, is_at_terminal
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import names_of_runbook, open_store, parse_status
from plan_adapter.cli.spans import parse_span
from plan_adapter.gates.approval import os_user
from plan_adapter.gates.signatures import default_key
from plan_adapter.local.settings import Settings
from plan_adapter.model.readable import counted, moment

if TYPE_CHECKING:
    from plan_adapter.store.retention import OldRun


async def prune(
    *,
    older_than: str,
    runbook: Annotated[str | None, Parameter(name=("--runbook", "--name"))] = None,
    status: str | None = None,
    dry_run: bool = False,
    sign: bool = False,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Delete the records and result files of runs that ended long ago. Plans and their versions stay.

    Kept are runs that are executing, interrupted or waiting; runs with an unknown outcome, an approval that a resume could still use, or a
    standing approval that counts its runs; and runs whose record does not verify. If a policy or plan names operators, only they can
    prune.

    Each deleted run leaves a tombstone: its id, plan, status and the digests of its audit log, who deleted it and when. `plan verify`
    shows and checks it. You can interrupt the command and repeat it.

    Args:
        older_than: How long ago a run must have ended: `90d`; s, m, h, d and w are seconds, minutes, hours, days, weeks.
        runbook: Delete only runs of plans with this name, also as Prefect shows it.
        status: Delete only runs with this status: completed, failed, cancelled or partial.
        dry_run: List what would be deleted, and delete nothing.
        sign: Sign the newest tombstone with your SSH key. The signature covers all tombstones before it.
        yes: Do not ask first.
        json: Print one JSON object per run, with why it was kept, if it was.
    """
    from plan_adapter.runs.prune import find_old_runs, prune_runs, remove_results, sign_tombstones  # imports SQLAlchemy

    settings, age, account = Settings(), parse_span(older_than, option="--older-than"), os_user()
    if not (yes or dry_run or (is_at_terminal() and not json)):
        raise UsageError("`plan prune` deletes records: add --yes, or --dry-run to see which")
    key = default_key(settings) if sign else None  # before anything is deleted
    async with open_store(settings) as store:
        names = None if runbook is None else await names_of_runbook(runbook, store)
        found = await find_old_runs(age, store=store, settings=settings, by=account, names=names, status=parse_status(status))
        processed = [run for run in found if run.kept is not None]
        deletable = len(found) - len(processed)
        if dry_run:
            _print_runs(found, as_json=json)
            output.note(_summary("would delete", found))
            return ExitCode.DONE
        if deletable and not yes and not await ask_to_confirm(f"Delete the records of {counted(deletable, 'run')}?"):
            output.note("nothing was deleted")
            return ExitCode.DONE
        async for batch in prune_runs(found, age, store=store, by=account):
            processed += batch
        signed = 0 if key is None else await sign_tombstones(key, store=store, settings=settings, by=account)
        folders = await remove_results(store, settings.results_path)
    if json:
        _print_runs(processed, as_json=True)
    results = f"; removed the result files of {counted(folders, 'run')}" if folders else ""
    output.note(_summary("deleted", processed) + results + (f"; signed the tombstones up to number {signed}" if signed else ""))
    return ExitCode.DONE


def _print_runs(runs: "Iterable[OldRun]", *, as_json: bool) -> None:
    if as_json:
        for run in runs:
            output.json_line("pruned_run", {**asdict(run), "plan_digest": run.digest})
        return
    output.table(
        ("RUN", "PLAN", "STATUS", "ENDED", "KEPT"), [(run.id, run.name, run.status, moment(run.ended_at), run.kept or "-") for run in runs]
    )


def _summary(verb: str, runs: "list[OldRun]") -> str:
    reasons = Counter(run.kept for run in runs if run.kept is not None)
    kept = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    deleted = counted(len(runs) - reasons.total(), "record")
    return f"{verb} {deleted}" + (f"; kept {reasons.total()}: {kept}" if kept else "")
