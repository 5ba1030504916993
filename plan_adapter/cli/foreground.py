"""A run in the foreground of this process: its server, approver, display and signals, and the lines at its end."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.approval_state import approval_state_of, plan_to_run_again
from plan_adapter.cli.asking import YesRefusedError, approver_for, asks_in_form
from plan_adapter.cli.editing import PlanEditor
from plan_adapter.cli.exit_codes import ExitCode, UsageError, code_of_error, code_with_rollbacks
from plan_adapter.cli.progress_lines import Display, JsonDisplay, Links, PlainDisplay, detach_line
from plan_adapter.cli.records import run_json, run_message, run_status
from plan_adapter.cli.run_view import SHOWN_CALLS
from plan_adapter.engine.connection import Server, ui_hint
from plan_adapter.execution.cancellation import LeaveSignal
from plan_adapter.execution.printing import captured_prints
from plan_adapter.gates.conversation import Conversation
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import LeaseLostError, RunConflictError, StoreError, StoreLostError
from plan_adapter.model.hooks import Event
from plan_adapter.model.readable import as_text
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.text.commands import new_run_hint, next_after_outcome, resolve_command, resume_command, rollback_command, rolled_back_hint

if TYPE_CHECKING:
    from plan_adapter.engine.local_server import PendingServer
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.model.record import Attempt, PlanRun
    from plan_adapter.runs.run_session import Requester, RunRequest
    from plan_adapter.store.store import PlanStore
    from plan_adapter.text.run_facts import LeftBehind
    from plan_adapter.tools.registry import ToolRegistry

INTERRUPTED = {
    signal.SIGINT: "interrupted at the terminal (Ctrl-C)",
    signal.SIGTERM: "its process was told to end (SIGTERM)",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}
"""Signals that end a run, with the reason to record."""
HANDLER_CHECK_SECONDS = 0.25
"""How often to check whether a new flow run has replaced our SIGTERM handler by Prefect's."""
REPEAT_SECONDS = 2.0
"""Within this time a second signal counts as the first: a shell that forwards a signal to the process group sends it twice."""
HANGUP_RETRY_SECONDS = 0.5
FORCE_SECONDS = 5.0
"""How long cancelled tasks may clean up before the process exits anyway."""


def begin_server(settings: "Settings", *, offline: bool) -> "PendingServer | None":
    """Return the server that the run will use, which may still be starting; None for an offline run."""
    if offline:
        return None
    from plan_adapter.engine.local_server import begin_server as begin  # not for `--offline`

    for queue in ("EventsWorker", "APILogWorker"):  # they warn at exit that they are still sending
        logging.getLogger(queue).setLevel(logging.ERROR)
    logging.raiseExceptions = False  # else Prefect prints logging errors into the display
    return begin(settings, notify=output.note)


def choose_display(*, as_json: bool, links: Links, conversation: Conversation | None = None) -> Display:
    """Return the display for this process's streams; it pauses while `conversation` asks a question."""
    if as_json:
        return JsonDisplay(links)
    if output.is_terminal(sys.stderr):
        from plan_adapter.cli.live import LiveDisplay  # imports rich

        return LiveDisplay(links, conversation)
    return PlainDisplay(links, conversation.write_above) if conversation is not None else PlainDisplay(links)


EARLIER_RUNS = 5
"""How many of the newest completed runs of a plan tell how long a run may take."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run deals with gates, and what it prints."""

    yes: bool
    detach: bool
    json: bool
    override_freeze: str | None = None  # why the run is to start during a change freeze


def refuse_empty_reason(override_freeze: str | None) -> None:
    """Raise UsageError for `--override-freeze` without a reason."""
    if override_freeze is not None and not override_freeze.strip():
        raise UsageError("--override-freeze needs the reason, which is recorded: --override-freeze 'INC-123: hotfix'")


