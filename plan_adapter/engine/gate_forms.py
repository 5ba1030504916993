"""Gate forms seen from outside the run: list open forms, answer them, and collect answers that no process was waiting for."""

import asyncio
import logging
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.input import aread_flow_run_input, keyset_from_base_key
from prefect.states import Cancelled, Scheduled
from pydantic import JsonValue

from plan_adapter.engine.connection import describe_server_error
from plan_adapter.engine.form import NotAnAnswerError, form_values, parse_answer, without_folding
from plan_adapter.engine.gate_display import GateLabels, read_labels
from plan_adapter.engine.outgoing import state_message
from plan_adapter.engine.states import WAITING
from plan_adapter.model.approvals import Answer, Approval, Gate
from plan_adapter.model.errors import NoServerError, NotApprovedError, RunConflictError
from plan_adapter.model.options import Input, KnownBy
from plan_adapter.model.readable import one_line
from plan_adapter.validation.inputs import input_from_schema
from plan_adapter.validation.kinds import FORM_FIELDS

log = logging.getLogger(__name__)

PAGE = 200
RETRY_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds before an answer is sent again to a busy server or to a form that does not exist yet."""

TEMPORARY_REFUSALS = (httpx.codes.SERVICE_UNAVAILABLE.value, httpx.codes.CONFLICT.value)
"""From a busy server on SQLite, and from one on PostgreSQL that stores another answer at the same moment."""

_PROOFS: dict[KnownBy, str] = {"totp": "code", "ssh_signature": "signature"}


@dataclass(frozen=True, slots=True)
class OpenForm(GateLabels):
    """A form that waits for an answer, as Prefect's API reports it. Only the run itself knows whether the gate is still open."""

    flow_run_id: str
    is_unattended: bool  # whether no process waits for the answer; the resumed run will read it


async def open_forms() -> list[OpenForm]:
    """Return the forms that wait for an answer on Prefect's server, the oldest first. Raises NoServerError."""
    paused = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.PAUSED]}}})
    found = dict[UUID, OpenForm]()
    offset = 0
    try:
        async with get_client() as client:
            while True:
                page = await client.read_flow_runs(flow_run_filter=paused, sort=FlowRunSort.ID_DESC, limit=PAGE, offset=offset)
                found |= {flow_run.id: form for flow_run in page if (form := _read_form(flow_run)) is not None}
                offset += len(page)
                if len(page) < PAGE:
                    break
    except httpx.HTTPError as error:
        raise _server_error(error) from error
    return sorted(found.values(), key=lambda form: (form.opened_at is None, form.opened_at, form.gate_id))


async def answer_form(form: OpenForm, answer: Answer) -> None:
    """Submit `answer` to `form`. The run verifies it, and shows the form again with the reason if it refuses it.

    Raises RunConflictError if the form no longer waits or now asks about something else; raises NoServerError.
    """
    values = form_values(answer)
    for method, proof in _PROOFS.items():
        if proof in values and method not in (form.known_by or ()):
            message = (
                f"the gate of `{one_line(form.name)}` accepts no {method} in its form; answer without it, or on a machine with the store"
            )
            raise RunConflictError(message)
    try:
        async with get_client() as client:
            await _submit(client, form, values)
    except httpx.HTTPError as error:
        raise _server_error(error) from error


async def form_text(form: OpenForm) -> str:
    """Return the Markdown that `form` shows, empty if Prefect no longer has it. Raises NoServerError."""
    try:
        key = keyset_from_base_key(form.keyset)["description"]
        found: object = await aread_flow_run_input(key, flow_run_id=UUID(form.flow_run_id))
    except httpx.HTTPError as error:
        raise _server_error(error) from error
    return without_folding(found) if isinstance(found, str) else ""


async def form_fields(form: OpenForm) -> dict[str, Input]:
    """Return the fields of the question that `form` asks, empty if Prefect no longer has it. Raises NoServerError."""
    try:
        key = keyset_from_base_key(form.keyset)["schema"]
        found: Any = await aread_flow_run_input(key, flow_run_id=UUID(form.flow_run_id))
        properties: dict[str, Any] = {} if found is None else found["properties"]
        return {name: input_from_schema(schema) for name, schema in properties.items() if name not in FORM_FIELDS}
    except httpx.HTTPError as error:
        raise _server_error(error) from error


async def lacks_form(gate: Gate) -> bool:
    """Return whether Prefect's server lacks, or no longer shows, the form of an open `gate` that was shown there. Raises NoServerError."""
    if gate.flow_run_id is None or gate.keyset is None:
        return gate.has_form is False
    try:
        async with get_client() as client:
            found = await client.filter_flow_run_input(UUID(gate.flow_run_id), gate.keyset, limit=10, exclude_keys=set())
            state = (await client.read_flow_run(UUID(gate.flow_run_id))).state
    except ObjectNotFound:
        return True
    except httpx.HTTPError as error:
        raise _server_error(error) from error
    is_shown = state is not None and state.is_paused()  # only then does the page have a form, whatever is stored
    return not is_shown or keyset_from_base_key(gate.keyset)["schema"] not in {value.key for value in found}


