"""`release`: a gate whose run gives its worker back while it waits."""

import asyncio
import logging
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient
from prefect.flow_runs import asuspend_flow_run

from plan_adapter.approval import Asking
from plan_adapter.engine.form import description_of, form_of
from plan_adapter.engine.gate_labels import labels_of
from plan_adapter.engine.gate_logs import Tell, waiting
from plan_adapter.engine.gate_prompt import TROUBLE

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How long a gate that was over before the run came back may take to be found so."""


async def release(asking: Asking, flow_run_id: UUID, client: PrefectClient, tell: Tell) -> None:
    """Suspend the current flow run with the form of its gate: raises Prefect's `Pause`, for its engine to end the process.

    Resumed, the flow run starts again from its first line; `gate_forms.collected_answer` then has the answer. Returns, and the gate is
    to be waited at as ever, if it is closed already or Prefect cannot suspend the flow run.
    """
    request, key = asking.request, uuid4().hex
    keyset = f"suspended-{key}"
    try:
        await client.update_flow_run_labels(flow_run_id, labels_of(request, keyset, request.refused))
    except TROUBLE as error:
        log.warning("flow run %s keeps its worker while it waits: %s", flow_run_id, type(error).__name__)
        return
    await asking.shown(flow_run_id=str(flow_run_id), keyset=keyset)  # before: afterwards there is no process
    await asyncio.wait({asking.closed}, timeout=LOOK_SECONDS)
    if asking.closed.done():
        return
    tell(f"{waiting(request)}; it gives its worker back until then")
    # Only the description: other initial data would drop what the fields say of themselves.
    form = form_of(request).with_initial_data(description=description_of(request, refused=request.refused))
    try:
        await asuspend_flow_run(wait_for_input=form, key=key)
    except (RuntimeError, *TROUBLE) as error:
        log.warning("flow run %s keeps its worker while it waits: %s", flow_run_id, error)
