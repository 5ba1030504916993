"""Support for tests of gates: an open gate without a store, clients that answer its form, and a proxy that can be shut."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import OrchestrationResult

from plan_adapter.engine.internals import retry_busy_server_soon
from plan_adapter.gates.approval import answer_to, refusal
from plan_adapter.gates.identity import identity_without_proof
from plan_adapter.model.approvals import Answer, Approval, ApprovalRequest, Gate, GateEnd, GateKind, GatePolicy
from plan_adapter.model.plan import new_id

WAIT_SECONDS = 120.0
GOOD: dict[str, Any] = {"decision": "approve", "approver": "ana", "note": "looks right"}


def request_of(
    *,
    step_id: str | None = None,
    item: int | None = None,
    kind: GateKind = "approval",
    gate_policy: GatePolicy | None = None,
    text: str = "## Approve deploy?\n\n- **1. a** (read): `b`\n\n### Steps\n\n- **1. a**: `b`\n",
) -> ApprovalRequest:
    """Return a request to approve a plan or a step."""
    return ApprovalRequest(
        approval_digest="d" * 64,
        name="deploy",
        description="Deploys.",
        text=text,
        run_id=new_id(),
        step_id=step_id,
        item=item,
        kind=kind,
        gate_id=new_id(),
        opened_at=datetime.now(UTC),
        gate_policy=gate_policy or GatePolicy(),
    )


@dataclass
class InMemoryGate:
    """An open gate that keeps its row in memory. Implements `approval.PendingGate`."""

    request: ApprovalRequest
    answers: list[Answer] = field(default_factory=list[Answer])
    openings: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    approval: Approval | None = None
    check: Callable[[Answer], str | None] | None = None
    submitted: list[float] = field(default_factory=list[float])
    recorded: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        """Open the gate."""
        self.closed: asyncio.Future[Gate] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Condition()

    @property
    def gate(self) -> Gate:
        """The current row of the gate."""
        asked = self.request
        flow_run_id, keyset = self.openings[-1] if self.openings else (None, None)
        return Gate(
            id=asked.gate_id or "",
            run_id=asked.run_id or "",
            step_id=asked.step_id,
            item=asked.item,
            approval_digest=asked.approval_digest,
            name=asked.name,
            description=asked.description,
            text=asked.text,
            gate_policy=asked.gate_policy,
            opened_at=asked.opened_at or datetime.now(UTC),
            flow_run_id=flow_run_id,
            keyset=keyset,
            openings=len(self.openings),
        )

    async def submit(self, answer: Answer) -> str | None:
        """Accept `answer` if it satisfies the gate policy; otherwise return why not."""
        self.submitted.append(asyncio.get_running_loop().time())
        self.answers.append(answer)
        if self.closed.done():
            return None
        wrong = (
            self.check(answer)
            if self.check
            else refusal(self.request.gate_policy, identity_without_proof(answer), decision=answer.decision)
        )
        if wrong is None:
            self.approval = answer_to(self.request, decision=answer.decision, by=answer.by, known_by=answer.channel, note=answer.note)
            self.close("answered")
        return wrong

    async def record_form(self, *, flow_run_id: str, keyset: str) -> None:
        """Record where the form will be shown."""
        self.recorded = (flow_run_id, keyset)

    async def report_form(self, *, flow_run_id: str, keyset: str | None) -> None:
        """Record where the form is shown, or that there is none."""
        assert self.recorded == (flow_run_id, keyset or self.recorded[1])
        async with self.changed:
            self.openings.append((flow_run_id, keyset or ""))
            self.changed.notify_all()

    def close(self, end: GateEnd) -> None:
        """Close the row."""
        if not self.closed.done():
            self.closed.set_result(replace(self.gate, closed_at=datetime.now(UTC), end=end))

    async def answered_by(self, by: str) -> None:
        """Close the row with an approval that was given elsewhere."""
        self.approval = answer_to(self.request, decision="approve", by=by, known_by="os_user")
        self.close("answered")

    async def approval_of(self, gate_id: str) -> Approval | None:
        """Return the approval, as the store would."""
        assert gate_id == self.request.gate_id
        return self.approval

    async def opening(self, number: int = 1) -> UUID:
        """Wait until the form is shown for the `number`th time, and return the id of its flow run."""
        async with asyncio.timeout(WAIT_SECONDS), self.changed:
            await self.changed.wait_for(lambda: len(self.openings) >= number)
            return UUID(self.openings[number - 1][0])


async def resume(flow_run_id: UUID, run_input: dict[str, Any] | None) -> OrchestrationResult[Any]:
    """Submit the form of `flow_run_id` as the UI does, again until it exists: it is written after the pause."""
    async with asyncio.timeout(WAIT_SECONDS), get_client() as client:
        retry_busy_server_soon(client)
        while True:
            try:
                result = await client.resume_flow_run(flow_run_id, run_input=run_input)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.CONFLICT.value:  # a server on PostgreSQL stores another answer at this moment
                    raise
                continue
            if "schema not found" not in str(getattr(result.details, "reason", "")):
                return result
            await asyncio.sleep(0.05)


async def flow_run(flow_run_id: UUID) -> FlowRun:
    """Return the flow run from the server."""
    async with get_client() as client:
        return await client.read_flow_run(flow_run_id)


async def wait_for_state(flow_run_id: UUID, *names: str) -> str:
    """Return the name of the state of the flow run once it is one of `names`."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (name := (await flow_run(flow_run_id)).state_name) not in names:
            await asyncio.sleep(0.1)
    return str(name)


async def states(flow_run_id: UUID) -> list[str]:
    """Return the names of all states of the flow run."""
    async with get_client() as client:
        return [state.name or "" for state in await client.read_flow_run_states(flow_run_id)]


async def form_text(flow_run_id: UUID, keyset: str) -> str:
    """Return the description above the form."""
    from prefect.input import aread_flow_run_input

    return await aread_flow_run_input(f"{keyset}-description", flow_run_id=flow_run_id)


class SwitchableProxy:
    """A proxy that can be shut and reopened; `url` stays the same. Runs in a thread, as Prefect also calls its server synchronously."""

    def __init__(self, api_url: str) -> None:
        """Forward to `api_url` once open."""
        self._behind = urlsplit(api_url)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._open = set[asyncio.StreamWriter]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the API behind the proxy."""
        return f"http://127.0.0.1:{self._port}{self._behind.path}"

    async def open(self) -> None:
        """Forward requests."""
        await self._in_thread(self._start())

    async def shut(self) -> None:
        """Refuse new connections and break open ones."""
        await self._in_thread(self._stop())

    async def end(self) -> None:
        """Shut the proxy and end its thread."""
        await self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def _in_thread(self, call: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self._port, reuse_address=True)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._behind.hostname, self._behind.port)
        self._open |= {writer, server_writer}
        copies = [asyncio.ensure_future(_copy(reader, server_writer)), asyncio.ensure_future(_copy(server_reader, writer))]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        writer.transport.abort()
        server_writer.transport.abort()
        self._open -= {writer, server_writer}


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
