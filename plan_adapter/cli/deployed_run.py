"""`plan run NAME --on-server`: starts a deployed runbook, and follows its run from the store."""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.asking import ask_missing_inputs, is_at_terminal
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import ExitCode, code_with_rollbacks
from plan_adapter.cli.foreground import begin_server, choose_display, next_command_of, show_result
from plan_adapter.cli.progress_lines import Display, detach_line
from plan_adapter.cli.servers import worker_command
from plan_adapter.cli.sources import STORE_PREFIX, open_store
from plan_adapter.engine.connection import Server, ui_hint, use_server
from plan_adapter.engine.deployments import DeployedRunbook, Deployer, FlowRunEnd, deployer
from plan_adapter.gates.gate import closing_message
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.hooks import Event, EventKind
from plan_adapter.model.readable import one_line, safe_name
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import RunReason, StepStatus
from plan_adapter.text.commands import resume_command
from plan_adapter.validation.inputs import read_values

if TYPE_CHECKING:
    from pydantic import JsonValue

    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.store.store import PlanStore

POLL_SECONDS = 1.0
"""How often to read the steps of a run. Changes of its gates and its status are noticed at once."""
END_EVENTS: Mapping[StepStatus, EventKind] = {
    StepStatus.COMPLETED: "step_completed",
    StepStatus.FAILED: "step_failed",
    StepStatus.SKIPPED: "step_skipped",
}


async def run_deployed(name: str, given: dict[str, str], *, detach: bool, as_json: bool) -> int:
    """Start the deployment of the runbook `name` and return the exit code of its run; with `detach`, DONE at once."""
    settings = Settings()
    pending = begin_server(settings, offline=False)
    assert pending is not None
    server = await in_daemon_thread(pending.wait)
    async with open_store(settings) as store:
        with use_server(server):
            async with deployer() as client:
                runbook = await client.read_runbook(_deployment_name(name))
                inputs = await _complete_inputs(runbook, await store.get(runbook.digest), given, can_ask=is_at_terminal() and not as_json)
                flow_run_id = await client.start(runbook, inputs)
                _show_start(runbook, flow_run_id, server, detach=detach, as_json=as_json)
                return ExitCode.DONE if detach else await _follow(flow_run_id, client, server, store, as_json=as_json)


def _deployment_name(name: str) -> str:
    """Return the name of the flow and the deployment of the runbook `name`."""
    return safe_name(name.removeprefix(STORE_PREFIX))


async def _complete_inputs(
    runbook: DeployedRunbook, plan: "ExecutionPlan", given: dict[str, str], *, can_ask: bool
) -> "dict[str, JsonValue]":
    """Return the inputs of `given` and those that the user enters. Raises InvalidPlanError."""
    # An input that the deployment sets is not missing.
    known = {name: plan.inputs[name].model_copy(update={"default": value}) for name, value in runbook.inputs.items() if name in plan.inputs}
    plan = plan.model_copy(update={"inputs": {**plan.inputs, **known}})
    texts = await ask_missing_inputs(plan, given) if can_ask else given
    values, problems = read_values(plan.inputs, texts, from_text=True)
    if problems:
        raise InvalidPlanError(problems)
    return {name: values[name] for name in texts}


def _show_start(runbook: DeployedRunbook, flow_run_id: str, server: Server, *, detach: bool, as_json: bool) -> None:
    url = server.run_url(flow_run_id)
    if as_json and detach:
        output.json_line("flow_run", {"deployment": runbook.name, "deployment_id": runbook.id, "flow_run_id": flow_run_id, "run_url": url})
    elif detach:
        output.line(f"flow run {flow_run_id} of {runbook.name}")
    for line in ui_hint(url) if url is not None else ():
        output.note(line)
    if not runbook.is_attended and runbook.pool is not None:
        command = worker_command(runbook.pool, server)
        output.note(f"no worker has polled the pool `{runbook.pool}` in the last minute: `{command}` starts one")
    elif not runbook.is_attended:
        output.note(f"no process serves `{runbook.name}`: start that process again, or `plan deploy` the runbook to a work pool")


