"""`release`: a gate whose run gives its worker back while it waits."""

import asyncio
import logging
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import Pause
from prefect.input import keyset_from_base_key
from prefect.states import Suspended

from plan_adapter.approval import Asking
from plan_adapter.engine.form import description_of, form_of
from plan_adapter.engine.gate_labels import labels_of
from plan_adapter.engine.gate_logs import Tell, waiting
from plan_adapter.engine.gate_prompt import TROUBLE, takes_codes
from plan_adapter.readable import one_line

log = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 200
LOOK_SECONDS = 0.5
"""How long a gate that was over before the run came back may take to be found so."""


async def release(asking: Asking, flow_run_id: UUID, client: PrefectClient, tell: Tell) -> None:
    """Suspend the current flow run with the form of its gate: raises Prefect's `Pause`, for its engine to end the process.

    Resumed, the flow run starts again from its first line; `gate_forms.collected_answer` then has the answer. Returns, and the gate is
    to be waited at as ever, if it is closed already or Prefect cannot suspend the flow run.

    The calls are those of `prefect.suspend_flow_run`, which gives the state no message, in another order: the form is there first.
    """
    request, key = asking.request, uuid4().hex
    keyset = f"suspended-{key}"
    says = f"`{one_line(request.name)[:MAX_NAME_CHARACTERS]}` {waiting(request)}; it gives its worker back until then"
    suspended = Suspended(pause_key=key, message=says)
    suspended.state_details.run_input_keyset = {str(part): name for part, name in keyset_from_base_key(keyset).items()}
    try:
        await client.update_flow_run_labels(flow_run_id, labels_of(request, keyset, request.refused))
    except TROUBLE as error:
        log.warning("flow run %s keeps its worker while it waits: %s", flow_run_id, type(error).__name__)
        return
    await asking.shown(flow_run_id=str(flow_run_id), keyset=keyset)  # before: afterwards there is no process
    await asyncio.wait({asking.closed}, timeout=LOOK_SECONDS)
    if asking.closed.done():
        return
    tell(says)
    # Only the description: other initial data would drop what the fields say of themselves.
    private = await takes_codes(request)
    text = description_of(request, refused=request.refused, takes_codes=private)
    form = form_of(request, takes_codes=private).with_initial_data(description=text)
    try:
        await form.asave(keyset_from_base_key(keyset), flow_run_id)
        result = await client.set_flow_run_state(flow_run_id, suspended)
    except TROUBLE as error:
        log.warning("flow run %s keeps its worker while it waits: %s", flow_run_id, error)
        return
    if result.status is SetStateStatus.ACCEPT:
        raise Pause(state=result.state or suspended)
    log.warning("flow run %s keeps its worker while it waits: %s", flow_run_id, getattr(result.details, "reason", None) or result.status)
