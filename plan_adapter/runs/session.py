"""`RunRequest`: what a caller asks for; `RunSession`: one start of a run, in one process."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from plan_adapter.execution.cancellation import Leave
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.ports import StepRunner
from plan_adapter.gates.approval import Approver, os_user
from plan_adapter.gates.gate import GateForms
from plan_adapter.hooks import Hooks, Listener
from plan_adapter.record import Approval, ApprovalRequest, PlanRun, RunContext
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan

if TYPE_CHECKING:
    from plan_adapter.engine.connection import Server


class Identity(Protocol):
    """A person who asks for something of a run, and who proves who they are once it is known what their word binds to."""

    @property
    def by(self) -> str:
        """Their name."""
        ...

    @property
    def channel(self) -> str:
        """How the name is known without a proof."""
        ...

    @property
    def has_proof(self) -> bool:
        """Whether they come with a proof of it."""
        ...

    async def proved(self, because: str, request: ApprovalRequest, store: PlanStore, /) -> tuple[str, str | None]:
        """Return how they are known, and their signature if they sign; raises NotApprovedError where that does not fit the rules."""
        ...


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a caller asks for beside the plan and its inputs: who approves, who asks, hooks, context and settings."""

    approval: Approval | None = None
    approver: Approver | None = None
    asks_in_form: bool = False  # whether a form in the Prefect UI asks, too; only with a server
    waits: bool = True  # whether people are waited for: at gates of steps, and to say how a write ended of which nobody knows it
    tools: ToolRegistry | None = None  # for a new version of the plan that comes while the run waits at its gate
    requested_by: str = field(default_factory=os_user)
    plan_file: Path | None = None  # where the plan stands; a standing approval may stand beside it
    schedule: str | None = None  # `flow/deployment` whose schedule started the run
    deployment: str | None = None  # `flow/deployment` of a run that no person is known to have started; it is then the operator
    hooks: Hooks = field(default_factory=Hooks)
    context: RunContext = field(default_factory=RunContext)
    listener: Listener | None = None
    leave: Leave = field(default_factory=Leave)
    settings: Settings = field(default_factory=Settings)
    identity: Identity | None = None  # whose word it is that a step is left out, or what was done undone; None: that of `requested_by`
    server: "Server | None" = None  # one that has just answered; None: the server that the settings mean is asked

    @property
    def asks(self) -> bool:
        """Whether anybody is asked at the gate of the plan."""
        return self.approver is not None or self.asks_in_form

    @property
    def operator(self) -> str:
        """The name under which whoever runs, resumes, revises, cancels or rolls back is looked for among the operators."""
        return self.deployment or self.requested_by


@dataclass(frozen=True, slots=True)
class Backend:
    """Where a run executes: directly in this process, or as task runs of a Prefect flow run, which has logs, forms and a cancellation."""

    run_step: StepRunner = field(default_factory=DirectStepRunner)
    cancellation: Callable[[], Awaitable[str | None]] | None = None
    log_sink: Callable[[logging.LogRecord], None] | None = None
    forms: GateForms | None = None
    is_cut_short: Callable[[], bool] = lambda: False  # whether the process is to end, and the run to be resumed elsewhere


@dataclass(slots=True)
class RunSession:
    """One start of a run in one process: what is executed, on whose request, after which earlier starts, and where."""

    bound: BoundPlan
    run: PlanRun
    store: PlanStore
    run_request: RunRequest
    history: RunHistory = field(default_factory=RunHistory)
    backend: Backend = field(default_factory=Backend)


@contextmanager
def known_secrets_of(server: "Server | None") -> Generator[None]:
    """Let what is looked up within find the blocks of `server`, too."""
    if server is None:
        yield
        return
    from plan_adapter.engine.connection import use_server

    with use_server(server):
        yield


async def server_of(run_request: RunRequest) -> "Server":
    """Return the Prefect server to run on, started if it is the local one; raises NoServerError."""
    if run_request.server is not None:
        return run_request.server
    from plan_adapter.engine.local_server import server_for

    return await asyncio.to_thread(server_for, run_request.settings)


@asynccontextmanager
async def opened_store(store: PlanStore | None, settings: Settings) -> AsyncGenerator[PlanStore]:
    """Yield `store`, or the store of the settings, which is closed at the end."""
    if store is not None:
        yield store
        return
    async with PlanStore(settings.store_url) as opened:
        yield opened
