"""`AgentTool`: one of our tools as an agent of another library calls it. Each call is a run of one step, with its gate and receipt."""

import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypedDict, Unpack, cast
from uuid import UUID, uuid5

from pydantic import JsonValue

from plan_adapter.expressions import has_expression
from plan_adapter.gates.approval import Approver, needs_gate, requires_approval
from plan_adapter.gates.approvers import PrefectApprover
from plan_adapter.local.settings import Settings
from plan_adapter.model.canonical import canonical_json
from plan_adapter.model.errors import NotApprovedError, PlanAdapterError, RunConflictError, RunNotFoundError, ToolError, UnknownOutcomeError
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.model.status import Outcome, PlanStatus, RunReason
from plan_adapter.runs.resume import execute_resume, owner_text
from plan_adapter.runs.run_session import RunRequest, opened_store
from plan_adapter.runs.start import execute_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry, Tools, as_registry
from plan_adapter.tools.tool import Tool, as_json
from plan_adapter.validation import BoundPlan, bind_inputs, validate

POLL_SECONDS = 1.0
"""The interval of checks: nothing announces that a process died or that its lease has expired."""

STARTING_SECONDS = 30.0
"""How long a process may take from creating a run to opening its gate or claiming it, with the start of its flow run in between."""

_CALLS = UUID("6a2b0c5e-8f3d-5b1a-9c47-0d6e1f2a3b4c")
"""The namespace of the ids of runs that belong to identified calls."""


class NotPermittedError(ToolError):
    """A tool that needs a permission which the agent does not have. Nothing that the model changes makes the call possible."""


class CallOptions(TypedDict, total=False):
    """The options of `as_functions`, all optional: who calls, who approves, and where the calls are recorded."""

    agent: str
    approval: ApprovalPolicy | None
    permissions: Collection[str]
    approver: Approver | None
    store: PlanStore | None
    hooks: Hooks | None
    context: RunContext | None
    offline: bool


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool with everything that its calls have in common."""

    tool: Tool[..., Any]
    _calls: "_AgentCalls"

    async def call(self, given: Mapping[str, Any], *, call_id: Sequence[str] = ()) -> JsonValue:
        """Return the tool's result as JSON. Raises what a function of `as_functions` raises.

        `call_id` identifies the call, such as a conversation and the id that the model gave to the call. A second call with the same id
        and arguments makes no second effect: it takes the result of the first, waits for it, or resumes it if its process has ended. A
        failure and a rejection are answered again in the same way. Without an id, each call is a new one.
        """
        arguments = self._checked(given)
        run = await self._calls.run(self.tool, arguments, call_id)
        step = run.step("call")
        if run.status is PlanStatus.COMPLETED:
            return step.result
        if step.outcome is Outcome.UNKNOWN:
            raise UnknownOutcomeError(f"the outcome of `{self.tool.name}` is unknown: {step.error}; see `plan show {run.id}`")
        if step.outcome is Outcome.FAILED:
            raise ToolError(step.error or f"`{self.tool.name}` failed")
        why = ": ".join(part for part in (run.message, run.rejection_note) if part) or (run.reason or RunReason.CANCELLED).value
        raise NotApprovedError(f"`{self.tool.name}` was not called: {why}")

    def _checked(self, given: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Return the arguments as JSON. Raises ToolError if they do not fit, and NotPermittedError if a permission is missing."""
        tool = self.tool
        if (refusal := tool.why_not_permitted(self._calls.permissions, giver="the option `permissions`")) is not None:
            raise NotPermittedError(refusal)
        arguments = cast("dict[str, JsonValue]", as_json(dict(given)))
        if problems := tool.check(arguments, lambda _: False):
            raise ToolError(f"the arguments do not fit `{tool.name}`: " + "; ".join(message for _, message, _ in problems))
        if code := [name for name in sorted(tool.literal_parameters & arguments.keys()) if has_expression(str(arguments[name]))]:
            raise ToolError(f"`{code[0]}` of `{tool.name}` is code, and must not contain `${{{{ }}}}`")
        return arguments