class ForegroundRun:
    """The run of this process: it shows events, asks at gates here and in a form, and ends on signals."""

    def __init__(
        self, server: Server | None, options: RunOptions, *, store: "PlanStore", tools: "ToolRegistry", imports: Sequence[str] = ()
    ) -> None:
        """`server`: None for an offline run. `imports`: the values of `--tools`, repeated in the commands that continue the run."""
        self._server = server
        self._store = store
        self._tools = tools
        self._imports = imports
        self._as_json = options.json
        self._override_freeze = options.override_freeze
        conversation = Conversation()
        conversation.on_hang_up = self._on_hangup
        self.asks_in_form = asks_in_form(yes=options.yes, detach=options.detach, has_server=server is not None)
        edit = PlanEditor(store, tools)
        self.approver = approver_for(
            yes=options.yes, detach=options.detach, conversation=conversation, edit=edit, is_alone=not self.asks_in_form
        )
        self._waits = not (options.yes or options.detach) and self.can_ask
        self._leave = LeaveSignal()
        self._left_at: float | None = None  # when a signal left the run waiting, on the loop's clock
        self._display: Display = choose_display(as_json=options.json, links=self._links, conversation=conversation)
        self._has_mentioned_detach = False
        self._waiting_run_id: str | None = None  # set once a gate has opened
        self._started_run_id: str | None = None  # set once the steps can run
        self._resume_command = ""  # what to type if it stops
        self._interrupts = 0
        self._reading: asyncio.Future[None] | None = None  # kept, because the loop holds tasks weakly
        self._install_handlers: Callable[[], None] = lambda: None
        self._cancellation: asyncio.Future[None] | None = None  # kept, because the loop holds tasks weakly

    @property
    def can_ask(self) -> bool:
        """Whether somebody can be asked at a gate."""
        return self.approver is not None or self.asks_in_form

    def listen(self, event: Event) -> None:
        """Show `event`."""
        if event.kind == "gate_opened":
            self._waiting_run_id = event.run.id
        if event.kind == "run_started":
            self._started_run_id, self._resume_command = event.run.id, resume_command(event.run, tools=self._imports)
            if output.is_terminal(sys.stderr) and not self._as_json:
                self._reading = asyncio.ensure_future(self._read_earlier_runs(event.run.name))
        if event.kind in ("gate_opened", "gate_shown", "run_started"):
            self._install_handlers()  # a new flow run has installed Prefect's SIGTERM handler
        self._display(event)
        if event.kind == "gate_opened" and self._waits and self.approver is None and not self._has_mentioned_detach:
            self._has_mentioned_detach = True
            output.note(detach_line(event, "leaves the run waiting and exits with code 6"))

    async def _read_earlier_runs(self, name: str) -> None:
        """Let the display know how long earlier runs of the plan took."""
        with contextlib.suppress(StoreError):  # the run goes on without
            earlier = await self._store.runs(EARLIER_RUNS, status=PlanStatus.COMPLETED, names=[name])
            if earlier:
                self._display.expect(len(earlier), max(run.total_duration_ms for run in earlier))

    def request(self, settings: "Settings", *, identity: "Requester | None" = None) -> "RunRequest":
        """Return the request for the run. `identity` proves who makes requests outside a gate."""
        from plan_adapter.runs.run_session import RunRequest

        return RunRequest(
            approver=self.approver,
            asks_in_form=self.asks_in_form,
            waits=self._waits,
            tools=self._tools,
            listener=self.listen,
            leave=self._leave,
            settings=settings,
            server=self._server,
            identity=identity,
            override_freeze=self._override_freeze,
        )

    async def complete(self, work: Coroutine[Any, Any, "PlanRun"]) -> int:
        """Await the run, print its result, and return the exit code."""
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        signals = [signum for signum in INTERRUPTED if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN]  # nohup
        self._install_handlers = partial(
            _install_signal_handlers, loop, {signum: partial(self._on_signal, signum, task) for signum in signals}
        )
        self._install_handlers()
        handler_check = asyncio.ensure_future(self._keep_handlers_installed())
        try:
            with captured_prints():
                run = await task
        except asyncio.CancelledError:
            self._display.close()
            await self._show_forced_end()
            return ExitCode.INTERRUPTED
        except YesRefusedError as error:
            self._display.close()
            return self._refuse_yes(error)
        except LeaseLostError:
            self._display.close()
            run_id = self._started_run_id or self._waiting_run_id
            output.note(f"the store may lack the last events shown here; `plan show {run_id}` shows what is recorded")
            raise
        except StoreError as error:
            self._display.close()
            if not isinstance(error, StoreLostError):  # without its record a run cannot be resumed
                self._show_how_to_resume()
            raise
        finally:
            self._display.close()
            handler_check.cancel()
            for signum in signals:
                loop.remove_signal_handler(signum)
        is_open, offline = run.status is PlanStatus.PENDING_APPROVAL, self._server is None
        state = await approval_state_of(run, self._store, Settings(), offline=offline, tools=self._imports) if is_open else None
        hint = None if state is None else state.hint()
        if hint is None and run.status is not PlanStatus.COMPLETED:
            hint = await next_command_of(run, self._store, tools=self._imports)
        if state is None:  # otherwise the hint says so
            for command in await self._store.outcomes.commands(run.id):
                if command.state == "running":
                    output.note(f"the command of `{command.call}` {command.in_words}")
        with contextlib.suppress(UsageError) if self._left_at is not None else contextlib.nullcontext():  # the terminal may have gone
            left_behind = await left_behind_of(run, self._store)
            show_result(run, as_json=self._as_json, hint=hint, left_behind=left_behind, cause=not _is_error_on_screen(run))
        return (
            ExitCode.INTERRUPTED if self._interrupts and run.status is PlanStatus.CANCELLED else await code_with_rollbacks(run, self._store)
        )

    async def _keep_handlers_installed(self) -> None:
        ours = signal.getsignal(signal.SIGTERM)
        while True:
            await asyncio.sleep(HANDLER_CHECK_SECONDS)
            if signal.getsignal(signal.SIGTERM) is not ours:
                self._install_handlers()
                ours = signal.getsignal(signal.SIGTERM)

    def _refuse_yes(self, error: YesRefusedError) -> int:
        if self._as_json:
            output.json_error("not-approved", str(error), earlier="NotApprovedError")
        output.note(f"plan: --yes is refused, and nothing has started: {error}; `--detach` leaves the run waiting for an approver")
        return code_of_error(error)

    def _on_signal(self, signum: signal.Signals, task: "asyncio.Future[PlanRun]") -> None:
        # Ctrl-C cancels a run that only waits; any other signal leaves it waiting.
        if signum != signal.SIGINT and self._try_to_leave(signum):
            return
        # The first signal cancels the run as `plan cancel` does, the second cancels its tasks, the third ends the process.
        self._interrupts += 1
        run_id = self._started_run_id or self._waiting_run_id
        if run_id is not None and self._interrupts == 1:
            output.note("cancelling the run; press Ctrl-C again to stop at once")
            cancel = self._store.ledger.request_cancel if self._started_run_id is not None else self._store.cancel
            self._cancellation = asyncio.ensure_future(cancel(run_id, INTERRUPTED[signum]))
            self._cancellation.add_done_callback(lambda done: task.cancel() if done.exception() is not None else None)
        elif not task.done() and self._interrupts <= 2:
            task.cancel()
            asyncio.get_running_loop().call_later(FORCE_SECONDS, _end_process)
        else:
            _end_process()

    def _try_to_leave(self, signum: signal.Signals) -> bool:
        """Leave the run waiting if it only waits at gates, and return whether that handled the signal."""
        now = asyncio.get_running_loop().time()
        if self._left_at is not None:
            return now - self._left_at < REPEAT_SECONDS
        if self._interrupts or not self._leave.ask():
            return False
        self._left_at, self._interrupts = now, 1
        output.note(f"{INTERRUPTED[signum]}: the run still waits for an answer")
        return True

    def _on_hangup(self) -> None:
        """Leave the run waiting as soon as it only waits at gates: its terminal has gone without a signal."""
        if not self._try_to_leave(signal.SIGHUP):
            asyncio.get_running_loop().call_later(HANGUP_RETRY_SECONDS, self._on_hangup)

    async def _show_forced_end(self) -> None:
        from plan_adapter.runner import acancel_run

        if self._started_run_id is None and self._waiting_run_id is not None and self._left_at is None:
            with contextlib.suppress(RunConflictError):  # it has ended
                await acancel_run(self._waiting_run_id, reason=INTERRUPTED[signal.SIGINT], store=self._store)
        output.note("interrupted")
        self._show_how_to_resume()

    def _show_how_to_resume(self) -> None:
        if self._started_run_id is not None:
            output.note(f"run {self._started_run_id} has stopped; `{self._resume_command}` resumes it")

    def _links(self, flow_run_id: str) -> list[str]:
        url = self._server.run_url(flow_run_id) if self._server is not None else None
        return ui_hint(url) if url is not None else []


