"""What a run is given beside its plan and inputs."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plan_adapter.approval import Approver
from plan_adapter.hooks import Hooks, Listener
from plan_adapter.record import Approval, RunContext
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.engine.connection import Server


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a run is given beside its plan and inputs."""

    approval: Approval | None = None
    approver: Approver | None = None
    hooks: Hooks = field(default_factory=Hooks)
    context: RunContext = field(default_factory=RunContext)
    listener: Listener | None = None
    settings: Settings = field(default_factory=Settings)
    server: "Server | None" = None  # one that has just answered; None: the server that the settings mean is asked
