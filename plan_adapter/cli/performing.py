"""What `plan run` and `plan resume` share: the server, the approver, signals, and how the end of a run is told."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.asking import TerminalApprover, YesApprover
from plan_adapter.cli.codes import ExitCode, code_of_run
from plan_adapter.cli.progress import Display, JsonDisplay, Links, PlainDisplay
from plan_adapter.cli.records import run_end, run_json
from plan_adapter.errors import StoreError
from plan_adapter.execution.printing import captured_prints
from plan_adapter.hooks import Event
from plan_adapter.plan import PlanStatus
from plan_adapter.readable import as_text
from plan_adapter.record import RunReason

if TYPE_CHECKING:
    from plan_adapter.approval import Approver
    from plan_adapter.engine.connection import Server
    from plan_adapter.engine.local_server import PendingServer
    from plan_adapter.record import PlanRun
    from plan_adapter.settings import Settings
    from plan_adapter.store.store import PlanStore

INTERRUPTED = {
    signal.SIGINT: "interrupted at the terminal (Ctrl-C)",
    signal.SIGTERM: "its process was told to end (SIGTERM)",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}
"""What ends a run, and the reason that is recorded."""
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


def approver_for(*, yes: bool, detach: bool) -> "Approver | None":
    """Return who answers when an approval is needed, None where nobody is there."""
    if yes:
        return YesApprover()
    if detach or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return TerminalApprover()


def choose_display(*, as_json: bool, links: Links) -> Display:
    """Return the display for this process's streams."""
    if as_json:
        return JsonDisplay(links)
    if output.is_terminal(sys.stderr):
        from plan_adapter.cli.live import LiveDisplay

        return LiveDisplay(links)
    return PlainDisplay(links)


class Performance:
    """One run of this process: shown by its events, ended by signals."""

    def __init__(self, server: "Server | None", approver: "Approver | None", *, as_json: bool) -> None:
        """`server` None is an offline run, `approver` None a run that nobody is asked about."""
        self._server = server
        self._approver = approver
        self._as_json = as_json
        self._display: Display = choose_display(as_json=as_json, links=self._links)
        self._started: str | None = None  # the run's id, once its steps may run
        self._interrupts = 0
        self._take_signals: Callable[[], None] = lambda: None
        self._request: asyncio.Future[None] | None = None  # to cancel the run; kept, because the loop itself would forget it

    def listen(self, event: Event) -> None:
        """Show `event`."""
        if event.kind == "run_started":
            self._started = event.run.id
            self._take_signals()  # a flow run that begins has put Prefect's handler of SIGTERM in front
        self._display(event)

    async def complete(self, work: Coroutine[Any, Any, "PlanRun"], store: "PlanStore") -> int:
        """Await the run, print what came of it, and return the exit code."""
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        numbers = [number for number in INTERRUPTED if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        self._take_signals = partial(_take_signals, loop, {number: partial(self._interrupt, number, task, store) for number in numbers})
        self._take_signals()
        try:
            with captured_prints():
                run = await task
        except asyncio.CancelledError:
            self._display.close()
            await self._tell_forced_end(store)
            return ExitCode.INTERRUPTED
        except StoreError:
            self._display.close()
            self._tell_left()
            raise
        finally:
            self._display.close()
            for number in numbers:
                loop.remove_signal_handler(number)
        show_result(run, as_json=self._as_json)
        return ExitCode.INTERRUPTED if self._interrupts and run.status is PlanStatus.CANCELLED else code_of_run(run)

    def _interrupt(self, number: signal.Signals, task: "asyncio.Future[PlanRun]", store: "PlanStore") -> None:
        # First the run is asked to end, as `plan cancel` does it; then its work is cancelled; then the process ends.
        self._interrupts += 1
        if self._started is not None and self._interrupts == 1:
            output.note("ending the run; press Ctrl-C again to force it")
            self._request = asyncio.ensure_future(store.request_cancel(self._started, INTERRUPTED[number]))
            self._request.add_done_callback(lambda done: task.cancel() if done.exception() is not None else None)
        elif not task.done() and self._interrupts <= 2:
            task.cancel()
            asyncio.get_running_loop().call_later(FORCE_SECONDS, _end_process)
        else:
            _end_process()

    async def _tell_forced_end(self, store: "PlanStore") -> None:
        from plan_adapter.runner import acancel_run

        asked = self._approver.asked if isinstance(self._approver, TerminalApprover) else None
        if self._started is None and asked is not None and asked.run_id is not None:
            await acancel_run(asked.run_id, reason=INTERRUPTED[signal.SIGINT], store=store)
        output.note("interrupted")
        self._tell_left()

    def _tell_left(self) -> None:
        if self._started is not None:
            output.note(f"run {self._started} was left as it is; `plan resume {self._started}` goes on with it")

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


def show_result(run: "PlanRun", *, as_json: bool) -> None:
    """Print how the run stands to stdout, and what to do next to stderr."""
    if as_json:
        output.json_line(run_json(run, steps=True))
    else:
        output.line(run_end(run))
        for name, value in run.outputs.items():
            output.line(f"{name}: {as_text(value)}")
    if hint := next_command(run):
        output.note(hint)


def next_command(run: "PlanRun") -> str:
    """Return the line that says what a person may do about `run` now."""
    if run.status is PlanStatus.PENDING_APPROVAL:
        return f"it waits for an approval: `plan resume {run.id}` asks for it on a terminal, `plan resume {run.id} --yes` approves it"
    if run.reason is RunReason.UNKNOWN:
        return f"`plan show {run.id}` tells more; a write whose outcome is unknown is never tried again by itself"
    if run.status in (PlanStatus.FAILED, PlanStatus.PARTIAL):
        return f"`plan show {run.id}` tells more; `plan resume {run.id}` tries what has not succeeded again"
    return f"`plan show {run.id}` tells more"
