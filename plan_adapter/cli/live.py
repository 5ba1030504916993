"""The live display: running steps update in place, ended steps stay as lines."""

import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from plan_adapter.cli import output
from plan_adapter.cli.progress_lines import (
    CarriedSummary,
    LinkOnce,
    Links,
    form_lines,
    gate_line,
    new_log_buffer,
    opened_lines,
    replanning_line,
    spoken_lines,
)
from plan_adapter.cli.run_view import STYLES, shapes
from plan_adapter.gates.conversation import Conversation
from plan_adapter.model.hooks import Event
from plan_adapter.model.language import tr
from plan_adapter.model.readable import counted, duration, one_line, visible
from plan_adapter.model.record import PlanRun, StepRun
from plan_adapter.model.status import StepStatus
from plan_adapter.text.run_facts import mark_of, step_end_text

AGE_SECONDS = 5
"""How long a step runs before its age is shown."""


@dataclass(frozen=True)
class _RunningStep:
    """A step that has started and not ended."""

    step: StepRun
    since: float
    retry_at: float | None = None  # when the next attempt starts, on the monotonic clock
    problem: str = ""
    failures: int = 0
    log: deque[str] = field(default_factory=new_log_buffer)


class LiveDisplay:
    """Shows events on a terminal's stderr."""

    def __init__(self, links: Links, conversation: Conversation | None = None) -> None:
        """`links` returns the link to the run; the display pauses while `conversation` asks a question."""
        self._links = links
        self._link_once = LinkOnce()
        self._carried = CarriedSummary()
        self._conversation = conversation or Conversation()
        self._conversation.pause, self._conversation.resume = self._pause, self._unpause
        self._is_live = self._paused = False
        self._console = output.console(sys.stderr)
        self._unicode = output.is_unicode(sys.stderr)
        self._spinner = Spinner("dots" if self._unicode else "line")
        self._live: Live | None = None
        self._width = 0
        self._run: PlanRun | None = None
        self._since = 0.0
        self._earlier: tuple[int, int] | None = None  # how many runs of the plan completed before, and how long the longest of them took
        self._running: dict[str, _RunningStep] = {}  # replaced, never changed: the display's thread reads it

    def __call__(self, event: Event) -> None:
        """Show the event."""
        if event.kind == "run_started":
            self._show_start(event)
        elif event.kind == "run_ended":
            self.close()
        elif event.kind == "replanning":
            self._print(Text(replanning_line(event), style="yellow"))
        elif event.kind == "waits":
            self._print(Text(event.message or "", style="yellow"))
        elif event.gate is not None:
            self._show_gate(event)
        elif event.step is not None:
            self._run = event.run
            self._show_step(event, event.step)

    def expect(self, runs: int, longest_ms: int) -> None:
        """Show how long the run has taken next to `longest_ms`, the duration of the longest of `runs` earlier runs that completed."""
        self._earlier = (runs, longest_ms)

    def close(self) -> None:
        """Stop updating; printed lines stay."""
        self._is_live = False
        self._stop_live()

    def _show_start(self, event: Event) -> None:
        steps, self._run = event.run.steps, event.run
        self._carried = CarriedSummary()
        self._width = min(self._console.width // 2, max((Text(step.id).cell_len for step in steps), default=0))
        self._since = time.monotonic()
        self._print(Text.assemble((one_line(event.run.name), "bold"), f"  {tr('run {id}', id=event.run.id)}"))
        self._print(*(Text(visible(link)) for link in self._link_once.lines(event, self._links)))
        self._is_live = True
        self._start_live()

    def _start_live(self) -> None:
        if self._is_live and not self._paused:
            self._live = Live(self, console=self._console, transient=True, refresh_per_second=8, redirect_stdout=False)
            self._live.start()

    def _pause(self) -> None:
        """Stop updating while a question is open. The running steps stay above it, as they are now."""
        was_live, self._paused = self._live is not None, True
        self._stop_live()
        if was_live and self._running:
            self._console.print(self.__rich__())

    def _unpause(self) -> None:
        self._paused = False
        self._start_live()

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show_gate(self, event: Event) -> None:
        if event.kind == "gate_shown":
            self._print(*(Text(visible(text)) for text in form_lines(event, self._links)))
        elif event.kind == "gate_opened":
            links = self._link_once.lines(event, self._links)
            waits = opened_lines(event)
            self._print(*(Text(text, style="yellow") for text in waits[:1]), *(Text(visible(text)) for text in [*links, *waits[1:]]))
        else:
            self._print(Text(gate_line(event), style="yellow"))

    def _show_step(self, event: Event, step: StepRun) -> None:
        now = time.monotonic()
        known = self._running.get(step.id)
        match event.kind:
            case "step_started":
                self._running = {**self._running, step.id: replace(known, retry_at=None) if known else _RunningStep(step, now)}
            case "call_ended":
                self._print(Text(f"  {event.name}: {one_line(event.message or '')}", style="dim"))
            case "attempt_failed" if known is not None:
                again = now + (event.delay_ms or 0) / 1000
                problem = _with_call_name(event, one_line(event.message or "failed"))
                of_step = event.name is None or event.name == step.id
                failed = replace(known, retry_at=again, problem=problem, failures=known.failures + of_step)
                self._running = {**self._running, step.id: failed}
            case "spoken":
                self._print(*(Text(visible(text)) for text in spoken_lines(event)))
            case "log" if known is not None:
                known.log.extend(_with_call_name(event, text) for text in (event.message or "").splitlines())
            case "step_completed" | "step_failed" | "step_skipped":
                self._running = {name: running for name, running in self._running.items() if name != step.id}
                summary = self._carried.lines(event)
                self._print(*(self._end_lines(step, known) if summary is None else map(Text, summary)))
            case _:
                return

    def _end_lines(self, step: StepRun, known: _RunningStep | None) -> Iterator[Text]:
        style, mark = STYLES[mark_of(step)], shapes(is_unicode=self._unicode)[mark_of(step)]
        yield self._row(step, (mark, style), step_end_text(step), style="" if step.status is StepStatus.COMPLETED else style)
        if step.status is StepStatus.FAILED and known is not None:
            error = f" {one_line(step.error or '')} "
            yield from (Text(f"    {visible(text)}", style="dim") for text in known.log if f" {one_line(text)} " not in error)

    def _row(self, step: StepRun, mark: tuple[str, str], end: str, *, style: str = "") -> Text:
        name = Text(step.id)
        name.truncate(self._width, overflow="ellipsis", pad=True)
        description = f"  {one_line(step.description)}" if step.description and step.description != step.id else ""
        return Text.assemble(mark, " ", name, "  ", (visible(end), style), (description, "dim"))

    def __rich__(self) -> RenderableType:
        """Return the live part of the display as it is now: running steps, waits for retries, and the progress of the run."""
        now = time.monotonic()
        lines: list[RenderableType] = [self._running_row(running, now) for running in self._running.values()]
        return Group(*lines, Text(self._progress(now), style="dim"))

    def _progress(self, now: float) -> str:
        """Return how many steps are done, and how long the run has taken, next to earlier runs."""
        if self._run is None:
            return ""
        text = self._run.summary().text
        if self._earlier is None:
            return text
        runs, longest_ms = self._earlier
        longest = tr("at most {time} in {runs}", time=duration(longest_ms), runs=counted(runs, "earlier run"))
        return f"{text}; {tr('{time} so far', time=duration(1000 * int(now - self._since)))}, {longest}"

    def _running_row(self, running: _RunningStep, now: float) -> RenderableType:
        if running.retry_at is not None and running.retry_at > now:
            left = duration(1000 * math.ceil(running.retry_at - now))
            again = tr("{problem}; {attempt} in {time}", problem=running.problem, attempt=_attempt(running), time=left)
            text = self._row(running.step, ("!", "yellow"), again, style="yellow")
        else:
            frame = self._spinner.render(now)
            mark = frame.plain if isinstance(frame, Text) else "*"
            age = duration(1000 * int(now - running.since)) if now - running.since >= AGE_SECONDS else ""
            attempt = _attempt(running) if running.problem else ""
            text = self._row(running.step, (mark, "cyan"), ", ".join(part for part in (age, attempt) if part))
            if running.log:
                text.append(f"  {one_line(running.log[-1])}", style="dim")
        text.no_wrap, text.overflow = True, "ellipsis"
        return text

    def _print(self, *lines: Text) -> None:
        def write() -> None:
            for text in lines:
                self._console.print(text, soft_wrap=True)

        if lines:
            self._conversation.write_above(write)


def _attempt(running: _RunningStep) -> str:
    """Return which attempt of the step is next or in progress. The attempts of items are not counted together."""
    number, most = running.failures + 1, running.step.max_retries + 1
    return tr("attempt {number} of {most}", number=number, most=most) if 1 < number <= most else tr("again")


def _with_call_name(event: Event, text: str) -> str:
    """Return `text` with the name of its call, if that differs from the name of the step."""
    return text if event.name is None or event.step is None or event.name == event.step.id else f"{event.name}: {text}"
