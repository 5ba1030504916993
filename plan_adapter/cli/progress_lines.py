"""Show a run while it runs: its events as JSON Lines, as plain lines, or as live lines on a terminal."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.cli.records import event_json, gate_place
from plan_adapter.gates.approval import why_nobody_may_answer
from plan_adapter.model.approvals import GateKind
from plan_adapter.model.hooks import Event
from plan_adapter.model.language import later, tr
from plan_adapter.model.readable import counted, duration, moment, one_line
from plan_adapter.text.commands import ways_to_answer
from plan_adapter.text.run_facts import step_end_text

Links = Callable[[str], list[str]]
"""Returns lines with the link to the UI page of a flow run, by its id; no lines without a UI."""

WriteAbove = Callable[[Callable[[], object]], None]
"""Calls a function that writes whole lines, above a question that is open on the same terminal."""

KEPT_LOG_LINES = 8
"""How many of a failed step's last log lines a live display shows."""

CARRIED_LINES = 20
"""Up to this many carried steps get a line each. If there are more, one line stands for all of them."""


class Display(Protocol):
    """Shows the events of a run; `close` releases the terminal."""

    def __call__(self, event: Event) -> None:
        """Show `event`. Does not block for long, nor raise if nobody reads."""
        ...

    def expect(self, runs: int, longest_ms: int) -> None:
        """Take that the longest of `runs` earlier runs that completed took `longest_ms`."""
        ...

    def close(self) -> None:
        """End the display; can be called again."""
        ...


def write_directly(write: Callable[[], object]) -> None:
    """Call `write`: where no question is open, there is nothing to write above."""
    write()


class LinkOnce:
    """Shows the link to the run once, at the first event with a flow run."""

    def __init__(self) -> None:
        """Start with no link shown."""
        self._linked_run: str | None = None

    def lines(self, event: Event, links: Links) -> list[str]:
        """Return the lines with the link; no lines if the link was shown before or the flow run is not known yet."""
        flow_run_id = event.run.flow_run_id
        if flow_run_id is None or flow_run_id == self._linked_run:
            return []
        self._linked_run = flow_run_id
        return links(flow_run_id)


class JsonDisplay:
    """Prints one JSON object per event to stdout, and the link to the UI to stderr."""

    def __init__(self, links: Links) -> None:
        """Print to stdout; `links` returns the link to the run."""
        self._links = links
        self._link = LinkOnce()
        self._is_closed = False

    def __call__(self, event: Event) -> None:
        """Print the event. A closed pipe does not stop the run."""
        if event.kind in ("run_started", "gate_opened"):
            for link in self._link.lines(event, self._links):
                output.note(link)
        if event.kind == "gate_opened" and (lines := opened_lines(event)):
            output.note("\n".join(lines))
        if event.kind == "gate_shown":
            output.note("\n".join(form_lines(event, self._links)))
        if self._is_closed:
            return
        try:
            output.json_line("event", event_json(event))
        except BrokenPipeError:
            self._is_closed = True
            output.abandon_stdout()
        except UsageError as error:
            self._is_closed = True
            output.note(f"plan: {error}")

    def expect(self, runs: int, longest_ms: int) -> None:
        """Show nothing: earlier runs are only of interest while a person watches."""

    def close(self) -> None:
        """Nothing is open."""


class CarriedSummary:
    """Replaces the lines of many carried steps with a single line."""

    def __init__(self) -> None:
        self._count: int | None = None

    def lines(self, event: Event) -> list[str] | None:
        """Return the lines to print instead of `event`, or None to print it unchanged."""
        if event.kind != "step_completed" or event.step is None or not event.step.carried:
            return None
        is_first = self._count is None
        if self._count is None:
            self._count = sum(step.carried for step in event.run.steps)
        if self._count <= CARRIED_LINES:
            return None
        carried = tr("{steps} carried from an earlier start of this run", steps=counted(self._count, "step"))
        return [carried] if is_first else []


class PlainDisplay:
    """Prints one line per event to stderr, without terminal escapes: for logs and pipes."""

    def __init__(self, links: Links, above: WriteAbove = write_directly) -> None:
        """Print to stderr; `links` returns the link to the run, `above` writes above a question that is open on the same terminal."""
        self._links = links
        self._link = LinkOnce()
        self._carried = CarriedSummary()
        self._above = above

    def __call__(self, event: Event) -> None:
        """Print the event."""
        if event.kind == "run_started":
            self._carried = CarriedSummary()
        links = self._link.lines(event, self._links) if event.kind in ("run_started", "gate_opened") else []
        links += form_lines(event, self._links) if event.kind == "gate_shown" else []
        summary = self._carried.lines(event)
        lines = [
            *(plain_lines(event) if summary is None else summary),
            *links,
            *(opened_lines(event)[1:] if event.kind == "gate_opened" else []),
        ]
        if lines:
            self._above(lambda: output.note("\n".join(lines)))

    def expect(self, runs: int, longest_ms: int) -> None:
        """Show nothing: earlier runs are only of interest while a person watches."""

    def close(self) -> None:
        """Nothing is open."""


