"""`plan logs`."""

import json as json_format
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from plan_adapter.cli import output
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.servers import available_server
from plan_adapter.cli.sources import open_store
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError
from plan_adapter.model.plan import GOAL
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import call_name, counted
from plan_adapter.model.record import PlanRun, Receipt
from plan_adapter.model.rounds import round_text
from plan_adapter.model.status import Outcome

if TYPE_CHECKING:
    from plan_adapter.store.store import PlanStore

STREAMS = ("stdout", "stderr", "output", "body")
"""Fields of a result with the text that a command or a server wrote."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a step wrote, or the run itself if `step` is None."""

    at: datetime
    step: str | None
    text: str


async def logs(run: str, /, step: str | None = None, *, json: bool = False) -> int:
    """Show what the steps of a run printed: from Prefect if it has the logs, otherwise from the results and errors in the store.

    Args:
        run: The id of a run, its beginning or end, or `last`.
        step: Show only this step: `plan logs RUN STEP`, or `--step STEP`.
        json: Print one JSON object per line.
    """
    settings = Settings()
    async with open_store(settings) as store:
        found = await store.run(run)
        if step is not None and step not in [known.id for known in found.steps]:
            raise UsageError(f"run {found.id} has no step `{step}`", hint=did_you_mean(step, [known.id for known in found.steps]))
        lines, source = await _read_lines(found, store, settings)
    shown = [line for line in lines if step is None or _step_id(line) == step]
    for line in shown:
        _print_line(line, as_json=json)
    output.note(f"{counted(len(shown), 'line')} from {source}")
    return ExitCode.DONE


async def _read_lines(run: PlanRun, store: "PlanStore", settings: Settings) -> tuple[list[LogLine], str]:
    if run.flow_run_id is not None:
        try:
            server = await in_daemon_thread(lambda: available_server(settings))
            if server is not None and (found := await _read_prefect_logs(server, run.flow_run_id)):
                return found, f"Prefect at {server.api_url}"
        except NoServerError as error:
            output.note(f"plan: {error}")
    labels = await store.ledger.labels(run.id)
    named = [(receipt, labels.get((receipt.step_id, receipt.item))) for receipt in await store.receipts(run.id)]
    goals = {step.id for step in run.steps if step.tool_name == GOAL}
    lines = [line for receipt, label in named for line in _receipt_lines(receipt, label, goals)]
    return lines, "the receipts of its steps"


async def _read_prefect_logs(server: Server, flow_run_id: str) -> list[LogLine]:
    from plan_adapter.engine.flow_runs import flow_run_logs  # imports Prefect

    with use_server(server):
        return [LogLine(log.at, log.step, log.text) for log in await flow_run_logs(flow_run_id)]


def _receipt_lines(receipt: Receipt, label: str | None, goals: Collection[str]) -> Iterator[LogLine]:
    name = call_name(receipt.step_id, receipt.item, label if receipt.kind in ("step", "rollback") else None, kind=receipt.kind)
    goal_text = round_text(receipt) if receipt.step_id in goals else None
    for text in _result_texts(receipt.result) if goal_text is None else [goal_text]:
        yield LogLine(receipt.ended_at, name, text)
    if receipt.outcome is Outcome.FAILED:
        yield LogLine(receipt.ended_at, name, f"attempt {receipt.number} failed: {receipt.error}")


def _result_texts(result: JsonValue) -> Iterator[str]:
    if result is None:
        return
    streams = [result[name] for name in STREAMS if name in result] if isinstance(result, dict) else []
    written = [stream for stream in streams if isinstance(stream, str)]
    yield from (text for text in written if text) if written else [json_format.dumps(result, ensure_ascii=False)]


def _step_id(line: LogLine) -> str | None:
    return None if line.step is None else line.step.partition("[")[0].rpartition(" ")[2]  # without the kind of the call


def _print_line(line: LogLine, *, as_json: bool) -> None:
    if as_json:
        fields: dict[str, Any] = {"at": line.at, "step": line.step, "text": line.text}
        output.json_line("log_line", fields)
        return
    head = f"{line.at.astimezone():%H:%M:%S} {line.step or '(run)'} | "
    for text in line.text.splitlines() or [""]:
        output.line(head + text)