def _install_signal_handlers(loop: asyncio.AbstractEventLoop, handlers: Mapping[signal.Signals, Callable[[], None]]) -> None:
    for signum, handler in handlers.items():
        loop.add_signal_handler(signum, handler)


def _end_process() -> None:
    """Exit at once: threads of a tool would keep the interpreter alive."""
    with contextlib.suppress(OSError):  # nobody reads the output any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(ExitCode.INTERRUPTED)


async def left_behind_of(run: "PlanRun", store: "PlanStore") -> "Sequence[LeftBehind]":
    """Return the changes that a run left behind that did not complete. The message of a rollback says so itself."""
    if not run.status.has_ended or run.status is PlanStatus.COMPLETED or run.rollback is not None:
        return ()
    from plan_adapter.text.run_facts import run_facts  # only for runs that did not complete

    return run_facts(run, await store.attempts(run.id), await store.receipts(run.id)).left_behind


def _is_error_on_screen(run: "PlanRun") -> bool:
    """Return whether the terminal that gets the result of `run` has just shown why it failed, in the line of the failed step."""
    is_step = run.reason is RunReason.STEP_FAILED and run.rollback is None
    return is_step and output.is_terminal(sys.stdout) and output.is_terminal(sys.stderr)


def show_result(run: "PlanRun", *, as_json: bool, hint: str | None, left_behind: "Sequence[LeftBehind]" = (), cause: bool = True) -> None:
    """Print the result of the run to stdout and what to type next to stderr: `hint`, or the default. Without `cause`, not why it failed."""
    if as_json:
        output.json_line("run", run_json(run, steps=True))
    else:
        output.line(run_status(run))
        if cause and (message := run_message(run)) is not None:
            output.line(f"  {message}")
        for left in left_behind:
            output.line(f"  {left.text(SHOWN_CALLS)}")
        for name, value in run.outputs.items():
            output.line(f"{name}: {as_text(value)}")
    output.note(hint or next_command(run))


