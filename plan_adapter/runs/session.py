"""`RunRequest`: what a caller passes with a run. `RunSession`: one start of a run in one process."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from plan_adapter.approvals import Approval, ApprovalRequest
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.execution.cancellation import LeaveSignal
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.ports import StepRunner
from plan_adapter.execution.scope import Publish
from plan_adapter.gates.approval import Approver, os_user
from plan_adapter.gates.gate import GateForms
from plan_adapter.gates.identity import Identity
from plan_adapter.goals import GoalModel
from plan_adapter.hooks import Hooks, Listener
from plan_adapter.record import PlanRun, RunContext
from plan_adapter.secrets import SecretChain
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan


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

    @property
    def asks(self) -> bool:
        """Whether anyone is asked at the plan gate."""
        return self.approver is not None or self.asks_in_form

    @property
    def operator(self) -> str:
        """The name checked against the operators when this caller runs, resumes, revises, cancels or rolls back."""
        return self.deployment or self.requested_by


@dataclass(frozen=True, slots=True)
class Backend:
    """Where a run executes: directly in this process, or as task runs of a Prefect flow run with logs, forms and cancellation."""

    run_step: StepRunner = field(default_factory=DirectStepRunner)
    cancellation: Callable[[], Awaitable[str | None]] | None = None
    log_sink: Callable[[logging.LogRecord], None] | None = None
    forms: GateForms | None = None
    publish: Publish | None = None
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
    """Yield `store`, or the store in the settings, which is closed afterwards."""
    if store is not None:
        yield store
        return
    async with PlanStore(settings.store_url) as opened:
        yield opened
