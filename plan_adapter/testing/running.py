"""`run_case` and `CaseRunner`: run cases offline, in a store and with secrets of their own."""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from plan_adapter.record import Attempt, PlanRun
from plan_adapter.runs.session import Backend, RunRequest, RunSession
from plan_adapter.runs.start import create_run, execute_session
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from plan_adapter.testing.case import Case
from plan_adapter.testing.recorded import BY, RecordedApprover, RecordedStepRunner, with_recorded_tools
from plan_adapter.testing.result import CaseResult, compare


class CaseRunner:
    """Runs cases, one after the other. They share a temporary store, which costs more than a run. Close it, or use it in a `with` block.

    The settings of the environment do not apply, and each secret has a made-up value.
    """

    def __init__(self) -> None:
        """Make the folder of the store."""
        self._folder = TemporaryDirectory(prefix="plan-test-")
        home = Path(self._folder.name)
        self._secrets = home / "secrets"
        self._secrets.mkdir()
        self._settings = Settings.model_construct(home=home, secrets_dir=self._secrets)
        self._loop = asyncio.Runner()
        self._store = PlanStore(self._settings.store_url)

    def run(self, case: Case) -> CaseResult:
        """Run `case` and return its result. Not for a running event loop."""
        return self._loop.run(self._run(case))

    def close(self) -> None:
        """Close the store and remove it."""
        self._loop.run(self._store.close())
        self._loop.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        """Return the runner. It is closed at the end of the block."""
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Close the runner."""
        self.close()

    async def _run(self, case: Case) -> CaseResult:
        for name in case.plan.validated.secrets:
            (self._secrets / name).write_text(f"value of {name}", encoding="utf-8")
        started = time.perf_counter()
        steps, approver = RecordedStepRunner(case), RecordedApprover(case, self._store)
        run, attempts = await self._executed(case, steps, approver)
        unanswered = tuple(steps.unanswered.values())
        mismatches = () if unanswered else tuple(compare(case.expect, run, attempts, approver.opened))  # they would only follow
        return CaseResult(case, run, mismatches, unanswered, (time.perf_counter() - started) * 1000)

    async def _executed(self, case: Case, steps: RecordedStepRunner, approver: RecordedApprover) -> tuple[PlanRun, list[Attempt]]:
        bound = with_recorded_tools(case.plan)
        request = RunRequest(approver=approver, requested_by=BY, settings=self._settings)
        run = await create_run(bound, self._store, request)
        session = RunSession(bound, run, self._store, request, backend=Backend(run_step=steps))
        run = await execute_session(session, server=None)
        return run, await self._store.attempts(run.id)


def run_case(case: Case) -> CaseResult:
    """Run `case` offline and return its result. For several cases, a `CaseRunner` is faster. Not for a running event loop."""
    with CaseRunner() as runner:
        return runner.run(case)
