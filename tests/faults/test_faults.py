"""Tests of runs whose processes are killed at crash points, and of two processes for one run. `make faults` runs many more.

`make test` covers a third of the crash points, `make thorough` all of them on both databases.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from plan_adapter import PlanStore
from plan_adapter.local.crash_points import CrashPoint
from plan_adapter.model.options import Effect
from plan_adapter.model.record import RunContext
from plan_adapter.store import PlanStatus
from tests.faults import processes
from tests.faults.child import STOPPED, Fault
from tests.faults.goals import model_calls
from tests.faults.harness import ALL_TARGETS, CALL_POINTS, COMMAND_TARGETS, TARGETS, InOrder, Target, open_trial, run_trial
from tests.faults.plans import COMMANDS, EVERYTHING, FINALLY_AGAIN, GOAL, GOAL_SCRIPT, ITEMS, REVISED, SUB_PLAN, TOOL_NAMES
from tests.faults.processes import NO_REPORT, start
from tests.faults.races import RACES, Race, race
from tests.faults.shares import Share
from tests.faults.world import FINALLY, lines_of

ONE_OF_EACH_KIND: tuple[Target, ...] = (
    ("gate-opened", None),
    ("gate-answered", None),
    ("in-transaction", "approval_used"),
    ("claimed", None),
    ("before-intent", "write"),
    ("after-intent", "idempotent_write"),
    ("mid-effect", "write"),
    ("after-effect", "write"),
    ("after-receipt", None),
    ("mid-effect", "rollback write"),
    ("after-effect", "finally write"),
    ("before-end", None),
    ("in-transaction", "run_ended"),
    ("after-end", None),
)
"""A part of TARGETS, in the same order: each kind of crash point, with the most important details."""

ONE_ROUND_AT_EVERY_POINT: tuple[Target, ...] = (
    *((point, "decision read") for point in CALL_POINTS),
    ("mid-effect", "read"),
    ("in-transaction", "gate_opened"),
    ("gate-answered", None),
    ("after-intent", "write"),
    ("mid-effect", "write"),
    ("after-effect", "write"),
    *((point, "check read") for point in CALL_POINTS if point != "mid-effect"),  # the first check is of a rejection and calls no model
    ("mid-effect", "check read"),
)
"""The targets of a goal, in the order in which its run reaches them: in a decision, in a write with a gate, and in a check."""

ROUNDS = len(GOAL_SCRIPT)

MAX_SEEDS = 10
"""A race does not happen if the run ends before it. Of this many seeds, at least one leads to a race."""


@pytest.mark.parametrize("seed", [EVERYTHING, SUB_PLAN], ids=["whole plan", "sub-plan"])
async def test_a_run_killed_at_each_kind_of_crash_point_keeps_its_guarantees(seed: int, tmp_path: Path) -> None:
    trial = await run_trial(seed, tmp_path, choose=InOrder(ONE_OF_EACH_KIND))
    assert trial.violations == [], "\n".join(trial.events)
    assert {target: trial.kills[target] for target in ONE_OF_EACH_KIND} == dict.fromkeys(ONE_OF_EACH_KIND, 1)
    assert {point for point, _ in ONE_OF_EACH_KIND} == {point for point, _ in TARGETS}


ITEM_TARGETS: tuple[Target, ...] = tuple((point, f"rollback {effect}") for effect in ("idempotent_write", "write") for point in CALL_POINTS)
"""The targets in the rollback of a failed item, in the order in which its run reaches them."""


async def test_a_run_killed_in_the_rollback_of_an_item_finishes_that_rollback_and_no_more(shared_store: str | None, tmp_path: Path) -> None:
    trial = await run_trial(ITEMS, tmp_path, shared_store, choose=InOrder(ITEM_TARGETS), keep=True)
    assert trial.violations == [], "\n".join(trial.events)
    assert trial.kills == dict.fromkeys(ITEM_TARGETS, 1)
    lines = lines_of(trial.workspace.world)
    assert {line.unit for line in lines if line.step.startswith("rollback ")} == {("rollback g0", 1), ("rollback g1", 1)}
    assert [line.item for line in lines if line.step == "g2"] == [0, 2]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [EVERYTHING, SUB_PLAN], ids=["whole plan", "sub-plan"])
async def test_a_run_killed_at_every_crash_point_keeps_its_guarantees(seed: int, shared_store: str | None, tmp_path: Path) -> None:
    trial = await run_trial(seed, tmp_path, shared_store, choose=InOrder())
    assert trial.violations == [], "\n".join(trial.events)
    assert {target: trial.kills[target] for target in TARGETS} == dict.fromkeys(TARGETS, 1)  # the seed may also kill a resolving process


async def test_an_uninterrupted_run_makes_each_call_once(tmp_path: Path) -> None:
    trial = await run_trial(EVERYTHING, tmp_path, choose=lambda _: None, keep=True)
    assert (trial.violations, trial.processes) == ([], 1)
    assert [line.step for line in lines_of(trial.workspace.world)] == ["s0", "s1", "s2", "rollback s2", "rollback s1", "f0", "f1", "f2"]
    async with PlanStore(trial.workspace.store_url) as store:
        assert [run.status for run in await store.runs()] == [PlanStatus.PARTIAL]


@pytest.mark.parametrize(
    ("target", "attempts"),
    [
        (("after-effect", "finally write"), [1, 2]),
        pytest.param(
            ("after-intent", "finally write"), [1, 3], marks=pytest.mark.thorough
        ),  # attempt 2 did nothing, and the person who looks says so
        (("after-effect", "finally idempotent_write"), [1, 2, 3]),  # attempt 3 repeats attempt 2 with its key
        pytest.param(("after-effect", "finally read"), [1, 2, 3], marks=pytest.mark.thorough),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_a_finally_step_killed_when_it_runs_again_is_not_repeated_silently(
    target: Target, attempts: list[int], shared_store: str | None, tmp_path: Path
) -> None:
    trial = await run_trial(FINALLY_AGAIN, tmp_path, shared_store, choose=InOrder([("after-effect", "write"), None, target]), keep=True)
    assert trial.violations == [], "\n".join(trial.events)
    assert trial.kills == {("after-effect", "write"): 1, target: 1}
    killed = list(TOOL_NAMES).index(cast("Effect", str(target[1]).removeprefix(FINALLY)))
    lines = [line for line in lines_of(trial.workspace.world) if line.step == f"f{killed}"]
    assert [line.attempt for line in lines] == attempts
    assert len({line.key for line in lines}) == 2
    async with PlanStore(trial.workspace.store_url) as store:
        assert [run.status for run in await store.runs(context=RunContext(task_id=trial.workspace.task_id))] == [PlanStatus.COMPLETED]


@pytest.mark.parametrize("number", [1, 2, 3], ids=["read", "idempotent write", "write"])
@pytest.mark.parametrize("target", COMMAND_TARGETS, ids=lambda target: target[0])
async def test_a_command_that_outlives_its_killed_process_is_not_repeated_while_it_runs(
    target: Target, number: int, shared_store: str | None, tmp_path: Path
) -> None:
    faults = [Fault(*target, number)]
    trial = await run_trial(COMMANDS, tmp_path, shared_store, choose=lambda _: faults.pop() if faults else None, keep=True)
    assert trial.violations == [], "\n".join(trial.events)
    assert trial.kills == {target: 1}
    lines = [line for line in lines_of(trial.workspace.world) if line.step == f"s{number - 1}"]
    assert len(lines) in ((1,) if number == 3 else (1, 2))


async def test_an_uninterrupted_goal_makes_each_model_call_once(tmp_path: Path) -> None:
    trial = await run_trial(GOAL, tmp_path, choose=lambda _: None, keep=True)
    assert (trial.violations, trial.processes) == ([], 1)
    assert [(line.step, line.item) for line in lines_of(trial.workspace.world)] == [("k0", 0), ("k0", 2), ("k0", 6)]
    assert [(call.kind, call.round) for call in model_calls(trial.workspace.model)] == [
        *(("decision", number) for number in range(6)),
        ("check", 5),
        ("decision", 6),
        ("decision", 7),
        ("check", 7),
    ]


@pytest.mark.thorough
async def test_a_goal_killed_at_each_kind_of_crash_point_keeps_its_guarantees(tmp_path: Path) -> None:
    trial = await run_trial(GOAL, tmp_path, choose=InOrder(ONE_ROUND_AT_EVERY_POINT))
    assert trial.violations == [], "\n".join(trial.events)
    assert trial.kills == dict.fromkeys(ONE_ROUND_AT_EVERY_POINT, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("point", CALL_POINTS)
async def test_a_goal_killed_in_every_round_keeps_its_guarantees(point: CrashPoint, shared_store: str | None, tmp_path: Path) -> None:
    decided: Target = (point, "decision read")
    read, written, checked = (list[Target]([(point, detail)]) for detail in ("read", "write", "check read"))
    targets: list[Target] = [decided, *read, decided, decided, ("gate-opened", None), ("gate-answered", None), *written, decided]
    asked: list[Target] = [("gate-opened", None), ("gate-answered", None)]
    asked += read if point != "mid-effect" else []
    rejected = checked if point != "mid-effect" else []
    targets += [("gate-answered", None), *rejected, decided, *asked, decided, *checked, decided, *read, decided, *checked, *asked]
    targets += read if point != "mid-effect" else []  # the end of the step
    trial = await run_trial(GOAL, tmp_path, shared_store, choose=InOrder(targets))
    assert trial.violations == [], "\n".join(trial.events)
    assert trial.kills == Counter(targets), "\n".join(trial.events)
    assert trial.kills[decided] == ROUNDS


async def test_a_revision_keeps_the_idempotency_keys_of_started_steps(tmp_path: Path) -> None:
    faults: list[Target] = [("after-effect", "idempotent_write")]
    trial = await run_trial(REVISED, tmp_path, choose=InOrder(faults), keep=True)
    assert trial.violations == [], "\n".join(trial.events)
    assert trial.kills == dict.fromkeys(faults, 1)
    async with PlanStore(trial.workspace.store_url) as store:
        assert len(await store.revisions.of_run(trial.run_id or "")) > 0
    put = [line for line in lines_of(trial.workspace.world) if line.step == "s0"]
    assert ([line.attempt for line in put], len({line.key for line in put})) == ([1, 2], 1)


@pytest.mark.parametrize("kind", RACES, ids=lambda kind: kind.__name__)
async def test_only_one_of_two_processes_executes_a_run(kind: Race, shared_store: str | None, tmp_path: Path) -> None:
    for seed in range(MAX_SEEDS):
        trial, happened = await race(kind, seed, tmp_path, shared_store)
        assert trial.violations == [], "\n".join(trial.events)
        if happened:
            return
    pytest.fail(f"none of {MAX_SEEDS} runs led to a race")


async def test_targets_that_no_random_draw_reached_are_run(tmp_path: Path) -> None:
    missed: Target = ("in-transaction", "run_changed")
    share = Share(0, 0, range(1, sys.maxsize), [None], tmp_path)
    share.done.update(target for target in ALL_TARGETS if target != missed)
    share.raced.update(kind.__name__ for kind in RACES[1:])
    await share.run_missed()
    assert share.violations == []
    assert dict(share.done) == dict.fromkeys(ALL_TARGETS, 1)
    assert dict(share.raced) == dict.fromkeys([kind.__name__ for kind in RACES], 1)


async def test_a_process_that_does_not_end_reports_its_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_trial(EVERYTHING, tmp_path, None, lambda _: None) as trial:
        process = start(trial.order("start", fault=Fault("mid-effect", stops=True)))
        assert await process.first_report() == STOPPED
        monkeypatch.setattr(processes, "TIMEOUT_SECONDS", 0.1)
        report = await process.final_report()
    assert report.error == NO_REPORT
    assert "did not end within 0.1 s" in report.message
    assert "(most recent call first)" in report.message  # the stacks of its threads
    assert "await asyncio.shield(self._ended)" in report.message  # and of its tasks


async def test_an_unrecorded_effect_is_detected(tmp_path: Path) -> None:
    trial = await run_trial(EVERYTHING, tmp_path, choose=lambda _: None, keep=True)
    lines = trial.workspace.world.read_text().splitlines()
    trial.workspace.world.write_text("\n".join([*lines, lines[2], lines[0].replace('"attempt": 1', '"attempt": 9')]) + "\n")
    async with PlanStore(trial.workspace.store_url) as store:
        trial.store = store
        assert {violation.kind for violation in await trial.check(is_over=True)} == {"twice", "unrecorded", "repeated", "order"}


async def test_an_unrecorded_model_answer_is_detected(tmp_path: Path) -> None:
    trial = await run_trial(GOAL, tmp_path, choose=lambda _: None, keep=True)
    calls = trial.workspace.model.read_text().splitlines()
    text = model_calls(trial.workspace.model)[-2].text
    trial.workspace.model.write_text("\n".join([calls[0], *calls]).replace(f'"text": "{text}"', '"text": "another"') + "\n")
    async with PlanStore(trial.workspace.store_url) as store:
        trial.store = store
        assert {violation.kind for violation in await trial.check(is_over=True)} == {"paid twice", "untrue"}
