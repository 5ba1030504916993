"""`plan audit`."""

import os
import random
import secrets
import shutil
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output as streams
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import names_of_runbook, open_store
from plan_adapter.cli.spans import parse_time
from plan_adapter.cli.verbs.verify import check_run
from plan_adapter.local.settings import Settings
from plan_adapter.model.audited import AuditedRuns, Period
from plan_adapter.model.errors import RunNotFoundError
from plan_adapter.model.readable import moment
from plan_adapter.text.audit_pack import AuditPack, pack_html, pack_json, population_csv, runs_csv, summary_lines

if TYPE_CHECKING:
    from plan_adapter.store.store import PlanStore

MAX_SEED = 2**32


async def audit(
    *,
    from_: Annotated[str, Parameter(name="--from")],
    to: str,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    sample: str = "25",
    seed: int | None = None,
    plan: Annotated[str | None, Parameter(name=("--plan", "--runbook"))] = None,
    no_verify: bool = False,
    force: bool = False,
    json: bool = False,
) -> int:
    """Write the pack that an auditor asks for: who requested, approved and wrote each change of a period, what ran, and what deviated.

    The pack is a folder. `runs.csv` has a row for each run of a random sample, `index.html` shows the same for reading and printing, and
    `population.csv` lists every run that was requested in the period. A cell says `not recorded` where the store does not know.

    Args:
        from_: The first day (`2026-07-01`), or a time (`2026-07-01T18:00`), in your time zone unless it names one.
        to: The last day, to its end, or a time.
        output: The folder to write, readable only by you. It must be new or empty.
        sample: How many runs to draw at random; `all` or 0 for every run.
        seed: The seed of the sample, to draw the same one again; default: a new one, which is shown.
        plan: Only runs of plans with this name, also as Prefect shows it.
        no_verify: Do not check the record of each run of the sample as `plan verify` does; the pack then says `not checked`.
        force: Write into a folder that has files, and overwrite the files of an earlier pack.
        json: Print one JSON object: the counts, the seed, and each run of the sample with its deviations.
    """
    period, size, settings = _period(from_, to), _sample_size(sample), Settings()
    _refuse_folder(output, force=force)
    drawn = secrets.randbelow(MAX_SEED) if seed is None else seed

    def choose(run_ids: Sequence[str]) -> Collection[str]:
        return run_ids if size is None or size >= len(run_ids) else random.Random(drawn).sample(run_ids, size)  # noqa: S311

    async with open_store(settings) as store:
        names = None if plan is None else await names_of_runbook(plan, store)
        found = await store.change_records.read(period, names=names, choose=choose)
        if not found.population:
            of_plan = "" if plan is None else f" of `{plan}`"
            raise RunNotFoundError(
                f"no run{of_plan} was requested from {_local(period.since)} to {_local(period.until)}", hint="`plan runs` lists the runs"
            )
        if not no_verify:
            found = await _with_checks(found, store, settings)
        is_whole = len(found.sample) == len(found.population)
        pack = AuditPack(found, None if is_whole else drawn, plan, store.label, await store.now(), _zone(period.since))
    _write(output, {"runs.csv": runs_csv(pack), "population.csv": population_csv(pack), "index.html": pack_html(pack)})
    if json:
        streams.json_line("audit", {**pack_json(pack), "path": output})
        return ExitCode.DONE
    streams.line(f"{_local(period.since)} to {_local(period.until)}" + ("" if plan is None else f", runs of {plan}"))
    for text in summary_lines(pack):
        streams.line(text)
    if is_whole and size is not None:
        streams.note(f"the sample is every run: the period has no more than {size}")
    streams.line(f"wrote {output / 'index.html'}, runs.csv and population.csv")
    return ExitCode.DONE


def _period(since: str, until: str) -> Period:
    period = Period(parse_time(since, option="--from", time_of_day=time.min), parse_time(until, option="--to", time_of_day=time.max))
    if period.since > period.until:
        raise UsageError(f"--from {since} is after --to {until}: give the earlier one as --from")
    return period


def _sample_size(text: str) -> int | None:
    """Return how many runs to draw, None for all."""
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--sample {text}: write a number of runs, or `all`")
    return int(text) or None


def _local(at: datetime) -> str:
    """Return a moment in the local time zone, with that zone."""
    return f"{moment(at)} {_zone(at)}"


def _zone(at: datetime) -> str:
    local = at.astimezone()
    return "UTC" if local.tzname() == "UTC" else f"{local.tzname()} (UTC{local.isoformat()[-6:]})"


async def _with_checks(found: AuditedRuns, store: "PlanStore", settings: Settings) -> AuditedRuns:
    policy = await store.policy.effective(settings)
    checked = [replace(record, check=await check_run(record.run.id, store, policy)) for record in found.sample]
    return replace(found, sample=checked)


def _refuse_folder(folder: Path, *, force: bool) -> None:
    """Raise UsageError if the pack cannot become `folder`."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: give the name of a folder")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: give another name, or --force")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files into `folder`, all of them or none. Raises UsageError if they cannot be written."""
    try:
        with _temporary_folder(folder) as made:
            for name, text in files.items():
                with streams.atomic_file(made / name, private=True) as file:
                    file.write(text)
            if folder.is_dir():
                for name in files:
                    (made / name).replace(folder / name)
            else:
                made.replace(folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from error


@contextmanager
def _temporary_folder(folder: Path) -> Generator[Path]:
    """Yield a new folder beside `folder`, and remove it if it is still there afterwards."""
    made = folder.absolute().parent / f".{folder.absolute().name}.{os.getpid()}"
    made.mkdir(mode=0o700)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