def gate_line(event: Event) -> str:
    """Return a line about a gate: what it waits for, or how it was closed."""
    assert event.gate is not None
    place = gate_place(event.gate) if event.gate.step_id is not None else tr("the plan")
    if event.kind in ("gate_refused", "gate_agreed"):
        return f"{place}: {one_line(event.message or tr('an answer was refused'))}"
    if event.kind == "gate_answered":
        closed = tr("replaced by a new version of the plan") if event.gate.end == "superseded" else event.message
        return f"{place}: {one_line(closed or tr('its gate was closed'))}"
    waits = tr(_WAITS[event.gate.kind])
    if event.gate.expires_at is not None and event.gate.kind != "outcome":
        waits = tr("{waits} until {when}", waits=waits, when=moment(event.gate.expires_at))
    why = f"; {one_line(event.run.message)}" if event.run.message and event.gate.step_id is None else ""
    return f"{place}: {waits}{why}"


_WAITS: dict[GateKind, str] = {
    "approval": later("waits for an approval"),
    "question": later("waits for an answer to its question"),
    "outcome": later("its outcome is unknown; a person must record it"),
}


def opened_lines(event: Event) -> list[str]:
    """Return the lines about a gate that has opened: what it waits for, and how to answer. Empty if it is answered at once."""
    return [] if event.in_advance else [gate_line(event), answer_line(event)]


def answer_line(event: Event) -> str:
    """Return the line that says how to answer an open gate, or that nobody may."""
    assert event.gate is not None
    if (nobody := why_nobody_may_answer(event.gate.gate_policy)) is not None:
        return tr("nobody may answer: {why}; `{command}` ends the run", why=nobody, command=f"plan cancel {event.run.id}")
    form = "" if not event.in_form else tr("in the form on that page") if event.gate.step_id is None else tr("in its form (link below)")
    return tr("answer {ways}", ways=ways_to_answer(event.gate, event.gate.gate_policy.known_by, form=form))


def detach_line(event: Event, otherwise: str) -> str:
    """Return the line that says that this command waits at a gate although nobody is asked here. `otherwise`: what it does detached."""
    assert event.gate is not None
    until = f"until {moment(event.gate.expires_at)}" if event.gate.expires_at is not None else "without a time limit"
    return f"there is no terminal to ask at, so this command waits for the answer, {until}; with `--detach` it {otherwise}"


def form_lines(event: Event, links: Links) -> list[str]:
    """Return the lines with the link to the form of a step's gate."""
    assert event.gate is not None
    found = links(event.gate.flow_run_id) if event.gate.flow_run_id is not None else []
    return [tr("{gate}: its form is on {link}", gate=gate_place(event.gate), link=found[0]), *found[1:]] if found else []


def plain_lines(event: Event) -> list[str]:
    """Return `event` as lines for a log."""
    step = event.name or (event.step.id if event.step is not None else "")
    match event.kind:
        case "run_started":
            steps = counted(len(event.run.steps), "step")
            return [tr("run {id} of {plan}: {steps}", id=event.run.id, plan=one_line(event.run.name), steps=steps)]
        case "step_started" | "call_started":
            return [f"{step}: {tr('started')}"]
        case "call_ended":
            return [f"{step}: {one_line(event.message or '')}"]
        case "attempt_failed":
            return [f"{step}: {failed_attempt_text(event)}"]
        case "gate_opened":
            return opened_lines(event)[:1]
        case "gate_refused" | "gate_agreed" | "gate_answered":
            return [gate_line(event)]
        case "log":
            return [f"{step} | {text}" for text in (event.message or "").splitlines()]
        case "spoken":
            return spoken_lines(event)
        case "replanning":
            return [replanning_line(event)]
        case "waits":
            return [one_line(event.message or "")]
        case "run_ended" | "gate_shown":
            return []  # the result, or the link to the form, says it
        case _:
            assert event.step is not None
            end = step_end_text(event.step)
            is_done = event.kind == "step_completed" and not event.step.carried
            return [f"{step}: {tr('completed in {time}', time=end) if is_done else end}"]


def spoken_lines(event: Event) -> list[str]:
    """Return what the model of a goal says, line by line."""
    assert event.step is not None
    return [tr("{step} says: {text}", step=event.step.id, text=text) for text in (event.message or "").splitlines() if text.strip()]


def replanning_line(event: Event) -> str:
    """Return the line about a step whose failure makes a model redraft the remaining steps."""
    return tr("{why}: a model redrafts the remaining steps", why=one_line(event.message or tr("a step failed")))


def failed_attempt_text(event: Event) -> str:
    """Return why an attempt failed, and when the next one starts."""
    why = one_line(event.message or tr("failed"))
    if not event.delay_ms:
        return tr("{why}; retrying now", why=why)
    return tr("{why}; retrying in {time}", why=why, time=duration(event.delay_ms))


def new_log_buffer() -> deque[str]:
    """Return an empty buffer for the last log lines of a step."""
    return deque(maxlen=KEPT_LOG_LINES)