async def read_answer(gate: Gate) -> Answer | None:
    """Return the answer given in the form of this opening of `gate`, or None. Raises NotApprovedError if it is incomplete.

    Use this when no process waits at that opening any more: the run was killed, or it released its worker. Raises NoServerError.
    """
    if gate.flow_run_id is None or gate.keyset is None:
        return None
    try:
        key = keyset_from_base_key(gate.keyset)["response"]
        submitted = await aread_flow_run_input(key, flow_run_id=UUID(gate.flow_run_id))
        return None if submitted is None else parse_answer(submitted, gate.kind, gate.fields)
    except NotAnAnswerError as error:
        raise NotApprovedError(str(error)) from error
    except httpx.HTTPError as error:
        raise _server_error(error) from error
    except ValueError as error:
        raise NoServerError(f"the answer in the form of gate {gate.id} cannot be read: {type(error).__name__}") from error


async def collect_answer(gate: Gate) -> Answer | None:
    """Return the same as `read_answer`, and None if the server cannot be used. Raises NotApprovedError if the answer is incomplete."""
    try:
        return await read_answer(gate)
    except NoServerError as error:
        log.warning("the answer in the form of gate %s cannot be read: %s", gate.id, error)
        return None


async def resume_released(gate: Gate, approval: Approval | None) -> None:
    """Resume a run that released its worker, after `approval` closed its gate elsewhere.

    Without an approval, because nobody answered in time, the flow run ends as Expired. Does nothing if the run waits in a process, has
    already resumed, or is unknown to the server. Raises NoServerError.
    """
    if gate.flow_run_id is None or gate.keyset is None or not gate.keyset.startswith("suspended-"):
        return
    try:
        async with get_client() as client:
            state = (await client.read_flow_run(UUID(gate.flow_run_id))).state
            if state is None or not state.is_paused() or not state.state_details.pause_reschedule:
                return
            if approval is None:
                next_state = Cancelled(name="Expired", message="nobody answered in time")
            else:
                message = f"{approval.decision} by {one_line(approval.by)} ({approval.known_by})"
                next_state = Scheduled(name="Resuming", message=state_message(message))
            await client.set_flow_run_state(UUID(gate.flow_run_id), next_state)
    except ObjectNotFound:
        return
    except httpx.HTTPError as error:
        raise _server_error(error) from error


async def _submit(client: PrefectClient, form: OpenForm, values: dict[str, JsonValue]) -> None:
    flow_run_id = UUID(form.flow_run_id)
    for wait in (*RETRY_WAITS, None):
        try:
            current_form = _read_form(await client.read_flow_run(flow_run_id))
        except ObjectNotFound:
            raise RunConflictError(f"the flow run {form.flow_run_id} no longer exists") from None
        if current_form is None:
            raise RunConflictError(f"`{one_line(form.name)}` no longer waits for an answer: somebody answered, or the run ended")
        if (current_form.gate_id, current_form.approval_digest) != (form.gate_id, form.approval_digest):
            raise RunConflictError(f"`{one_line(form.name)}` now asks about something else; read it again")
        try:
            result = await client.resume_flow_run(flow_run_id, run_input=values)
        except httpx.HTTPStatusError as error:
            if wait is None or error.response.status_code not in TEMPORARY_REFUSALS:
                raise
        else:
            if result.status is SetStateStatus.ACCEPT:
                return
            reason = _refusal_reason(result)
            if wait is None or "schema not found" not in reason:
                raise RunConflictError(f"the form of `{one_line(form.name)}` refused the answer: {reason}")
        await asyncio.sleep(wait)


def _read_form(flow_run: FlowRun) -> OpenForm | None:
    """Return the form that `flow_run` shows now, or None if it shows no form of this package."""
    labels, state = read_labels(flow_run.labels), flow_run.state
    if labels is None or state is None or not state.is_paused():
        return None
    keys = state.state_details.run_input_keyset or {}
    if keys.get("response") != keyset_from_base_key(labels.keyset)["response"]:  # labels of an earlier opening
        return None
    return OpenForm(**asdict(labels), flow_run_id=str(flow_run.id), is_unattended=state.name == WAITING)


def _refusal_reason(result: "OrchestrationResult[object]") -> str:
    return one_line(str(getattr(result.details, "reason", None) or result.status))[:500]


def _server_error(error: httpx.HTTPError) -> NoServerError:
    return NoServerError(f"the Prefect server cannot be used: {describe_server_error(error)}")
