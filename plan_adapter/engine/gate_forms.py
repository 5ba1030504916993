"""Gate forms on Prefect's server: a flow run pauses with one, and anyone lists, reads and answers them.

When a flow run enters Paused, Prefect 3.9.1 deletes what is stored under the keys of its form. So a form is written after the pause was
accepted, and read back. Until it exists, the server refuses every answer, because the pause already names it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID, uuid4

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.input import acreate_flow_run_input, aread_flow_run_input, keyset_from_base_key
from prefect.states import Cancelled, Scheduled
from pydantic import JsonValue

from plan_adapter.engine.connection import current_server, demands_authentication, describe_server_error
from plan_adapter.engine.form import (
    NotAnAnswerError,
    build_form,
    decision_field,
    form_description,
    form_values,
    lost_form_message,
    notice_schema,
    parse_answer,
    without_folding,
)
from plan_adapter.engine.outgoing import LogWriter, label, log_writer, markdown, state_message
from plan_adapter.engine.states import WAITING, flow_end, unattended_state
from plan_adapter.gates.approval import PendingGate
from plan_adapter.gates.quorum import progress_in_words
from plan_adapter.model.approvals import Answer, Approval, ApprovalRequest, Gate, GateKind, PauseKind, keyset_of
from plan_adapter.model.errors import InvalidAnswerError, NoServerError, RunConflictError
from plan_adapter.model.language import tr
from plan_adapter.model.options import CallKind, Input, KnownBy
from plan_adapter.model.readable import one_line, words
from plan_adapter.validation.inputs import input_from_schema
from plan_adapter.validation.kinds import FORM_FIELDS

log = logging.getLogger(__name__)

PAGE = 200
RETRY_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds before an answer is sent again to a busy server or to a form that does not exist yet."""

TEMPORARY_REFUSALS = (httpx.codes.SERVICE_UNAVAILABLE.value, httpx.codes.CONFLICT.value)
"""From a busy server on SQLite, and from one on PostgreSQL that stores another answer at the same moment."""

_PROOFS: dict[KnownBy, str] = {"totp": "code", "ssh_signature": "signature"}

SERVER_ERRORS = (httpx.HTTPError, PrefectException, OSError, ValueError)
"""Raised by calls to a server that is unavailable, busy or being replaced. ValueError: the response is not Prefect's."""

MAX_WRITES = 3
"""How often a form is written that the server does not have when it is read back."""

LABEL_PREFIX = "plan_adapter."


@dataclass(frozen=True, slots=True)
class GateLabels:
    """The labels of a flow run that shows a gate's form. Anyone with access to Prefect's API can write them: untrusted."""

    gate_id: str
    run_id: str
    step_id: str | None
    item: int | None
    name: str  # of the plan
    approval_digest: str
    opened_at: datetime | None
    expires_at: datetime | None
    known_by: tuple[str, ...] | None  # None: any proof
    keyset: str
    refused: str | None  # why the last answer was refused
    kind: GateKind
    label: str | None  # the item's label, None if it is known by number
    call_kind: CallKind
    is_lost: bool  # Prefect does not keep the form
    progress: str | None  # how many of several approvals there are, in words; None: the gate has none yet, or needs only one
    first_digest: str  # of the content that the page showed first; empty: of this one

    @property
    def decision(self) -> str:
        """The name of the field of the decision."""
        return decision_field(self.approval_digest, self.first_digest or self.approval_digest)


def form_labels(
    request: ApprovalRequest, keyset: str, refused: str | None, *, first_digest: str = "", is_lost: bool = False
) -> dict[str, str | int | float | bool]:
    """Return the labels of a flow run that shows the form of `request` under `keyset`. An empty text means None or False."""
    labels = {
        "gate": request.gate_id,
        "run": request.run_id,
        "step": request.step_id,
        "item": None if request.item is None else str(request.item),
        "name": request.name,
        "digest": request.approval_digest,
        "opened_at": _format_time(request.opened_at),
        "expires_at": _format_time(request.expires_at),
        "known_by": None if request.gate_policy.known_by is None else ",".join(request.gate_policy.known_by),
        "keyset": keyset,
        "refused": refused,
        "kind": request.kind,
        "label": request.label,
        "call_kind": request.call_kind,
        "lost": "yes" if is_lost else None,
        "progress": progress_in_words(request.gate_policy, request.agreements) if request.agreements else None,
        "first": first_digest or request.approval_digest,
    }
    # Prefect merges labels, so outdated ones must be overwritten.
    return {LABEL_PREFIX + name: label(value or "") for name, value in labels.items()}


