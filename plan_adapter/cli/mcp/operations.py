"""`Operations`: what an agent may do with plans and runs. It cannot answer at a gate, and nothing it submits runs without approval.

The methods are the tools that the server offers. The agent reads their signatures and docstrings.
"""

import asyncio
import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, cast

from pydantic import Field, JsonValue

from plan_adapter.agent.judging import find_unnamed_secrets
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Budget, Planner
from plan_adapter.cli import output
from plan_adapter.cli.approval_state import ApprovalState, approval_state_of
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.drafting import call_line
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.cli.foreground import next_command
from plan_adapter.cli.mcp.workers import Workers
from plan_adapter.cli.records import gate_place
from plan_adapter.cli.servers import known_server
from plan_adapter.cli.sources import STORE_PREFIX, plan_of
from plan_adapter.documents import dump_plan, read_document
from plan_adapter.gates.approval import refuse_operation, requires_approval
from plan_adapter.local.credentials import credential_values
from plan_adapter.local.secrets import ENVIRONMENT_PREFIX
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Gate
from plan_adapter.model.drafts import PlanRequest
from plan_adapter.model.errors import InvalidPlanError, RunConflictError, RunNotFoundError
from plan_adapter.model.plan import ExecutionPlan, new_id
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import redacted
from plan_adapter.model.record import PlanRun, RunContext, StepRun
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.model.values import join
from plan_adapter.runner import acancel_run
from plan_adapter.runs.plan_approval import (
    end_expired,
    end_overdue,
    is_answered,
    open_detached_gate,
    refuse_frozen_start,
    refuse_quorum_out_of_reach,
)
from plan_adapter.runs.resume import can_ask_again
from plan_adapter.runs.run_session import RunRequest, server_of
from plan_adapter.runs.secret_lookup import model_redactor
from plan_adapter.runs.start import create_run
from plan_adapter.runs.variables import note_variables, with_variables
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import answer_command
from plan_adapter.text.preview import preview_plan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, lint, validate
from plan_adapter.validation.named_secrets import secret_inputs

MAX_CHARACTERS = 40_000
"""The limit of one answer, as JSON."""

CUTS = ((20_000, 200), (4_000, 100), (1_000, 40), (250, 15), (80, 5))
"""Limits for the characters of a text and the members of a list or object. They are tried in order until an answer is short enough."""

CUT_NOTE = "Long values were cut; each place says by how much. `plan show RUN --json` shows a person all of it."


def model_output(answer: dict[str, Any], *, hidden: Collection[str] = ()) -> dict[str, JsonValue]:
    """Return `answer` for a model: without secrets, and cut to a length that it can read."""
    plain = cast("JsonValue", json.loads(json.dumps(answer, default=_json_default)))
    shown = redacted(plain, hidden=[*hidden, *_known_secrets()])
    return cut(cast("dict[str, JsonValue]", shown))


def _json_default(value: object) -> str:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)


