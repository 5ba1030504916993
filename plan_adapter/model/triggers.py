"""Values about runs that an event starts: events of other systems, the event's parameter, what such a run records, and unused events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

if TYPE_CHECKING:
    from pydantic import JsonValue

EVENT_PARAMETER = "_plan_event"
"""The parameter of a flow run that an event started. An automation of `plan deploy` fills it. No input can have this name."""

_EXTERNAL_EVENTS = UUID("5f0b3f5e-5d0c-4d0e-9c1b-6a7f6f1f6a55")
"""The namespace of the ids of external events. It never changes: a delivery that is repeated must get the same id."""


@dataclass(frozen=True, slots=True)
class ExternalEvent:
    """What another system reports, as an event for Prefect. Deliveries of the same fact have the same `key`, and so the same id."""

    name: str
    resource: Mapping[str, str]  # its labels, with `prefect.resource.id`
    payload: "Mapping[str, JsonValue]"
    key: str

    @property
    def id(self) -> UUID:
        """The id of the event in Prefect."""
        return uuid5(_EXTERNAL_EVENTS, f"{self.name}\n{self.key}")


@dataclass(frozen=True, slots=True)
class UnusedEvent:
    """An event that starts no run: the condition of its trigger is false, or another run was started for it."""

    name: str  # of the flow run's state
    message: str


@dataclass(frozen=True, slots=True)
class EventClaim:
    """What a run that an event starts records of it. Of two runs with the same key, the second one is not created."""

    key: str  # a digest of the trigger and of the alert
    event: str
    event_id: str
    cooldown_ms: int | None  # how long after its start the run keeps the key, if it has ended before; None: for ever
    replaces: str | None = None  # the run with the same key that did not start before its process died


@dataclass(frozen=True, slots=True)
class TriggerRecord:
    """The event that started a run, and how many events with the same fingerprint have come since, with that one."""

    run_id: str
    event: str
    event_id: str
    events: int
    flow_run_id: str | None = None
    is_idle: bool = False  # whether the run waits, and no process and no gate of it is known
