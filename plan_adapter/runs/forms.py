"""`prefect_forms`: connects a run's gates to forms in the Prefect UI. Imported only inside a flow run."""

import asyncio
import logging
from uuid import UUID

from plan_adapter.engine.connection import Server, current_server, demands_authentication
from plan_adapter.engine.gate_forms import collect_answer, leave_form, resume_released
from plan_adapter.engine.gate_loop import GateCancelledError, show_gate_form
from plan_adapter.engine.outgoing import emit_gate_event, emit_run_event, publish_text
from plan_adapter.engine.states import flow_end
from plan_adapter.gates.approval import PendingGate
from plan_adapter.gates.gate import GateEventKind, GateForms
from plan_adapter.model.approvals import Approval, Gate
from plan_adapter.model.errors import NoServerError, StoreError
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.runs.plan_approval import end_expired
from plan_adapter.store.store import PlanStore
from plan_adapter.text.run_facts import RunFacts, run_facts
from plan_adapter.text.run_markdown import run_markdown

log = logging.getLogger(__name__)

REPORT = "run-report"
"""The key of the artifact that says how a run stands or ended."""


async def end_released(store: PlanStore) -> None:
    """End the runs that released their worker and got no answer in time.

    No process watches the deadline of such a run, so the next flow run that starts calls this. An unreachable server is only logged.
    """
    now = await store.now()
    expired = [gate for gate in await store.gates.find() if gate.gate_policy.release and gate.is_over(now)]
    if not expired:
        return
    await end_expired(store)
    for gate in expired:
        try:
            await resume_released(gate, None)
        except NoServerError as error:
            log.info("the flow run of gate %s could not be ended: %s", gate.id, error)


class PrefectReport:
    """Keeps the artifact `run-report` of a flow run, and sends the event about its end. Belongs to one event loop."""

    def __init__(self, flow_run_id: str, store: PlanStore, server: Server | None) -> None:
        """Keep the report of the flow run `flow_run_id`. By default the server is the one in Prefect's settings."""
        self._flow_run_id = flow_run_id
        self._store = store
        self._server = server or current_server()
        self._update: asyncio.Task[None] | None = None
        self._is_outdated = False

    async def __call__(self, run: PlanRun) -> None:
        """Write the report of a run that ended, and send the event about an end that is not its completion. A failure is logged.

        A run that completed at the first start and asked nobody has no report: Prefect shows all of it.
        """
        if self._update is not None:
            self._update.cancel()
            await asyncio.wait({self._update})
        try:
            facts = await self._facts_of(run) if await self._has_report(run) else None
        except StoreError as error:  # the end is recorded
            log.warning("the report of run %s was not written: %s", run.id, error)
            return
        if facts is None:
            return
        if run.status is not PlanStatus.COMPLETED:
            emit_run_event(run, facts, link=self._server.run_url(self._flow_run_id))
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                artifact_id = await self._write(facts)
        except TimeoutError:
            log.info("the report of run %s was not written in time", run.id)
        else:
            flow_end().report_url = None if artifact_id is None else self._server.artifact_url(artifact_id)

    async def _has_report(self, run: PlanRun) -> bool:
        """Return whether a run that ended has something to report, or a report from before that is outdated."""
        is_plain = run.status is PlanStatus.COMPLETED and not any(step.carried for step in run.steps)
        return not is_plain or bool(await self._store.gates.find(run_id=run.id, open_only=False, limit=1))

    def update_soon(self, run_id: str) -> None:
        """Write the report of a run that goes on, within a second or so. Gates that open together share one report."""
        self._is_outdated = True
        if self._update is None or self._update.done():
            self._update = asyncio.create_task(self._keep_updated(run_id))

    async def _keep_updated(self, run_id: str) -> None:
        while self._is_outdated:
            self._is_outdated = False
            try:
                await self._write(await self._facts_of(await self._store.run(run_id)))
            except StoreError as error:
                log.info("the report of run %s was not updated: %s", run_id, error)
            await asyncio.sleep(UPDATE_SECONDS)

    async def _facts_of(self, run: PlanRun) -> RunFacts:
        """Return the facts of `run` from its record, with the gates at which it waits. Raises StoreError."""
        store = self._store
        attempts, receipts = await store.attempts(run.id), await store.receipts(run.id)
        waiting = [] if run.status.has_ended else [(gate.step_id, gate.item) for gate in await store.gates.find(run_id=run.id)]
        return run_facts(run, attempts, receipts, waiting=waiting, trigger=await store.trigger_events.of_run(run.id))

    async def _write(self, facts: RunFacts) -> UUID | None:
        return await publish_text(run_markdown(facts), key=REPORT, description=facts.cause or "")


WRITE_SECONDS = 3.0
"""How long the end of a run waits for its report."""

UPDATE_SECONDS = 1.0
"""How long a report stays as it is while gates open and close."""


def prefect_forms(flow_run_id: str, store: PlanStore, server: Server | None, *, report: PrefectReport) -> GateForms:
    """Return the Prefect forms for the gates of the flow run `flow_run_id`. By default the server is the one in Prefect's settings.

    Each gate that opens or closes updates `report`.
    """
    server = server or current_server()

    async def ask(pending: PendingGate) -> str | None:
        run_id = pending.request.run_id or ""
        report.update_soon(run_id)
        try:
            await show_gate_form(pending, approval_of=store.gates.answer_to)
        except GateCancelledError as error:
            return str(error)
        finally:
            report.update_soon(run_id)
        return None

    def emit_event(kind: GateEventKind, gate: Gate, run: PlanRun, message: str | None, approval: Approval | None) -> None:
        emit_gate_event(kind, gate, run, link=server.run_url(gate.flow_run_id or flow_run_id), message=message, approval=approval)

    async def publish(gate: Gate) -> None:
        await publish_text(gate.text, key=f"plan {gate.name}", description=gate.description)

    async def is_private() -> bool:
        return await asyncio.to_thread(demands_authentication, server.api_url) is True

    return GateForms(ask, collect_answer, emit_event, publish, resume_released, is_private, leave_form)
