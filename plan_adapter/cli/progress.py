"""Showing a run while it runs: events as JSON Lines, as plain lines, or as live lines on a terminal."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from plan_adapter.cli import output
from plan_adapter.cli.records import event_json, step_end
from plan_adapter.hooks import Event
from plan_adapter.readable import counted, duration, one_line

Links = Callable[[str], list[str]]
"""Returns the lines that lead from a flow run's id to its page in the UI; none where there is no UI."""

KEPT_LOG_LINES = 8
"""How many of a failed step's last log lines a live display shows."""


class Display(Protocol):
    """Takes the events of a run; `close` gives the terminal back."""

    def __call__(self, event: Event) -> None:
        """Show `event`; never blocks for long, never raises because nobody reads."""
        ...

    def close(self) -> None:
        """End the display; may be called again."""
        ...


class JsonDisplay:
    """One JSON object per event on stdout; the link to the UI on stderr."""

    def __init__(self, links: Links) -> None:
        """`links` names the run's page."""
        self._links = links
        self._gone = False

    def __call__(self, event: Event) -> None:
        """Print the event; a reader that is gone does not stop the run."""
        if event.kind == "run_started":
            for link in link_lines(event, self._links):
                output.note(link)
        if self._gone:
            return
        try:
            output.json_line(event_json(event))
        except BrokenPipeError:
            self._gone = True
            output.abandon_stdout()

    def close(self) -> None:
        """Nothing is open."""


class PlainDisplay:
    """One line per event on stderr, without escapes: for logs and pipes."""

    def __init__(self, links: Links) -> None:
        """`links` names the run's page."""
        self._links = links

    def __call__(self, event: Event) -> None:
        """Print the event."""
        links = link_lines(event, self._links) if event.kind == "run_started" else []
        for text in (*plain_lines(event), *links):
            output.note(text)

    def close(self) -> None:
        """Nothing is open."""


def plain_lines(event: Event) -> list[str]:
    """Return `event` as lines that stand alone in a log."""
    step = event.step.id if event.step is not None else ""
    match event.kind:
        case "run_started":
            return [f"run {event.run.id} of {one_line(event.run.name)}: {counted(len(event.run.steps), 'step')}"]
        case "step_started":
            return [f"{step}: started"]
        case "attempt_failed":
            return [f"{step}: {failed_attempt(event)}"]
        case "log":
            return [f"{step} | {text}" for text in (event.message or "").splitlines()]
        case "run_ended":
            return []  # the result tells it
        case _:
            assert event.step is not None
            done = "completed in " if event.kind == "step_completed" and not event.step.carried else ""
            return [f"{step}: {done}{step_end(event.step)}"]


def failed_attempt(event: Event) -> str:
    """Return why an attempt failed and when the next one follows."""
    wait = f" in {duration(event.delay_ms)}" if event.delay_ms else " at once"
    return f"{one_line(event.message or 'failed')}; tries again{wait}"


def recent_lines() -> deque[str]:
    """Return a buffer of a step's last log lines."""
    return deque(maxlen=KEPT_LOG_LINES)


def link_lines(event: Event, links: Links) -> list[str]:
    """Return the lines that lead to the run in the UI, once its flow run is known."""
    return links(event.run.flow_run_id) if event.run.flow_run_id else []
