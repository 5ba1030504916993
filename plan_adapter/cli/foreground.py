"""What `plan run` and `plan resume` share: the server, the approver, signals, and how the end of a run is told."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from plan_adapter.approvers.conversation import Conversation
from plan_adapter.cli import output
from plan_adapter.cli.approval_state import approval_state_of
from plan_adapter.cli.asking import YesRefusedError, approver_for, asks_in_form
from plan_adapter.cli.codes import ExitCode, UsageError, code_as_kept, code_of_error
from plan_adapter.cli.editing import PlanEditing
from plan_adapter.cli.progress import Display, JsonDisplay, Links, PlainDisplay
from plan_adapter.cli.records import run_end, run_json
from plan_adapter.errors import LeaseLostError, RunConflictError, StoreError
from plan_adapter.execution.cancellation import Leave
from plan_adapter.execution.printing import captured_prints
from plan_adapter.execution.standing import is_told, leaves_to_undo, resume_command, rollback_command
from plan_adapter.hooks import Event
from plan_adapter.plan import PlanStatus
from plan_adapter.readable import as_text
from plan_adapter.record import Outcome, RunReason

if TYPE_CHECKING:
    from plan_adapter.engine.connection import Server
    from plan_adapter.engine.local_server import PendingServer
    from plan_adapter.record import PlanRun
    from plan_adapter.runner import Occasion
    from plan_adapter.runs.occasion import Speaker
    from plan_adapter.settings import Settings
    from plan_adapter.store.store import PlanStore
    from plan_adapter.tools.registry import ToolRegistry

INTERRUPTED = {
    signal.SIGINT: "interrupted at the terminal (Ctrl-C)",
    signal.SIGTERM: "its process was told to end (SIGTERM)",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}
"""What ends a run, and the reason that is recorded."""
KEEP_SECONDS = 0.25
"""How often is looked whether a flow run that began, a step's gate for one, has put Prefect's handler of SIGTERM in front."""
AGAIN_SECONDS = 2.0
"""Within which time a second signal says the same again: who ends a whole process group and forwards the signal sends it twice."""
HUNG_UP_SECONDS = 0.5
FORCE_SECONDS = 5.0
"""How long what a forced end cancels may take to clean up before the process ends without it."""


def begin_server(settings: "Settings", *, offline: bool) -> "PendingServer | None":
    """Return the server that the run will use, perhaps still starting; None for an offline run."""
    if offline:
        return None
    from plan_adapter.engine.local_server import begin_server as begin

    for queue in ("EventsWorker", "APILogWorker"):  # at the end of the process they warn that they are still delivering
        logging.getLogger(queue).setLevel(logging.ERROR)
    logging.raiseExceptions = False  # else Prefect writes to stderr, in the midst of the display, that the server takes no logs
    return begin(settings, notify=output.note)


def choose_display(*, as_json: bool, links: Links, conversation: Conversation | None = None) -> Display:
    """Return the display for this process's streams, which gives way to a question of `conversation`."""
    if as_json:
        return JsonDisplay(links)
    if output.is_terminal(sys.stderr):
        from plan_adapter.cli.live import LiveDisplay

        return LiveDisplay(links, conversation)
    return PlainDisplay(links, conversation.above) if conversation is not None else PlainDisplay(links)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How `plan run` and `plan resume` are to deal with gates, and what they print."""

    yes: bool
    detach: bool
    json: bool


class ForegroundRun:
    """One run of this process: shown by its events, its gates asked about here and in a form, ended by signals."""

    def __init__(self, server: "Server | None", wanted: RunOptions, *, store: "PlanStore", tools: "ToolRegistry") -> None:
        """`server` None is an offline run."""
        self._server = server
        self._store = store
        self._tools = tools
        self._as_json = wanted.json
        conversation = Conversation()
        conversation.hung_up = self._hung_up
        self.asks_in_form = asks_in_form(yes=wanted.yes, detach=wanted.detach, has_server=server is not None)
        edit = PlanEditing(store, tools)
        self.approver = approver_for(
            yes=wanted.yes, detach=wanted.detach, conversation=conversation, edit=edit, is_alone=not self.asks_in_form
        )
        self._waits = not (wanted.yes or wanted.detach) and self.asks
        self._leave = Leave()
        self._left_at: float | None = None  # when the run was left waiting because of a signal, on the loop's clock
        self._display: Display = choose_display(as_json=wanted.json, links=self._links, conversation=conversation)
        self._waiting: str | None = None  # the run's id, once somebody was asked
        self._started: str | None = None  # the run's id, once its steps may run
        self._goes_on = ""  # what is typed then, should it stop
        self._interrupts = 0
        self._take_signals: Callable[[], None] = lambda: None
        self._request: asyncio.Future[None] | None = None  # to cancel the run; kept, because the loop itself would forget it

    @property
    def asks(self) -> bool:
        """Whether anybody is asked at a gate."""
        return self.approver is not None or self.asks_in_form

    def listen(self, event: Event) -> None:
        """Show `event`."""
        if event.kind == "gate_opened":
            self._waiting = event.run.id
        if event.kind == "run_started":
            self._started, self._goes_on = event.run.id, resume_command(event.run)
        if event.kind in ("gate_opened", "run_started"):
            self._take_signals()  # the flow run has begun, and put Prefect's handler of SIGTERM in front
        self._display(event)

    def request(self, settings: "Settings", *, speaker: "Speaker | None" = None) -> "Occasion":
        """Return what the run is given beside its plan and inputs; `speaker` asks for what no gate asks about."""
        from plan_adapter.runner import Occasion

        return Occasion(
            approver=self.approver,
            asks_in_form=self.asks_in_form,
            waits=self._waits,
            tools=self._tools,
            listener=self.listen,
            leave=self._leave,
            settings=settings,
            server=self._server,
            speaker=speaker,
        )

    async def complete(self, work: Coroutine[Any, Any, "PlanRun"]) -> int:
        """Await the run, print what came of it, and return the exit code."""
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        numbers = [number for number in INTERRUPTED if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        self._take_signals = partial(_take_signals, loop, {number: partial(self._interrupt, number, task) for number in numbers})
        self._take_signals()
        keeping = asyncio.ensure_future(self._keep_signals())
        try:
            with captured_prints():
                run = await task
        except asyncio.CancelledError:
            self._display.close()
            await self._tell_forced_end()
            return ExitCode.INTERRUPTED
        except YesRefusedError as error:
            self._display.close()
            return self._refuse_yes(error)
        except LeaseLostError:
            self._display.close()
            output.note(f"what was shown here last may not be recorded; `plan show {self._started or self._waiting}` tells what is")
            raise
        except StoreError:
            self._display.close()
            self._tell_left()
            raise
        finally:
            self._display.close()
            keeping.cancel()
            for number in numbers:
                loop.remove_signal_handler(number)
        is_open, offline = run.status is PlanStatus.PENDING_APPROVAL, self._server is None
        hint = (await approval_state_of(run, self._store, offline=offline)).hint() if is_open else None
        with contextlib.suppress(UsageError) if self._left_at is not None else contextlib.nullcontext():  # the terminal may be gone
            show_result(run, as_json=self._as_json, hint=hint)
        return ExitCode.INTERRUPTED if self._interrupts and run.status is PlanStatus.CANCELLED else await code_as_kept(run, self._store)

    async def _keep_signals(self) -> None:
        ours = signal.getsignal(signal.SIGTERM)
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            if signal.getsignal(signal.SIGTERM) is not ours:
                self._take_signals()
                ours = signal.getsignal(signal.SIGTERM)

    def _refuse_yes(self, error: YesRefusedError) -> int:
        if self._as_json:
            output.json_line({"error": "NotApprovedError", "message": str(error)})
        output.note(f"plan: --yes is not taken, and nothing was begun: {error}; with --detach it waits for who may")
        return code_of_error(error)

    def _interrupt(self, number: signal.Signals, task: "asyncio.Future[PlanRun]") -> None:
        # A run that only waits is left waiting, unless its person types Ctrl-C.
        if number != signal.SIGINT and self._is_left(number):
            return
        # First the run is asked to end, as `plan cancel` does it; then its work is cancelled; then the process ends.
        self._interrupts += 1
        known = self._started or self._waiting
        if known is not None and self._interrupts == 1:
            output.note("ending the run; press Ctrl-C again to force it")
            ending = self._store.request_cancel if self._started is not None else self._store.cancel
            self._request = asyncio.ensure_future(ending(known, INTERRUPTED[number]))
            self._request.add_done_callback(lambda done: task.cancel() if done.exception() is not None else None)
        elif not task.done() and self._interrupts <= 2:
            task.cancel()
            asyncio.get_running_loop().call_later(FORCE_SECONDS, _end_process)
        else:
            _end_process()

    def _is_left(self, number: signal.Signals) -> bool:
        """Return whether the signal leaves the run, which does nothing but wait at gates, waiting for a later start."""
        now = asyncio.get_running_loop().time()
        if self._left_at is not None:
            return now - self._left_at < AGAIN_SECONDS
        if self._interrupts or not self._leave.ask():
            return False
        self._left_at, self._interrupts = now, 1
        output.note(f"{INTERRUPTED[number]}: the run is left waiting for its approval")
        return True

    def _hung_up(self) -> None:
        """Leave the run once it does nothing but wait: its terminal is gone, without a signal, and nobody else is asked."""
        if not self._is_left(signal.SIGHUP):
            asyncio.get_running_loop().call_later(HUNG_UP_SECONDS, self._hung_up)

    async def _tell_forced_end(self) -> None:
        from plan_adapter.runner import acancel_run

        if self._started is None and self._waiting is not None and self._left_at is None:
            with contextlib.suppress(RunConflictError):  # it has ended
                await acancel_run(self._waiting, reason=INTERRUPTED[signal.SIGINT], store=self._store)
        output.note("interrupted")
        self._tell_left()

    def _tell_left(self) -> None:
        if self._started is not None:
            output.note(f"run {self._started} was left as it is; `{self._goes_on}` goes on with it")

    def _links(self, flow_run_id: str) -> list[str]:
        from plan_adapter.engine.connection import ui_hint

        url = self._server.run_url(flow_run_id) if self._server is not None else None
        return ui_hint(url) if url is not None else []


def _take_signals(loop: asyncio.AbstractEventLoop, handlers: Mapping[signal.Signals, Callable[[], None]]) -> None:
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)


def _end_process() -> None:
    """End without waiting for anything: threads that a tool holds would keep the interpreter."""
    with contextlib.suppress(OSError):  # nobody reads them any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(ExitCode.INTERRUPTED)


def show_result(run: "PlanRun", *, as_json: bool, hint: str | None) -> None:
    """Print how the run stands to stdout, and what to do next, `hint` where there is one, to stderr."""
    if as_json:
        output.json_line(run_json(run, steps=True))
    else:
        output.line(run_end(run))
        for name, value in run.outputs.items():
            output.line(f"{name}: {as_text(value)}")
    output.note(hint or next_command(run))


def next_command(run: "PlanRun") -> str:
    """Return the line that says what a person may do about `run` now."""
    unknown = next((step.id for step in run.steps if step.outcome is Outcome.UNKNOWN), None)
    if unknown is not None or run.reason is RunReason.UNKNOWN:
        return (
            f"`plan resolve {run.id} {unknown or 'STEP'} done|again|abort` says how it ended, then `{resume_command(run)}` goes on; "
            "a write whose outcome is unknown is never tried again by itself"
        )
    if any(step.rolled_back for step in run.steps) or is_told(run.message):
        rest = f", `{rollback_command(run)}` undoes what is left" if leaves_to_undo(run.message) else ""
        return f"`plan show {run.id}` tells what was rolled back{rest}; a run that was rolled back does not go on: start a new one"
    if run.status in (PlanStatus.FAILED, PlanStatus.PARTIAL):
        return f"`plan show {run.id}` tells more; `{resume_command(run)}` tries what has not succeeded again"
    return f"`plan show {run.id}` tells more"