def read_labels(labels: Mapping[str, Any]) -> GateLabels | None:
    """Return the gate that `labels` describe, or None if they describe none."""
    texts = {name.removeprefix(LABEL_PREFIX): str(value) for name, value in labels.items() if name.startswith(LABEL_PREFIX)}
    if not (texts.get("gate") and texts.get("run") and texts.get("keyset")):
        return None
    try:
        return GateLabels(
            gate_id=texts["gate"],
            run_id=texts["run"],
            step_id=texts.get("step") or None,
            item=int(texts["item"]) if texts.get("item") else None,
            name=texts.get("name", ""),
            approval_digest=texts.get("digest", ""),
            opened_at=_parse_time(texts.get("opened_at")),
            expires_at=_parse_time(texts.get("expires_at")),
            known_by=tuple(texts["known_by"].split(",")) if texts.get("known_by") else None,
            keyset=texts["keyset"],
            refused=texts.get("refused") or None,
            kind=_KINDS.get(texts.get("kind", ""), "approval"),
            label=one_line(texts["label"]) if texts.get("label") else None,
            call_kind="rollback" if texts.get("call_kind") == "rollback" else "step",
            is_lost=bool(texts.get("lost")),
            progress=texts.get("progress") or None,
            first_digest=texts.get("first", ""),
        )
    except ValueError:
        return None


_KINDS: dict[str, GateKind] = {kind: kind for kind in get_args(GateKind)}


def _format_time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def current_flow() -> FlowRunContext:
    """Return the context of the current flow run. Raises RuntimeError outside of one."""
    flow = FlowRunContext.get()
    if flow is None or flow.flow_run is None or not isinstance(flow.client, PrefectClient):
        raise RuntimeError("a gate can only be shown inside a running flow")
    return flow


class FormLostError(Exception):
    """The server accepted a form, and does not have it when it is read back."""


FormPart: TypeAlias = Literal["response", "schema", "description"]
"""What Prefect keeps of a form, each under a key of its own."""

_Write: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
Retry: TypeAlias = Callable[[_Write], Awaitable[None]]
"""Makes a request, again if it must."""


