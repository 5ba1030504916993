"""`plan report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output as streams
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.cli.verbs.show import ShownRun, account_of, find_plan_or_run
from plan_adapter.local.settings import Settings
from plan_adapter.text.drawing import graph_svg
from plan_adapter.text.plan_graph import graph_of
from plan_adapter.text.report import RunReport, report_html
from plan_adapter.text.timeline import timeline_of, timeline_svg

if TYPE_CHECKING:
    from plan_adapter.store.store import PlanStore


async def report(
    run: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: bool = False,
    json: bool = False,
) -> int:
    """Write a report of a run: one HTML file that needs no network, to read, print or send.

    It has the outcome, the cause and what is left behind; a picture of the steps; a timeline; approvals and how they were proved; each step
    with its parameters, result and error; and whether the record is unaltered.

    Args:
        run: The id of a run, its beginning or end, or `last`.
        output: The file to write, readable only by you; default: `RUN.html`, with the id of the run.
        force: Overwrite that file.
        json: Print the run and the path of the file as one JSON object.
    """
    found = await find_plan_or_run(run)
    if not isinstance(found, ShownRun):
        raise UsageError(f"`{run}` is a plan: `plan graph` draws it, `plan preview` shows what a run would do")
    path = output or Path(f"{found.state.run.id}.html")
    async with open_store(Settings()) as store:
        text = report_html(await report_of(found, store))
    with streams.atomic_file(path, private=True, overwrite=force) as file:
        file.write(text)
    if json:
        streams.json_line("report", {"run_id": found.state.run.id, "path": path})
    else:
        streams.line(str(path))
    return ExitCode.DONE


async def report_of(found: ShownRun, store: "PlanStore") -> RunReport:
    """Return the content of the report of a run."""
    run, state = found.state.run, found.state
    verification = await store.verify(run.id)
    rows = timeline_of(run, found.attempts, found.receipts, state.all_gates, state.now)
    record = {
        "intact": f"The record is intact: {verification.entries} audit entries, the newest is {verification.digest}.",
        "altered": f"THE RECORD WAS ALTERED: {verification.problem}",
        "not_verifiable": "The record cannot be verified: it has no audit entries.",
    }[verification.verdict]
    return RunReport(
        account=account_of(found),
        record=record,
        digest=run.digest,
        steps=run.steps,
        places={step.id: place for place, step in found.plan.places.items()},
        calls=found.calls,
        rounds=found.rounds,
        picture=graph_svg(graph_of(found.plan, run=found.facts)),
        timeline=timeline_svg(rows),
    )
