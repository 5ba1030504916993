"""Values about runs that an event starts: the event's parameter, what such a run records, and an event that starts none."""

from dataclasses import dataclass

EVENT_PARAMETER = "_plan_event"
"""The parameter of a flow run that an event started. An automation of `plan deploy` fills it. No input can have this name."""


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