@dataclass(frozen=True, slots=True)
class GatePause:
    """One pause of the flow run `flow_run_id`. Its key is new, because Prefect refuses a key that a flow run has used before."""

    flow_run_id: UUID
    client: PrefectClient
    kind: PauseKind = "paused"
    run: FlowRun | None = None  # of the run that asks; None: not known here
    key: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def of(cls, flow: FlowRunContext, kind: PauseKind = "paused") -> "GatePause":
        """Return a pause of the flow run of `flow`, which `current_flow` returned."""
        assert flow.flow_run is not None and isinstance(flow.client, PrefectClient)
        return cls(flow.flow_run.id, flow.client, kind, flow.flow_run)

    @property
    def keyset(self) -> str:
        """The base key under which Prefect keeps the form and its answer."""
        return keyset_of(self.kind, self.key)

    def key_of(self, part: FormPart) -> str:
        """Return the key under which Prefect keeps this part of the form."""
        return keyset_from_base_key(self.keyset)[part]

    def attach_to(self, state: State[Any]) -> State[Any]:
        """Return `state` as this pause."""
        state.state_details.pause_key = self.key
        state.state_details.run_input_keyset = {str(part): name for part, name in keyset_from_base_key(self.keyset).items()}
        return state

    def is_in(self, state: State | None) -> bool:
        """Return whether a flow run in `state` is in this pause."""
        return state is not None and state.is_paused() and state.state_details.pause_key == self.key

    async def record(self, pending: PendingGate) -> None:
        """Record with `pending` where its form will be."""
        await pending.record_form(flow_run_id=str(self.flow_run_id), keyset=self.keyset)

    async def report(self, pending: PendingGate, *, has_form: bool) -> None:
        """Report to `pending` whether its form exists."""
        await pending.report_form(flow_run_id=str(self.flow_run_id), keyset=self.keyset if has_form else None)

    async def give_form(self, pending: PendingGate, *, refused: str | None, write_log: LogWriter, retry: Retry) -> None:
        """Write the form of the paused flow run through `retry`. If the server does not keep it, say how to answer instead.

        Call `record` before, so that an answer in the form is found whatever happens to this process.
        """
        try:
            await retry(partial(self.write_form, pending.request, refused=refused))
        except (*SERVER_ERRORS, FormLostError) as error:
            message = lost_form_message(pending.request)
            write_log(message)
            log.warning("flow run %s: %s (%s)", self.flow_run_id, message, type(error).__name__)
            await self.report(pending, has_form=False)
        else:
            await self.report(pending, has_form=True)

    async def write_form(self, request: ApprovalRequest, *, refused: str | None) -> None:
        """Write the form of `request`, with the reason why the last answer was refused. Can be repeated.

        Call it once the server has accepted the pause. Raises FormLostError, or one of SERVER_ERRORS.
        """
        takes_codes = await _takes_codes(request)
        shown = read_labels((await self.client.read_flow_run(self.flow_run_id)).labels)
        first = request.approval_digest if shown is None else shown.first_digest or shown.approval_digest
        schema = build_form(request, takes_codes=takes_codes, decision=decision_field(request.approval_digest, first))
        text = form_description(request, refused=refused, takes_codes=takes_codes, links=self._links())
        try:
            await self._write(lambda: schema.asave(keyset_from_base_key(self.keyset), self.flow_run_id), text)
        except FormLostError:
            await self._label(form_labels(request, self.keyset, refused, first_digest=first, is_lost=True))
            raise
        # Last, because they say that the page shows this form.
        await self._label(form_labels(request, self.keyset, refused, first_digest=first))

    def _links(self) -> dict[str, str]:
        """Return the addresses of the run that asks, unless this is its page, and of its runbook, by title."""
        if self.run is None:
            return {}
        server, found = current_server(), dict[str, str | None]()
        if self.run.id != self.flow_run_id:
            found[tr("The run {name}", name=words(self.run.name))] = server.run_url(self.run.id)
        if self.run.deployment_id is not None:
            found[tr("The runbook")] = server.deployment_url(self.run.deployment_id)
        return {title: url for title, url in found.items() if url is not None}

    async def write_notice(self, text: str) -> None:
        """Write a form that shows `text` and takes no answer. Raises the same as `write_form`."""
        key = self.key_of("schema")
        await self._write(lambda: acreate_flow_run_input(key, notice_schema(), flow_run_id=self.flow_run_id), text)

    async def _write(self, write_schema: _Write, text: str) -> None:
        """Write the schema and the text of a form, and read back whether the server has them."""
        schema, description = self.key_of("schema"), self.key_of("description")
        missing: dict[str, _Write] = {
            schema: write_schema,
            description: lambda: acreate_flow_run_input(description, markdown(text), flow_run_id=self.flow_run_id),
        }
        for _ in range(MAX_WRITES):
            for write in missing.values():
                await _ignore_conflict(write())
            stored = await self.client.filter_flow_run_input(self.flow_run_id, self.keyset, limit=len(missing), exclude_keys=set())
            missing = {key: write for key, write in missing.items() if key not in {value.key for value in stored}}
            if not missing:
                return
        raise FormLostError(f"Prefect's server accepted the form of flow run {self.flow_run_id} and does not have it")

    async def _label(self, labels: dict[str, str | int | float | bool]) -> None:
        await self.client.update_flow_run_labels(self.flow_run_id, labels)


async def once(request: _Write) -> None:
    """Make `request` once."""
    await request()


async def _ignore_conflict(write: Coroutine[Any, Any, None]) -> None:
    """Await `write`, which writes an input under a new key. If the key exists, an earlier request succeeded and its response was lost."""
    try:
        await write
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.CONFLICT.value:
            raise


async def _takes_codes(request: ApprovalRequest) -> bool:
    """Return whether the form of `request` accepts one-time codes: only if people sign in to the server, or if none is required."""
    if "totp" not in (request.gate_policy.known_by or ()):
        return True
    return await asyncio.to_thread(demands_authentication, current_server().api_url) is True