def cut(answer: dict[str, JsonValue], *, max_characters: int = MAX_CHARACTERS) -> dict[str, JsonValue]:
    """Return `answer`, cut as little as necessary. A cut answer has a note that says so."""
    if _size(answer) <= max_characters:
        return answer
    for text, members in CUTS:
        shown = cast("dict[str, JsonValue]", _cut_value(answer, text, members))
        if _size(shown) <= max_characters:
            return {**shown, "note": CUT_NOTE}
    return {"note": CUT_NOTE, "beginning": json.dumps(answer, ensure_ascii=False)[: max_characters // 2]}


def _size(answer: JsonValue) -> int:
    return len(json.dumps(answer, ensure_ascii=False))


def _cut_value(value: JsonValue, text: int, members: int) -> JsonValue:
    if isinstance(value, str):
        return value if len(value) <= text else f"{value[:text]}… ({len(value) - text} more characters)"
    if isinstance(value, list):
        rest: list[JsonValue] = [f"… ({len(value) - members} more)"] if len(value) > members else []
        return [*(_cut_value(member, text, members) for member in value[:members]), *rest]
    if isinstance(value, dict):
        left = {key: _cut_value(member, text, members) for key, member in list(value.items())[:members]}
        return left | ({"…": f"{len(value) - members} more"} if len(value) > members else {})
    return value


def _known_secrets() -> list[str]:
    named = [value for name, value in os.environ.items() if name.startswith(ENVIRONMENT_PREFIX)]
    return [*named, *credential_values(os.environ)]


def run_entry(run: PlanRun) -> dict[str, Any]:
    """Return a run as lists show it."""
    return {
        "run": run.id,
        "plan": run.name,
        "status": run.status,
        "reason": run.reason,
        "message": run.message,
        "progress": run.summary().progress,
        "done": run.summary().text,
        "created_at": run.created_at,
        "completed_at": run.completed_at,
    }


def run_output(state: ApprovalState, *, is_own: bool, is_running: bool, failure: str | None) -> dict[str, Any]:
    """Return a run for the agent: its steps, what it waits for, and what to do next."""
    run = state.run
    return {
        **run_entry(run),
        "inputs": run.inputs,
        "outputs": run.outputs,
        "steps": [_step_output(step) for step in run.steps],
        "gates": [gate_output(gate) for gate in state.gates],
        "next": _next_hint(state, is_own=is_own, is_running=is_running, failure=failure),
    }


def _step_output(step: StepRun) -> dict[str, Any]:
    fields = ("id", "tool_name", "status", "outcome", "result", "error", "reason", "attempts")
    return {name: value for name in fields if (value := getattr(step, name)) is not None}


def _next_hint(state: ApprovalState, *, is_own: bool, is_running: bool, failure: str | None) -> str:
    run = state.run
    if run.completed_at is not None:
        return state.hint() or next_command(run)
    if state.gates:
        then = "; once they have answered, resume_run also works" if is_own else ""
        return f"only a person can answer, tell them: {state.hint()}{then}"
    if is_running or (run.status is PlanStatus.EXECUTING and run.reason is not RunReason.INTERRUPTED):
        return "it is running: show_run shows its progress"
    if failure is not None:
        return f"its process has ended: {failure}"
    return (state.hint() or next_command(run)) + ("; resume_run resumes it" if is_own else "")


def gate_output(gate: Gate) -> dict[str, Any]:
    """Return a gate for the agent: what it asks about, who may answer, and with which command."""
    gate_policy = gate.gate_policy
    return {
        "run": gate.run_id,
        "plan": gate.name,
        "gate": gate_place(gate),
        "asks": {"approval": "for an approval", "question": "a question", "outcome": "for the outcome of a write"}[gate.kind],
        "description": gate.description,
        "approvers": "anyone who reaches the store" if gate_policy.approvers is None else [*gate_policy.approvers],
        "known_by": "in any way" if gate_policy.known_by is None else [*gate_policy.known_by],
        "digest": gate.approval_digest,
        "command": answer_command(gate),
        "opened_at": gate.opened_at,
        "expires_at": gate.expires_at,
    }


MAX_WAIT_SECONDS = 50.0
"""Seconds: many clients give up on a call after 60."""
POLL_SECONDS = 1.0
MAX_DOCUMENT_CHARACTERS = 1_000_000
MAX_WAITING_RUNS = 20
"""How many runs of one agent may wait for people at once."""
MAX_LISTED_RUNS = 1000

Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)]
Inputs = dict[str, JsonValue]
Output = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """The caller, as the command line of the server names it. Nothing here comes from the agent itself."""

    name: str = "agent"
    context: RunContext = field(default_factory=RunContext)  # without an agent id, it gets a new one, which no other server has

    def __post_init__(self) -> None:
        if self.context.agent_id is None:
            object.__setattr__(self, "context", replace(self.context, agent_id=new_id()))

    @property
    def by(self) -> str:
        """The name under which the agent's runs start. No operating system account has such a name."""
        return f"mcp/{self.name}"


