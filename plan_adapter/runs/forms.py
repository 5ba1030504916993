"""`prefect_forms`: connects a run's gates to forms in the Prefect UI. Imported only inside a flow run."""

import asyncio
import logging

from plan_adapter.engine.connection import Server, current_server, demands_authentication
from plan_adapter.engine.gate_forms import collect_answer, leave_form, resume_released
from plan_adapter.engine.gate_loop import GateCancelledError, show_gate_form
from plan_adapter.engine.outgoing import emit_gate_event, emit_run_event, publish_text
from plan_adapter.execution.scope import ReportEnd
from plan_adapter.gates.approval import PendingGate
from plan_adapter.gates.gate import GateEventKind, GateForms
from plan_adapter.model.approvals import Approval, Gate
from plan_adapter.model.errors import NoServerError
from plan_adapter.model.record import PlanRun
from plan_adapter.runs.plan_approval import end_expired
from plan_adapter.store.store import PlanStore
from plan_adapter.text.run_facts import RunFacts
from plan_adapter.text.run_markdown import run_markdown

log = logging.getLogger(__name__)

REPORT = "run-report"
"""The key of the artifact with the end of a run."""


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


def report_to_prefect(flow_run_id: str, server: Server | None) -> ReportEnd:
    """Return the function that writes the artifact `run-report` of the flow run and sends the event about its end."""
    server = server or current_server()

    async def report_end(run: PlanRun, facts: RunFacts) -> None:
        emit_run_event(run, facts, link=server.run_url(flow_run_id))
        await publish_text(run_markdown(facts, run.outcome_text), key=REPORT, description=facts.cause or "")

    return report_end


def prefect_forms(flow_run_id: str, store: PlanStore, server: Server | None) -> GateForms:
    """Return the Prefect forms for the gates of the flow run `flow_run_id`. By default the server is the one in Prefect's settings."""
    server = server or current_server()

    async def ask(pending: PendingGate) -> str | None:
        try:
            await show_gate_form(pending, approval_of=store.gates.answer_to)
        except GateCancelledError as error:
            return str(error)
        return None

    def emit_event(kind: GateEventKind, gate: Gate, run: PlanRun, message: str | None, approval: Approval | None) -> None:
        emit_gate_event(kind, gate, run, link=server.run_url(gate.flow_run_id or flow_run_id), message=message, approval=approval)

    async def publish(gate: Gate) -> None:
        await publish_text(gate.text, key=f"plan {gate.name}", description=gate.description)

    async def is_private() -> bool:
        return await asyncio.to_thread(demands_authentication, server.api_url) is True

    return GateForms(ask, collect_answer, emit_event, publish, resume_released, is_private, leave_form)