def agent_tools(tools: Tools, **options: Unpack[CallOptions]) -> list[AgentTool]:
    """Return each of `tools` for an agent of another library. The options are those of `as_functions`, and so are the errors."""
    registry = as_registry(tools)
    calls = _AgentCalls(registry, **options)
    if calls.offline and calls.approver is None and (writing := [f"`{tool.name}`" for tool in registry if tool.effect != "read"]):
        raise NotApprovedError(f"nobody can approve {', '.join(writing)}, which can write: pass an `approver`, or leave `offline` out")
    asks_in_prefect = calls.approver is None and not calls.offline
    calls = replace(calls, permissions=frozenset(calls.permissions), approver=PrefectApprover() if asks_in_prefect else calls.approver)
    return [AgentTool(tool, calls) for tool in registry]


@dataclass(frozen=True, slots=True)
class _AgentCalls:
    """The options of one agent, and the runs of its calls."""

    tools: ToolRegistry
    agent: str = "agent"
    approval: ApprovalPolicy | None = None
    permissions: Collection[str] = ()
    approver: Approver | None = None
    store: PlanStore | None = None
    hooks: Hooks | None = None
    context: RunContext | None = None
    offline: bool = False

    async def run(self, tool: Tool[..., Any], arguments: dict[str, JsonValue], call_id: Sequence[str]) -> PlanRun:
        """Return the run of a call, which has ended. It is that of an earlier call with the same id and arguments, if there was one."""
        settings = Settings()
        async with opened_store(self.store, settings) as store:
            if not call_id:
                return await self._start(tool, arguments, self._request(None, settings), store)
            run_id = self._run_id(tool, arguments, call_id, store)
            request = self._request(run_id, settings)
            async with _alone(run_id, store):
                if await _is_recorded(run_id, store):
                    return await self._finish(run_id, request, store)
                try:
                    return await self._start(tool, arguments, request, store)
                except (RunConflictError, NotApprovedError) as error:
                    if not await _is_recorded(run_id, store) or not await _may_be_elsewhere(error, run_id, store):
                        raise
                    return await self._finish(run_id, request, store)

    async def _start(self, tool: Tool[..., Any], arguments: dict[str, JsonValue], request: RunRequest, store: PlanStore) -> PlanRun:
        plan = _plan_of(tool, self, arguments)
        bound = bind_inputs(validate(plan, self.tools), {"arguments": arguments} if plan.inputs else None)
        await self._refuse_unattended(tool, bound, store, request.settings)
        return await execute_plan(bound, run_request=request, store=store, offline=self.offline)

    def _request(self, run_id: str | None, settings: Settings) -> RunRequest:
        is_form = isinstance(self.approver, PrefectApprover)
        return RunRequest(
            approver=None if is_form else self.approver,
            asks_in_form=is_form,
            tools=self.tools,
            hooks=self.hooks or Hooks(),
            context=self.context or RunContext(),
            settings=settings,
            run_id=run_id,
        )

    async def _finish(self, run_id: str, request: RunRequest, store: PlanStore) -> PlanRun:
        """Return a recorded run once it has ended: wait for the process that executes it, or resume it if there is none."""
        deadline = time.monotonic() + STARTING_SECONDS
        while True:
            run = await store.run(run_id)
            if not _can_continue(run):
                return run
            if not await _is_taken(run, store):
                try:
                    return await execute_resume(run_id, tools=self.tools, run_request=request, store=store, offline=self.offline)
                except (RunConflictError, NotApprovedError) as error:
                    if time.monotonic() > deadline or not await _may_be_elsewhere(error, run_id, store):
                        await _refuse_unknown(run_id, error, store)
                        raise
            await store.changed(POLL_SECONDS)

    async def _refuse_unattended(self, tool: Tool[..., Any], bound: BoundPlan, store: PlanStore, settings: Settings) -> None:
        """Raise NotApprovedError if a person has to approve the call and nobody can be asked."""
        if self.approver is not None:
            return
        policy, validated = await store.policy.effective(settings), bound.validated
        if requires_approval(validated.plan, policy) or any(needs_gate(step, validated, policy) for step in validated.plan.all_steps):
            raise NotApprovedError(
                f"`{tool.name}` was not called: the policy asks a person before this read, and nobody can approve it; pass an `approver`"
            )

    def _run_id(self, tool: Tool[..., Any], arguments: dict[str, JsonValue], call_id: Sequence[str], store: PlanStore) -> str:
        """Return the id of the run of this call. The same call has the same id in every process."""
        context = self.context or RunContext()
        owner = [self.agent, context.agent_id, context.org_id, context.tenant_id or store.tenant_id, context.task_id]
        identity: dict[str, JsonValue] = {"owner": [*owner], "call": [*call_id], "tool": tool.name, "arguments": arguments}
        return str(uuid5(_CALLS, canonical_json(identity).decode()))