async def leave_paused(pause: GatePause, state: State[Any], pending: PendingGate, *, write_log: LogWriter) -> State[Any] | None:
    """Pause the flow run with the form of `pending`, for a process that ends right afterwards. Return the state, or None if not paused.

    Call `pause.record` before. Then raise Prefect's `Pause` with the state, so that Prefect's engine sets none.
    """
    paused = await set_paused(pause, state)
    if paused is not None:
        await pause.give_form(pending, refused=pending.request.refused, write_log=write_log, retry=once)
    return paused


async def set_paused(pause: GatePause, state: State[Any]) -> State[Any] | None:
    """Set `state` as this pause. Return the state that the server has then, or None if it refuses the pause or is unavailable."""
    try:
        result = await pause.client.set_flow_run_state(pause.flow_run_id, pause.attach_to(state))
    except SERVER_ERRORS as error:
        log.warning("flow run %s cannot be paused: %s", pause.flow_run_id, type(error).__name__)
        return None
    if result.status is SetStateStatus.ACCEPT:
        return result.state or state
    log.warning("flow run %s cannot be paused: %s", pause.flow_run_id, getattr(result.details, "reason", None) or result.status)
    return None


async def leave_form(pending: PendingGate) -> None:
    """Pause the current flow run with the form of a plan gate. The process must then leave the run waiting.

    If the server is unavailable, the gate has no form, and says so where gates are listed.
    """
    flow = current_flow()
    pause = GatePause.of(flow)
    await pause.record(pending)
    state = unattended_state(pending.request.run_id or "")
    paused = await leave_paused(pause, state, pending, write_log=log_writer(flow))
    if paused is None:
        await pause.report(pending, has_form=False)
    flow_end().paused = paused


async def leave_notice(state: State[Any]) -> State[Any] | None:
    """Pause the current flow run as `state`, with its message as a form that takes no answer. Return the state, or None if not paused.

    For a run that waits without a process and whose gates have no form on this page. Without a form, the button Resume would set it to
    Running, and nothing would run.
    """
    pause = GatePause.of(current_flow())
    paused = await set_paused(pause, state)
    if paused is not None:
        try:
            await pause.write_notice(notice_text(state))
        except (*SERVER_ERRORS, FormLostError) as error:
            log.info("flow run %s waits without a notice: %s", pause.flow_run_id, type(error).__name__)
    return paused


def notice_text(state: State[Any]) -> str:
    """Return the text of the page of a flow run that waits in `state` and has no form."""
    return f"This run cannot be answered on this page: {state.message}."


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
    async with _client() as client:
        while True:
            page = await client.read_flow_runs(flow_run_filter=paused, sort=FlowRunSort.ID_DESC, limit=PAGE, offset=offset)
            found |= {flow_run.id: form for flow_run in page if (form := _read_form(flow_run)) is not None}
            offset += len(page)
            if len(page) < PAGE:
                break
    return sorted(found.values(), key=lambda form: (form.opened_at is None, form.opened_at, form.gate_id))


async def answer_form(form: OpenForm, answer: Answer) -> None:
    """Submit `answer` to `form`. The run verifies it, and shows the form again with the reason if it refuses it.

    Raises RunConflictError if the form no longer waits or now asks about something else; raises NoServerError.
    """
    values = form_values(answer, decision=form.decision)
    for method, proof in _PROOFS.items():
        if proof in values and method not in (form.known_by or ()):
            message = (
                f"the gate of `{one_line(form.name)}` accepts no {method} in its form; answer without it, or on a machine with the store"
            )
            raise RunConflictError(message)
    if "result" in values and form.kind == "outcome" and not await _takes_result(form):
        raise RunConflictError("no step uses the result of this call, so its form takes none: answer without a result")
    async with _client() as client:
        await _submit(client, form, values)


async def _takes_result(form: OpenForm) -> bool:
    """Return whether the form of an unknown outcome has a field for what the call returned."""
    found = await _read_part(form.flow_run_id, form.keyset, "schema")
    return found is None or "result" in found["properties"]