async def _follow(flow_run_id: str, client: Deployer, server: Server, store: "PlanStore", *, as_json: bool) -> int:
    """Show the run of the flow run until it has ended, and return its exit code."""
    display = choose_display(as_json=as_json, links=lambda id_: [] if id_ == flow_run_id else _link_lines(id_, server))
    follower = _RunFollower(display)
    run: PlanRun | None = None
    try:
        while True:
            end = await client.read_end(flow_run_id)  # read first: a flow run ends after its run
            run = await store.ledger.run_of_flow(flow_run_id)
            if run is not None:
                gate_events = await _gate_events(run, store, known=follower.closed)
                # Read again: the steps that ended before a gate opened are in the record by now.
                follower.show(await store.run(run.id), gate_events)
            if run is not None and (run.completed_at is not None or run.reason is RunReason.INTERRUPTED):
                display.close()
                show_result(run, as_json=as_json, hint=await _next_hint(run, store))
                return await code_with_rollbacks(run, store)
            if run is None and end is not None:
                return _report_missing_run(flow_run_id, end, as_json=as_json)
            await store.changed(POLL_SECONDS)
    except asyncio.CancelledError:
        cancel = f"`plan cancel {run.id}`" if run is not None else f"`prefect flow-run cancel {flow_run_id}`"
        output.note(f"the run continues on the server; {cancel} cancels it")
        raise
    finally:
        display.close()


async def _next_hint(run: PlanRun, store: "PlanStore") -> str:
    if run.reason is RunReason.INTERRUPTED and not await store.outcomes.unknown(run.id):
        return f"the process that executed the run has died; `{resume_command(run)}` resumes it"
    return await next_command_of(run, store)


async def _gate_events(run: PlanRun, store: "PlanStore", *, known: Collection[str]) -> list[tuple[datetime, Event]]:
    """Return when the gates of `run` were opened and answered, except those `known` to be closed."""
    found = list[tuple[datetime, Event]]()
    for gate in await store.gates.find(run_id=run.id, open_only=False):
        if gate.id in known:
            continue
        step = next((step for step in run.steps if step.id == gate.step_id), None)
        found.append((gate.opened_at, Event("gate_opened", run, step, gate=gate, in_form=gate.flow_run_id is not None)))
        if gate.closed_at is not None:
            message = closing_message(gate, await store.gates.answer_to(gate.id), None)
            found.append((gate.closed_at, Event("gate_answered", run, step, message=message, gate=gate)))
    return found


def _link_lines(flow_run_id: str, server: Server) -> list[str]:
    url = server.run_url(flow_run_id)
    return ui_hint(url) if url is not None else []


def _report_missing_run(flow_run_id: str, end: FlowRunEnd, *, as_json: bool) -> int:
    """Print how a flow run ended that recorded no run, and return the exit code."""
    if as_json:
        output.json_line("flow_run", {"flow_run_id": flow_run_id, "state": end.name, "message": end.message})
    else:
        output.line(f"flow run {flow_run_id}: {end.name}" + (f": {one_line(end.message)}" if end.message else ""))
    output.note("the worker recorded no run: see its log and the log of the flow run in Prefect")
    return ExitCode.CANCELLED if end.is_cancelled else ExitCode.FAILED


class _RunFollower:
    """Shows what has changed in a run since the last call, in the order in which it happened, as its own process would."""

    def __init__(self, display: Display) -> None:
        """Nothing was shown yet."""
        self._display = display
        self._has_started = self._has_mentioned_detach = False
        self._steps = dict[str, StepStatus]()
        self._opened = set[str]()
        self.closed = set[str]()
        """The gates that were shown as closed."""

    def show(self, run: PlanRun, gate_events: list[tuple[datetime, Event]]) -> None:
        """Show what is new in `run` and at its gates."""
        if run.started_at is not None and not self._has_started:
            self._has_started = True
            self._display(Event("run_started", run))
        new = [*self._new_gate_events(gate_events), *(self._new_step_events(run) if self._has_started else ())]
        for _, event in sorted(new, key=lambda entry: entry[0]):
            self._display(event)
            if event.kind == "gate_opened" and not self._has_mentioned_detach and not is_at_terminal():
                self._has_mentioned_detach = True
                output.note(detach_line(event, "starts the run and does not follow it"))

    def _new_gate_events(self, events: list[tuple[datetime, Event]]) -> Iterator[tuple[datetime, Event]]:
        for at, event in events:
            assert event.gate is not None
            shown = self._opened if event.kind == "gate_opened" else self.closed
            if event.gate.id not in shown:
                shown.add(event.gate.id)
                yield at, event

    def _new_step_events(self, run: PlanRun) -> Iterator[tuple[datetime, Event]]:
        for step in run.steps:
            shown, self._steps[step.id] = self._steps.get(step.id, StepStatus.PENDING), step.status
            if step.status in (shown, StepStatus.PENDING):
                continue
            if step.status is StepStatus.RUNNING or (shown is StepStatus.PENDING and step.status is not StepStatus.SKIPPED):
                yield step.started_at or run.updated_at, Event("step_started", run, step)
            if step.status in END_EVENTS:
                yield step.completed_at or run.updated_at, Event(END_EVENTS[step.status], run, step)
