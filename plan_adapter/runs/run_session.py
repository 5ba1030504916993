"""`RunRequest`: what a caller passes with a run. `RunSession`: one start of a run in one process, and who may operate it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from plan_adapter.agent.configured import NO_MODEL, model_of
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.engine.dask import INSTALL_DASK, dask_cluster, has_dask
from plan_adapter.execution.cancellation import LeaveSignal
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.ports import Cluster, StepGates, StepRunner
from plan_adapter.execution.scope import Publish, ReportRun
from plan_adapter.gates.approval import Approver, Operation, os_user, refusal, refuse_operation
from plan_adapter.gates.gate import GateForms
from plan_adapter.gates.identity import Identity, identity_of_name
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.local.secrets import SecretChain
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval, ApprovalRequest, Decision, GatePolicy
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError
from plan_adapter.model.goals import GoalModel
from plan_adapter.model.hooks import Hooks, Listener
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.runs.gate_policies import gate_policy_at
from plan_adapter.runs.secret_lookup import model_redactor
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import options_of_proofs
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan, ValidatedPlan
from plan_adapter.validation.findings import Findings


class Requester(Protocol):
    """The person behind a request about a run. They prove who they are once the content to sign is known."""

    @property
    def by(self) -> str:
        """The person's name."""
        ...

    @property
    def channel(self) -> str:
        """Where the name comes from if there is no proof."""
        ...

    @property
    def has_proof(self) -> bool:
        """Whether the person brings a proof of identity."""
        ...

    async def prove(self, because: str, request: ApprovalRequest, store: PlanStore, /) -> tuple[Identity, str | None]:
        """Return the verified identity, and the signature, if any. Raises NotApprovedError if the gate policy refuses it."""
        ...


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a caller passes beside the plan and its inputs: who approves, who asks, hooks, context and settings."""

    approval: Approval | None = None
    approver: Approver | None = None
    asks_in_form: bool = False  # whether a form in the Prefect UI asks as well; needs a server
    waits: bool = True  # whether to wait for people: at gates, and for resolutions of unknown outcomes
    tools: ToolRegistry | None = None  # for a new version of the plan that arrives while the run waits at its gate
    requested_by: str = field(default_factory=os_user)
    plan_file: Path | None = None  # path of the plan document; a standing approval may be beside it
    schedule: str | None = None  # `flow/deployment` whose schedule started the run
    deployment: str | None = None  # `flow/deployment`, the operator of a run that no known person started
    hooks: Hooks = field(default_factory=Hooks)
    context: RunContext = field(default_factory=RunContext)
    listener: Listener | None = None
    leave: LeaveSignal = field(default_factory=LeaveSignal)
    settings: Settings = field(default_factory=Settings)
    goal_model: GoalModel | None = None  # pursues the goals of the plan; None: the model of the settings
    secrets: SecretChain | None = None  # where to look up secrets; None: the places in the settings
    identity: Requester | None = None  # who makes an operator request; None: `requested_by`, without proof
    server: Server | None = None  # one that has just responded; None: the server in the settings
    run_id: str | None = None  # of the run to create; None: a new id
    override_freeze: str | None = None  # why a change freeze is to be overridden, which people then have to approve

    def __post_init__(self) -> None:
        """Raise TypeError for an approver that cannot be asked, and for an approval, hooks or a context of another type."""
        _require_type("approval", self.approval, Approval, hint="pass what `approve(plan, tools=…)` returns")
        _require_type("hooks", self.hooks, Hooks, hint="pass `Hooks(on_step_complete=…)`")
        _require_type("context", self.context, RunContext, hint="pass `RunContext(agent_id=…)`")
        if self.approver is not None and not hasattr(self.approver, "ask"):
            name = getattr(self.approver, "__name__", repr(self.approver))
            hint = f"pass `CallbackApprover({name})`" if callable(self.approver) else "pass an object with a method `ask`"
            raise TypeError(f"`approver` is {self.approver!r:.100}, which has no method `ask`: {hint}")

    @property
    def asks(self) -> bool:
        """Whether anyone is asked at the plan gate."""
        return self.approver is not None or self.asks_in_form

    @property
    def operator(self) -> str:
        """The name checked against the operators when this caller runs, resumes, revises, cancels or rolls back."""
        return self.deployment or self.requested_by


def _require_type(name: str, value: object, wanted: type, *, hint: str) -> None:
    if value is not None and not isinstance(value, wanted):
        raise TypeError(f"`{name}` is {value!r:.100}: {hint}")


@dataclass(frozen=True, slots=True)
class Backend:
    """Where a run executes: directly in this process, or as task runs of a Prefect flow run with logs, forms and cancellation."""

    run_step: StepRunner = field(default_factory=DirectStepRunner)
    cancellation: Callable[[], Awaitable[str | None]] | None = None
    log_sink: Callable[[logging.LogRecord], None] | None = None
    forms: GateForms | None = None
    publish: Publish | None = None
    report: ReportRun | None = None
    gates: StepGates | None = None  # those of a dry run, which ask nobody; None: those of the run
    assume: Callable[[Step, str], None] | None = None  # in a dry run: notes a condition that is taken to be true
    is_cut_short: Callable[[], bool] = lambda: False  # whether this process is stopping and the run resumes elsewhere


@dataclass(slots=True)
class RunSession:
    """One start of a run in one process: what runs, for which request, after which history, and where."""

    bound: BoundPlan
    run: PlanRun
    store: PlanStore
    run_request: RunRequest
    history: RunHistory = field(default_factory=RunHistory)
    backend: Backend = field(default_factory=Backend)


@contextmanager
def look_up_secrets_on(server: Server | None) -> Generator[None]:
    """Also look up secrets on `server` inside the block."""
    if server is None:
        yield
        return
    with use_server(server):
        yield


async def server_of(run_request: RunRequest) -> Server:
    """Return the Prefect server to run on, and start it if it is the local one. Raises NoServerError."""
    if run_request.server is not None:
        return run_request.server
    from plan_adapter.engine.local_server import server_for  # not for an offline run

    return await asyncio.to_thread(server_for, run_request.settings)


@asynccontextmanager
async def opened_store(store: PlanStore | None, settings: Settings) -> AsyncGenerator[PlanStore]:
    """Yield `store`, or the store in the settings, which is closed afterwards. Raises TypeError for anything but a store."""
    _require_type("store", store, PlanStore, hint='pass a PlanStore, as in `PlanStore("sqlite:///plans.db")`')
    if store is not None:
        yield store
        return
    async with PlanStore(settings.store_url) as opened:
        yield opened


def refuse_without_dask(validated: ValidatedPlan, *, done: Collection[str] = ()) -> None:
    """Raise InvalidPlanError if steps run on Dask, which is not installed here. `done` are the steps that a resume does not call."""
    if has_dask():
        return
    findings, on_dask = Findings(), {*validated.steps_on_dask}.difference(done)
    for at, step in validated.plan.places.items():
        if step.id in on_dask:
            findings.add("no-dask", f"{at}.runner", "the step runs on Dask, which is not installed here", INSTALL_DASK)
    if problems := findings.sorted(validated.plan):
        raise InvalidPlanError(problems)


def cluster_of(validated: ValidatedPlan, settings: Settings) -> AbstractAsyncContextManager[Cluster | None]:
    """Return the cluster of one start of a run, or None if no step uses it. It is opened at the first call, and closed with the block."""
    if not validated.steps_on_dask:
        return nullcontext()
    return dask_cluster(settings.dask_address, processes=validated.plan.options.parallel_limit)


def refuse_without_model(validated: ValidatedPlan, run_request: RunRequest, *, done: Collection[str] = ()) -> None:
    """Raise InvalidPlanError if the plan has goals and no model is configured here. `done` are the steps that a resume does not call."""
    if run_request.goal_model is not None or run_request.settings.model:
        return
    findings = Findings()
    for at, step in validated.plan.places.items():
        if step.goal is not None and step.id not in done:
            findings.add("no-model", f"{at}.goal", "a model has to pursue the goal", NO_MODEL)
    if problems := findings.sorted(validated.plan):
        raise InvalidPlanError(problems)


@asynccontextmanager
async def goal_model_of(validated: ValidatedPlan, run_request: RunRequest) -> AsyncGenerator[GoalModel | None]:
    """Yield the model that pursues the goals of a run: that of the request, else that of the settings. None without goals or a model.

    Raises ModelError if the settings do not say how to reach it.
    """
    settings = run_request.settings
    if not validated.goal_tools or run_request.goal_model is not None or not settings.model:
        yield run_request.goal_model
        return
    from plan_adapter.agent.goal_model import PromptedGoalModel  # a run without goals starts without it

    model = model_of(settings)
    try:
        redactor = await model_redactor(settings, validated.secrets)
        tools = ToolRegistry(validated.used_tools.values())
        yield PromptedGoalModel(
            model,
            tools,
            redactor=redactor,
            answer_tokens=settings.draft_answer_tokens,
            effort=settings.goal_effort,
            temperature=settings.goal_temperature,
        )
    finally:
        await model.aclose()


async def require_operator(
    plan: ExecutionPlan, run: PlanRun, store: PlanStore, policy: EffectivePolicy, *, by: str, operation: Operation
) -> None:
    """Raise NotApprovedError if `by` is not allowed to perform `operation` on `run`. The refusal is written to the audit log."""
    try:
        refuse_operation(plan, policy, by=by, operation=operation)
    except NotApprovedError as error:
        await store.ledger.record_refusal(run.id, str(error), by=by)
        raise


async def require_approver(
    plan: ExecutionPlan,
    run: PlanRun,
    store: PlanStore,
    settings: Settings,
    *,
    identity: Identity,
    decision: Decision,
    step_id: str,
    doing: str,
) -> None:
    """Raise NotApprovedError if `identity` is not allowed to answer about a step of `plan`. The refusal is written to the audit log.

    `doing` begins the error message.
    """
    gate_policy = await gate_policy_at(plan, run, store, await store.policy.effective(settings), step_id=step_id)
    if (why := refusal(gate_policy, identity, decision=decision)) is not None:
        await store.ledger.record_refusal(run.id, f"{doing}: {why}", by=identity.by, known_by=identity.known_by)
        raise NotApprovedError(f"{doing}: {why}")


async def require_resume_operator(
    run: PlanRun, plan: ExecutionPlan, store: PlanStore, run_request: RunRequest, policy: EffectivePolicy
) -> None:
    """Raise NotApprovedError if the caller is not allowed to resume `run`. The refusal is written to the audit log."""
    await require_operator(plan, run, store, policy, by=run_request.operator, operation="resume")


def proof_options(gate_policy: GatePolicy, command: str, *, by: str, decision: Decision) -> str:
    """Return which options would make `command` acceptable, as the end of an error message; empty if no option would."""
    if not (options := options_of_proofs(gate_policy.known_by)):
        return ""
    needs_name = refusal(replace(gate_policy, known_by=None), identity_of_name(by), decision=decision) is not None
    return f"; use `{command}` with {' or '.join(options)}{' and --by NAME' if needs_name else ''}"
