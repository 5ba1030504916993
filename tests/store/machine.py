"""The base of state machines that drive a real store: a SQLite file in memory, and a clock that only a rule moves."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from plan_adapter.model.host_process import HostProcess
from plan_adapter.store.database import sqlite
from plan_adapter.store.database.columns import sqlite_text
from plan_adapter.store.store import PlanStore

T = TypeVar("T")

MEMORY = Path("/dev/shm")
"""A folder in memory, where syncing a file is free."""

happened = Counter[str]()
"""How often each event happened in all sequences. The tests check that the sequences covered enough."""


class StoreMachine(RuleBasedStateMachine):
    """A sequence of calls of one store or several. What each call must do is known from a model."""

    running: "StoreMachine"
    """The machine of the present sequence."""

    def __init__(self, empty_store: Path) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine-", dir=MEMORY if MEMORY.is_dir() else None))
        shutil.copy(empty_store, self.folder / "plans.db")
        self.loop = asyncio.Runner()
        self.time = datetime(2026, 1, 1, tzinfo=UTC)
        self.stores = list[PlanStore]()
        self.this: HostProcess | None = None  # the process that calls, if not this one
        StoreMachine.running = self

    def teardown(self) -> None:
        try:
            for store in self.stores:
                self.do(store.close())
        finally:
            self.loop.close()
            shutil.rmtree(self.folder)

    def open_store(self) -> PlanStore:
        """Return a store on the file of this sequence."""
        self.stores.append(PlanStore(f"sqlite:///{self.folder}/plans.db"))
        return self.stores[-1]

    def read_clock(self) -> str:
        """Return the time as SQLite stores it. Each reading is a microsecond later, so that no two records have the same time."""
        self.time += timedelta(microseconds=1)
        return sqlite_text(self.time)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`."""
        return self.loop.run(work)

    def compare(self, what: str, work: Coroutine[Any, Any, Any], expected: type[Exception] | None) -> bool:
        """Check that `work` succeeds, or is refused with the error that the model expects. Return whether it succeeded."""
        error: Exception | None = None
        try:
            self.do(work)
        except Exception as raised:
            error = raised
        happened[f"{what}: {'done' if error is None else 'refused'}"] += 1
        assert (None if error is None else type(error)) is expected, f"{what}: expected {expected}, got {error!r}"
        return error is None


def explore(machine: Callable[[], StoreMachine], *, examples: int, steps: int = 30) -> None:
    """Run the same sequences each time, and print what happened in them."""
    happened.clear()
    factory: Any = machine  # a function is as good as a class
    given: dict[str, Any] = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
    given |= {"phases": [Phase.generate], "report_multiple_bugs": False}  # a sequence is reported as found
    # Patched here and not by each machine, so that the clock of other tests comes back however a sequence ends.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "sqlite_now", lambda: StoreMachine.running.read_clock())
        patch.setattr(HostProcess, "this", lambda this=HostProcess.this: StoreMachine.running.this or this())
        run_state_machine_as_test(factory, settings=settings(max_examples=examples, stateful_step_count=steps, **given))
    print("\n" + ", ".join(f"{what}: {count}" for what, count in sorted(happened.items())))


def require_events(*events: str) -> None:
    """Check that each of these events happened, so that a sequence that does nothing proves nothing."""
    missing = [event for event in events if not happened[event]]
    assert not missing, f"these never happened: {missing}"