_in_progress = dict[str, object]()
"""The runs that calls of this process start or resume. All that use one store share its claims, so a run must not have two of them."""


@asynccontextmanager
async def _alone(run_id: str, store: PlanStore) -> AsyncGenerator[None]:
    """Wait until no other call of this process has the run, and keep others waiting inside the block."""
    mine = object()
    while _in_progress.setdefault(run_id, mine) is not mine:
        await store.changed(POLL_SECONDS)
    try:
        yield
    finally:
        del _in_progress[run_id]


async def _is_recorded(run_id: str, store: PlanStore) -> bool:
    try:
        await store.run(run_id, with_steps=False)
    except RunNotFoundError:
        return False
    return True


async def _is_taken(run: PlanRun, store: PlanStore) -> bool:
    """Return whether a process executes the run, waits at its gate, or has created it a moment ago and will do so."""
    if await owner_text(run.id, store) is not None:
        return True
    if run.status is not PlanStatus.PENDING_APPROVAL or await store.gates.find(run_id=run.id, open_only=False):
        return False
    return await store.now() - run.created_at < timedelta(seconds=STARTING_SECONDS)


async def _may_be_elsewhere(error: PlanAdapterError, run_id: str, store: PlanStore) -> bool:
    """Return whether `error` may mean that another process was faster: it executes the run now, has ended it, or is about to claim it."""
    run = await store.run(run_id)
    return isinstance(error, RunConflictError) or not _can_continue(run) or await _is_taken(run, store)


async def _refuse_unknown(run_id: str, error: PlanAdapterError, store: PlanStore) -> None:
    """Raise UnknownOutcomeError if the run may have made its call, so that `error` does not look as if it had not."""
    if await store.outcomes.unknown(run_id):
        raise UnknownOutcomeError(f"the outcome of run {run_id} is unknown: {error}") from error


def _can_continue(run: PlanRun) -> bool:
    """Return whether a run has not ended, or was interrupted, also if a person has recorded the outcome of its write since."""
    return run.completed_at is None or run.reason is RunReason.INTERRUPTED


def _plan_of(tool: Tool[..., Any], calls: _AgentCalls, arguments: Mapping[str, JsonValue]) -> ExecutionPlan:
    """Return the plan of one call. Its arguments are the plan's input, because texts in a plan may contain expressions."""
    code_parameters = tool.literal_parameters
    parameters = {name: value if name in code_parameters else f'${{{{ inputs.arguments["{name}"] }}}}' for name, value in arguments.items()}
    values = any(name not in code_parameters for name in arguments)
    return ExecutionPlan(
        name=f"{calls.agent}: {tool.name}",
        description=f"{calls.agent} calls `{tool.name}`" + (f": {tool.description}" if tool.description else ""),
        inputs={"arguments": Input(type="object", description=f"The arguments of `{tool.name}`.")} if values else {},
        options=ExecutionOptions(require_approval=tool.effect != "read"),
        approval=calls.approval,
        permissions=[*sorted(tool.permissions)],
        steps=[Step(id="call", tool_name=tool.name, description=tool.description, parameters=parameters)],
        tags=[calls.agent],
    )
