"""`run_case` and `CaseRunner`: run cases offline, in a store and with secrets of their own."""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from plan_adapter.local.secrets import SecretChain
from plan_adapter.local.settings import Settings
from plan_adapter.model.record import PlanRun
from plan_adapter.runs.run_session import Backend, RunRequest, RunSession
from plan_adapter.runs.start import create_run, execute_session
from plan_adapter.store.store import PlanStore
from plan_adapter.testing.case import Case
from plan_adapter.testing.recorded import STARTED_BY, MadeUpSecrets, RecordedApprover, RecordedStepRunner
from plan_adapter.testing.result import CaseResult, RecordedCalls, compare


class CaseRunner:
    """Runs cases, one after the other. They share a temporary store, because creating one takes longer than a run.

    Close the runner, or use it in a `with` block. The settings of the environment do not apply, and each secret has a made-up value.
    """

    def __init__(self) -> None:
        """Make the folder of the store."""
        self._folder = TemporaryDirectory(prefix="plan-test-")
        self._settings = Settings.model_construct(home=Path(self._folder.name))
        self._loop = asyncio.Runner()
        self._store = PlanStore(self._settings.store_url)

    def run(self, case: Case) -> CaseResult:
        """Run `case` and return its result. Not for a running event loop."""
        return self._loop.get_loop().run_until_complete(self._run(case))  # `Runner.run` costs milliseconds: it handles SIGINT each time

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
        started = time.perf_counter()
        steps, approver = RecordedStepRunner(case), RecordedApprover(case, self._store)
        run = await self._execute(case, steps, approver)
        calls = RecordedCalls(await self._store.attempts(run.id), await self._store.receipts(run.id), approver.opened)
        unanswered = (*steps.unanswered.values(), *approver.unanswered.values())
        mismatches = () if unanswered else tuple(compare(case.expect, run, calls))  # mismatches would only be consequences
        return CaseResult(case, run, mismatches, unanswered, (time.perf_counter() - started) * 1000)

    async def _execute(self, case: Case, steps: RecordedStepRunner, approver: RecordedApprover) -> PlanRun:
        request = RunRequest(approver=approver, requested_by=STARTED_BY, settings=self._settings, secrets=SecretChain([MadeUpSecrets()]))
        run = await create_run(case.plan, self._store, request)
        session = RunSession(case.plan, run, self._store, request, backend=Backend(run_step=steps))
        return await execute_session(session, server=None)


def run_case(case: Case) -> CaseResult:
    """Run `case` offline and return its result. For several cases, a `CaseRunner` is faster. Not for a running event loop."""
    with CaseRunner() as runner:
        return runner.run(case)