async def end_of_page(form: OpenForm) -> str | None:
    """Return the state in which the flow run that showed `form` has ended, in words, or None while it has not. Raises NoServerError."""
    try:
        async with _client() as client:
            state = (await client.read_flow_run(UUID(form.flow_run_id))).state
    except ObjectNotFound:
        return None
    if state is None or not state.is_final():
        return None
    return one_line(": ".join(part for part in (state.name, state.message) if part))


async def form_text(form: OpenForm) -> str:
    """Return the Markdown that `form` shows, empty if Prefect no longer has it. Raises NoServerError."""
    found: object = await _read_part(form.flow_run_id, form.keyset, "description")
    return without_folding(found) if isinstance(found, str) else ""


async def form_fields(form: OpenForm) -> dict[str, Input]:
    """Return the fields of the question that `form` asks, empty if Prefect no longer has it. Raises NoServerError."""
    found = await _read_part(form.flow_run_id, form.keyset, "schema")
    properties: dict[str, Any] = {} if found is None else found["properties"]
    return {name: input_from_schema(schema) for name, schema in properties.items() if name not in (*FORM_FIELDS, form.decision)}


async def lacks_form(gate: Gate) -> bool:
    """Return whether Prefect's server lacks, or no longer shows, the form of an open `gate` that was shown there. Raises NoServerError."""
    if gate.flow_run_id is None or gate.keyset is None:
        return gate.has_form is False
    try:
        async with _client() as client:
            found = await client.filter_flow_run_input(UUID(gate.flow_run_id), gate.keyset, limit=10, exclude_keys=set())
            state = (await client.read_flow_run(UUID(gate.flow_run_id))).state
    except ObjectNotFound:
        return True
    is_shown = state is not None and state.is_paused()  # only then does the page have a form, whatever is stored
    return not is_shown or keyset_from_base_key(gate.keyset)["schema"] not in {value.key for value in found}


async def read_answer(gate: Gate) -> Answer | None:
    """Return the answer given in the form of this opening of `gate`, or None. Raises InvalidAnswerError if it is incomplete.

    Use this when no process waits at that opening any more: the run was killed, or it released its worker. Raises NoServerError.
    """
    if gate.flow_run_id is None or gate.keyset is None:
        return None
    try:
        submitted = await _read_part(gate.flow_run_id, gate.keyset, "response")
        return None if submitted is None else parse_answer(submitted, gate.kind, gate.fields)
    except NotAnAnswerError as error:
        raise InvalidAnswerError(str(error)) from error
    except ValueError as error:
        raise NoServerError(f"the answer in the form of gate {gate.id} cannot be read: {type(error).__name__}") from error


async def collect_answer(gate: Gate) -> Answer | None:
    """Return the same as `read_answer`, and None if the server cannot be used. Raises InvalidAnswerError if the answer is incomplete."""
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
    if gate.flow_run_id is None or gate.keyset is None or gate.pause_kind != "suspended":
        return
    try:
        async with _client() as client:
            state = (await client.read_flow_run(UUID(gate.flow_run_id))).state
            if state is None or not state.is_paused() or not state.state_details.pause_reschedule:
                return
            if approval is None:
                next_state = Cancelled(name="Expired", message="nobody answered in time")
            else:
                message = f"{approval.decision} by {one_line(approval.givers)}"
                next_state = Scheduled(name="Resuming", message=state_message(message))
            await client.set_flow_run_state(UUID(gate.flow_run_id), next_state)
    except ObjectNotFound:
        return


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


@contextmanager
def _server_errors() -> Generator[None]:
    """Raise NoServerError for a request that fails."""
    try:
        yield
    except httpx.HTTPError as error:
        raise NoServerError(f"the Prefect server cannot be used: {describe_server_error(error)}") from error


@asynccontextmanager
async def _client() -> AsyncGenerator[PrefectClient]:
    """Yield a client of the server. Raises NoServerError for a request that fails."""
    with _server_errors():
        async with get_client() as client:
            yield client


async def _read_part(flow_run_id: str, keyset: str, part: FormPart) -> Any:
    """Return this part of a form, or None if Prefect does not have it. Raises NoServerError."""
    with _server_errors():
        found: Any = await aread_flow_run_input(keyset_from_base_key(keyset)[part], flow_run_id=UUID(flow_run_id))
        return found