async def next_command_of(run: "PlanRun", store: "PlanStore", *, tools: Sequence[str] = ()) -> str:
    """Return the next command to type for `run`. No outcome is unknown while a living process executes it."""
    from plan_adapter.runs.reconcile import is_rollback_due  # imports SQLAlchemy

    if run.completed_at is None and await store.ledger.owner(run.id) is not None:
        return next_command(run, tools=tools)
    unknown = await store.outcomes.unknown(run.id)
    is_due, plan = bool(unknown) and await is_rollback_due(run, store), await plan_to_run_again(run, store)
    return next_command(run, unknown, tools=tools, rollback_due=is_due, plan=plan)


def next_command(
    run: "PlanRun",
    unknown: "Sequence[Attempt]" = (),
    *,
    tools: Sequence[str] = (),
    rollback_due: bool = False,
    plan: "ExecutionPlan | None" = None,
) -> str:
    """Return the next command to type for `run`.

    `unknown`: its attempts with an unknown outcome. `tools`: the values of its `--tools`. `rollback_due`: it is to be rolled back.
    `plan`: its plan, if only a new run can go on.
    """
    command = resume_command(run, tools=tools)
    attempt = next((attempt for attempt in unknown if attempt.kind == "step"), None)
    if attempt is not None:
        return (
            f"a write whose outcome is unknown is never retried automatically: check it, record the outcome with "
            f"`{resolve_command(run.id, (attempt.step_id, attempt.item), label=attempt.label)}`, "
            f"then {next_after_outcome(run, tools=tools, rollback_due=rollback_due)}"
        )
    if any(step.rolled_back for step in run.steps) or run.rollback is not None:
        rest = (
            f", `{rollback_command(run, tools=tools)}` rolls back the rest"
            if run.rollback is not None and run.rollback.can_continue
            else ""
        )
        return f"`plan show {run.id}` shows what was rolled back{rest}; {rolled_back_hint(run)}"
    if run.status in (PlanStatus.FAILED, PlanStatus.PARTIAL):
        return f"`plan show {run.id}` shows why; " + (new_run_hint(run, plan) if run.needs_new_run else f"`{command}` resumes it")
    return f"`plan show {run.id}` shows the details"