@dataclass(slots=True)
class Operations:
    """The operations of `agent` on `store`. Steps of the agent's plans can call only `tools`."""

    store: PlanStore
    tools: ToolRegistry
    agent: Agent
    workers: Workers
    settings: Settings
    model: OpenAIModel | None = None
    secrets: Sequence[str] = ()  # the names that the agent's plans may use

    async def list_tools(self) -> Output:
        """List the tools that steps of a plan may call, each with its effect and the schema of its parameters."""
        return {"tools": self.tools.definitions()}

    async def draft_plan(
        self, task: str, context: str | Inputs | None = None, constraints: list[str] | None = None, max_steps: int | None = None
    ) -> Output:
        """Have a language model draft a plan for a task in words. It is stored, runs nothing, and needs a person's approval to run.

        Args:
            task: What is to be done, in words.
            context: What the plan needs to know, as a text or as facts by name, including answers to the model's questions; no secrets.
            constraints: Rules that the plan must keep, one sentence each, such as "back up first".
            max_steps: The largest number of steps that it may have.
        """
        if self.model is None:
            raise UsageError("no model is configured: a person sets PLAN_ADAPTER_MODEL where this server runs")
        request = PlanRequest(task, context or {}, tuple(constraints or ()), max_steps, available_secrets=tuple(self.secrets))
        planner = Planner(
            self.model,
            self.tools,
            budget=Budget.of(self.settings),
            keep=self.store.drafts,
            redactor=await model_redactor(self.settings, self.secrets),
            on_call=lambda call: output.note(call_line(call)),
        )
        draft = await planner.drafted(request, draft_id=new_id())
        if draft.plan is None:
            problems = [_problem_output(problem) for problem in draft.problems]
            return {"draft": draft.id, "plan": None, "failure": draft.failure, "problems": problems}
        # Under a runbook's name the draft would become the runbook's newest version.
        version = await self.store.save(draft.plan, author=self.agent.by, name=f"draft/{draft.plan.name}", context=self.agent.context)
        return {
            "draft": draft.id,
            "plan": f"{version.name}@{version.version}",
            "digest": version.digest,
            "document": dump_plan(draft.plan),
            "says": draft.speak,
            "constraints": [asdict(kept) for kept in draft.constraints],
            "notes": draft.notes,
            "next": "preview_plan shows what it would do; run_plan with this `plan` asks a person for approval, then runs it",
        }

    async def validate_plan(self, document: str) -> Output:
        """Find every problem in a plan document before it runs: where it is, what is wrong, and how to fix it.

        Args:
            document: The text of the plan, YAML or JSON.
        """
        plan, problems = _read_document(document)
        if plan is not None:
            problems = self._find_problems(plan, is_document=True)
        return {
            "valid": not any(problem.severity == "error" for problem in problems),
            "problems": [_problem_output(problem) for problem in problems],
        }

    async def preview_plan(self, plan: str | None = None, document: str | None = None, inputs: Inputs | None = None) -> Output:
        """Show what a run of a plan would do: order, parameters, effects, gates, longest duration. Runs nothing.

        Args:
            plan: A stored plan: its name, `name@version`, or its digest. Give this or `document`.
            document: The text of a plan, YAML or JSON.
            inputs: The inputs of the run, by name; missing ones are reported.
        """
        validated = self.validate_for_approval(await self._load_plan(plan, document), is_document=document is not None)
        missing = [name for name, declared in validated.plan.inputs.items() if declared.is_required and name not in (inputs or {})]
        bound = None if missing else self._bind(validated, inputs or {}, chosen=None)
        policy = await self.store.policy.effective(self.settings)
        preview = preview_plan(
            validated if bound is None else bound.validated,
            inputs=None if bound is None else bound.inputs,
            approval_digest=None if bound is None else bound.approval_digest,
            requires_approval=requires_approval(validated.plan, policy),
            missing=tuple(missing),
            gate_effects=policy.gate_effects,
        )
        shown = preview.as_json()
        del shown["secrets"]  # a field of this name would be redacted, although it holds only names
        return {**shown, "needs": [f"secrets.{name}" for name in preview.secrets if name not in preview.secret_creators]}

    async def run_plan(
        self, plan: str | None = None, document: str | None = None, inputs: Inputs | None = None, wait_seconds: Wait = 10
    ) -> Output:
        """Start a run of a plan. It waits until a person has approved exactly this plan with these inputs; `next` says how.

        Args:
            plan: A stored plan: its name, `name@version`, or its digest. Give this or `document`.
            document: The text of a plan, YAML or JSON.
            inputs: The inputs of the run, by name.
            wait_seconds: How long to wait for the run to end; it continues in any case.
        """
        validated = self.validate_for_approval(await self._load_plan(plan, document), is_document=document is not None)
        return await self.start(validated, inputs or {}, wait_seconds=wait_seconds)

    async def show_run(self, run: str, wait_seconds: Wait = 0) -> Output:
        """Show a run: its steps with results and errors, what it waits for, and what to do next.

        Args:
            run: The id of the run, or its beginning.
            wait_seconds: How long to wait for the run to end.
        """
        return await self._wait_and_show((await self._find_run(run)).id, wait_seconds)

    async def list_runs(self, status: PlanStatus | None = None, limit: Annotated[int, Field(ge=1, le=100)] = 20) -> Output:
        """List the runs that you may see, newest first.

        Args:
            status: Only runs with this status.
            limit: At most this many.
        """
        found = await self.store.runs(MAX_LISTED_RUNS, status=status, context=self.agent.context)
        return {"runs": [run_entry(run) for run in found if self._may_see(run)][:limit]}

    async def list_gates(self) -> Output:
        """List the gates of your runs that wait for a person's answer: the run, who may answer, with which command. You cannot answer."""
        await end_expired(self.store)
        gates = await self.store.gates.find()
        seen = {run.id for run in await self.store.runs(MAX_LISTED_RUNS, context=self.agent.context) if self._may_see(run)}
        gates = [gate for gate in gates if gate.run_id in seen]
        return {"gates": [gate_output(gate) for gate in reversed(gates)]}

    async def cancel_run(self, run: str, reason: str = "cancelled by the agent") -> Output:
        """Cancel a run that you started: no further step starts, and completed steps stay done.

        Args:
            run: The id of the run, or its beginning.
            reason: The reason to record.
        """
        own_run = await self._find_own_run(run)
        await acancel_run(own_run.id, reason=reason, store=self.store, by=self.agent.by)
        return await self._wait_and_show(own_run.id, 0)

    async def resume_run(self, run: str, wait_seconds: Wait = 10) -> Output:
        """Resume a run that you started, after a person has approved it or after it stopped. Approves nothing itself.

        Args:
            run: The id of the run, or its beginning.
            wait_seconds: How long to wait for the run to end; it continues in any case.
        """
        own_run = await end_overdue(await self._find_own_run(run), self.store)
        is_final = own_run.reason is RunReason.EXPIRED and not await can_ask_again(own_run, self.store)
        if own_run.status is PlanStatus.COMPLETED or own_run.reason is RunReason.REJECTED or is_final:
            raise RunConflictError(f"run {own_run.id} has ended ({own_run.outcome_text}): start a new one")
        policy = await self.store.policy.effective(self.settings)
        refuse_operation(await self.store.get(own_run.digest), policy, by=self.agent.by, operation="resume")
        if not await self.store.gates.find(run_id=own_run.id):
            self.workers.start(own_run.id)
        return await self._wait_and_show(own_run.id, wait_seconds)

    def validate_for_approval(self, plan: ExecutionPlan, *, is_document: bool) -> ValidatedPlan:
        """Return `plan`, validated and changed to always require approval. Raises InvalidPlanError with every problem."""
        if errors := [problem for problem in self._find_problems(plan, is_document=is_document) if problem.severity == "error"]:
            raise InvalidPlanError(errors)
        plan.options.require_approval, plan.options.auto_approve = True, False
        return validate(plan, self.tools)

    async def start(
        self, validated: ValidatedPlan, inputs: Mapping[str, object], *, wait_seconds: float, is_runbook: bool = False
    ) -> Output:
        """Create a run, start it unless somebody must approve it first, and return its status after at most `wait_seconds`.

        A person chose the plan if it `is_runbook`.
        """
        chosen, before = [*inputs] if is_runbook else None, inputs
        if validated.plan.unread_variables(inputs):
            server = None if self.workers.offline else await server_of(RunRequest(settings=self.settings))
            inputs = await with_variables(validated.plan, inputs, server=server)
        bound = note_variables(self._bind(validated, inputs, chosen=chosen), before=before, after=inputs)
        refuse_operation(bound.validated.plan, await self.store.policy.effective(self.settings), by=self.agent.by, operation="run")
        waiting = await self.store.runs(MAX_LISTED_RUNS, status=PlanStatus.PENDING_APPROVAL, context=self.agent.context)
        if sum(run.requested_by == self.agent.by for run in waiting) >= MAX_WAITING_RUNS:
            raise RunConflictError(f"{MAX_WAITING_RUNS} of your runs wait for people: list_gates lists them, cancel_run withdraws one")
        # If the client cancels the call, it must not leave a run that nobody was asked to approve.
        run = await asyncio.shield(asyncio.ensure_future(self._create_run(bound)))
        if (
            not self.workers.offline
            and await self._waits_at_gates(run)
            and await in_daemon_thread(lambda: known_server(self.settings)) is not None
        ):
            self.workers.start(run.id)  # the process shows the gate's form on the page of a flow run, and ends
        return await self._wait_and_show(run.id, wait_seconds)

    def _bind(self, validated: ValidatedPlan, inputs: Mapping[str, object], *, chosen: Collection[str] | None) -> BoundPlan:
        """Return `validated` with `inputs`. Raises InvalidPlanError if it uses a secret that the agent was not named.

        `chosen` are the inputs that the agent gives to a runbook. For these it may also name the default or one of the choices. None: the
        plan is no runbook.
        """
        bound = bind_inputs(validated, inputs)
        definitions = {name: validated.plan.inputs[name] for name in secret_inputs(validated.plan.inputs) if name in (chosen or ())}
        message, hint = "you may not use this secret", "choose what the input offers; whoever starts this server names more with `--secret`"
        problems = [
            Problem("unnamed-secret", at=join("inputs", name), message=message, hint=hint)
            for name, definition in definitions.items()
            if bound.inputs[name] not in (*self.secrets, definition.default, *(definition.enum or ()))
        ]
        if problems := problems if chosen is not None else find_unnamed_secrets(bound.validated, self.secrets):
            raise InvalidPlanError(problems)
        return bound

    async def _create_run(self, bound: BoundPlan) -> PlanRun:
        run_request = RunRequest(waits=False, requested_by=self.agent.by, context=self.agent.context, settings=self.settings)
        policy = await self.store.policy.effective(self.settings)
        frozen = await refuse_frozen_start(bound, self.store, run_request, policy)
        await refuse_quorum_out_of_reach(bound, self.store, policy, requested_by=self.agent.by, frozen=frozen)
        answered = await is_answered(bound, self.store, run_request, policy)
        run = await create_run(bound, self.store, run_request)
        if answered:
            self.workers.start(run.id)
        else:
            await open_detached_gate(bound, run, self.store, self.settings)
        return run

    async def _waits_at_gates(self, run: PlanRun) -> bool:
        """Return whether `run` only waits at gates, even if its process has not ended yet."""
        return run.status is PlanStatus.PENDING_APPROVAL and bool(await self.store.gates.find(run_id=run.id))

    async def _wait_and_show(self, run_id: str, seconds: float) -> Output:
        """Wait until no process runs the run, for at most `seconds`, and return its status."""
        deadline = time.monotonic() + seconds
        while True:
            was_running = self.workers.is_running(run_id)  # before the run is read, so that the last write of the process is seen
            run = await end_overdue(await self.store.run(run_id), self.store)
            is_running = (was_running and not await self._waits_at_gates(run)) or (
                run.status is PlanStatus.EXECUTING and run.reason is not RunReason.INTERRUPTED
            )
            left = deadline - time.monotonic()
            if run.completed_at is not None or not is_running or left <= 0:
                break
            await self.store.changed(min(left, POLL_SECONDS))
        state = await approval_state_of(run, self.store, self.settings)
        return run_output(
            state, is_own=self._is_own(run), is_running=is_running, failure=None if was_running else self.workers.failure(run_id)
        )

    async def _load_plan(self, plan: str | None, document: str | None) -> ExecutionPlan:
        if (plan is None) == (document is None):
            raise UsageError("give `plan`, the name of a stored one, or `document`, the text of one")
        if document is not None:
            found, problems = _read_document(document)
            if found is None:
                raise InvalidPlanError(problems)
            return found
        return await plan_of(f"{STORE_PREFIX}{plan}", self.store)

    def _find_problems(self, plan: ExecutionPlan, *, is_document: bool) -> list[Problem]:
        """Return the problems that `lint` finds, and a problem for everything that an agent may not write.

        An agent may not write a lower effect than the tool's, secrets that it was not named, who approves or operates its plans, or
        permissions.
        """
        found = [
            replace(problem, severity="error", hint="leave the effect out, or raise it") if problem.code == "lowered-effect" else problem
            for problem in lint(plan, self.tools)
        ]
        if is_document:
            places = [f"{at}{name}" for at, each in plan.plans.items() for name in ("approval", "permissions") if getattr(each, name)]
            places += [f"{at}.approvers" for at, step in plan.places.items() if step.approvers]
            message = "an agent may not say who approves, answers or operates, or what tools are permitted to do"
            found += [Problem("approval-by-agent", at=at, message=message, hint=f"leave `{at.split('.')[-1]}` out") for at in places]
        if any(problem.severity == "error" for problem in found):
            return found
        return [*found, *find_unnamed_secrets(validate(plan, self.tools), self.secrets)]

    async def _find_run(self, beginning: str) -> PlanRun:
        """Return a run that the agent may see. Raises RunNotFoundError for any other run, as if it did not exist."""
        run = await self.store.run(beginning, with_results=False)
        if not self._may_see(run):
            raise RunNotFoundError(f"no run has the id `{beginning}`, or an id that begins with it")
        return run

    async def _find_own_run(self, beginning: str) -> PlanRun:
        run = await self._find_run(beginning)
        if not self._is_own(run):
            raise RunConflictError(f"run {run.id} was not started by you: you may look at it, and a person can resume or cancel it")
        return run

    def _may_see(self, run: PlanRun) -> bool:
        """Return whether `run` has the ids of the agent's context."""
        required: Mapping[str, str | None] = asdict(self.agent.context)
        return all(value is None or getattr(run, name) == value for name, value in required.items())

    def _is_own(self, run: PlanRun) -> bool:
        return run.requested_by == self.agent.by


def _read_document(document: str) -> tuple[ExecutionPlan | None, list[Problem]]:
    if len(document) > MAX_DOCUMENT_CHARACTERS:
        message = f"the document has {len(document)} characters; the limit is {MAX_DOCUMENT_CHARACTERS}"
        return None, [Problem("too-large", message=message, hint="split the plan")]
    return read_document(document)


def _problem_output(problem: Problem) -> Output:
    return {name: value for name, value in asdict(problem).items() if value not in (None, "")}
