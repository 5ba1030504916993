"""Places at which a process of a run can end; and two processes with one run. `make faults` does many more.

A third of the places are tried in `make test`, all of them on both databases in `make thorough`.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

from plan_adapter import PlanStatus, PlanStore
from plan_adapter.crash_points import CrashPoint
from tests.faults import processes
from tests.faults.child import STOPPED, Fault
from tests.faults.goals import model_calls
from tests.faults.harness import GOAL_TARGETS, OF_A_CALL, TARGETS, Each, Target, opened, trial
from tests.faults.plans import EVERYTHING, GOAL, GOAL_SCRIPT, INSIDE, REVISED
from tests.faults.processes import SILENT, start
from tests.faults.races import RACES, Race, race
from tests.faults.shares import Share
from tests.faults.world import lines_of

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
    ("before-end", None),
    ("in-transaction", "run_ended"),
    ("after-end", None),
)
"""Fewer than TARGETS, in the same order: each kind of crash point, and of what is written where it matters most."""

ONE_ROUND_AT_EVERY_PLACE: tuple[Target, ...] = (
    *((point, "decision read") for point in OF_A_CALL),
    ("mid-effect", "read"),
    ("in-transaction", "gate_opened"),
    ("gate-answered", None),
    ("after-intent", "write"),
    ("mid-effect", "write"),
    ("after-effect", "write"),
    *((point, "check read") for point in OF_A_CALL if point != "mid-effect"),  # the first check is of a rejection, without the model
    ("mid-effect", "check read"),
)
"""Of a goal, in the order in which its run comes to them: each place of a decision, of a write at a gate, and of a check."""

ROUNDS = len(GOAL_SCRIPT)

MOST_SEEDS = 10
"""A race does not come about where the run ends before it; of so many one does."""


@pytest.mark.parametrize("seed", [EVERYTHING, INSIDE], ids=["whole plan", "sub-plan"])
async def test_a_run_that_is_killed_at_one_place_of_each_kind_keeps_its_promises(seed: int, tmp_path: Path) -> None:
    ended = await trial(seed, tmp_path, choose=Each(ONE_OF_EACH_KIND))
    assert ended.found == [], "\n".join(ended.told)
    assert {target: ended.kills[target] for target in ONE_OF_EACH_KIND} == dict.fromkeys(ONE_OF_EACH_KIND, 1)
    assert {point for point, _ in ONE_OF_EACH_KIND} == {point for point, _ in TARGETS}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [EVERYTHING, INSIDE], ids=["whole plan", "sub-plan"])
async def test_a_run_that_is_killed_at_every_place_keeps_its_promises(seed: int, shared_store: str | None, tmp_path: Path) -> None:
    ended = await trial(seed, tmp_path, shared_store, choose=Each())
    assert ended.found == [], "\n".join(ended.told)
    assert {target: ended.kills[target] for target in TARGETS} == dict.fromkeys(TARGETS, 1)  # the seed may also kill somebody who resolves


async def test_a_run_that_nobody_kills_does_each_thing_once(tmp_path: Path) -> None:
    ended = await trial(EVERYTHING, tmp_path, choose=lambda _: None, keeps=True)
    assert (ended.found, ended.processes) == ([], 1)
    assert [line.step for line in lines_of(ended.place.world)] == ["s0", "s1", "s2", "rollback s2", "rollback s1"]
    async with PlanStore(ended.place.store_url) as store:
        assert [run.status for run in await store.runs()] == [PlanStatus.PARTIAL]


async def test_a_goal_that_nobody_kills_pays_each_answer_once(tmp_path: Path) -> None:
    ended = await trial(GOAL, tmp_path, choose=lambda _: None, keeps=True)
    assert (ended.found, ended.processes) == ([], 1)
    assert [(line.step, line.item) for line in lines_of(ended.place.world)] == [("k0", 0), ("k0", 2), ("k0", 6)]
    assert [(call.kind, call.round) for call in model_calls(ended.place.model)] == [
        *(("decision", number) for number in range(6)),
        ("check", 5),
        ("decision", 6),
        ("decision", 7),
        ("check", 7),
    ]


@pytest.mark.thorough
async def test_a_goal_that_is_killed_at_one_place_of_each_kind_keeps_its_promises(tmp_path: Path) -> None:
    ended = await trial(GOAL, tmp_path, choose=Each(ONE_ROUND_AT_EVERY_PLACE))
    assert ended.found == [], "\n".join(ended.told)
    assert ended.kills == dict.fromkeys(ONE_ROUND_AT_EVERY_PLACE, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("point", OF_A_CALL)
async def test_a_goal_that_is_killed_in_every_round_keeps_its_promises(point: CrashPoint, shared_store: str | None, tmp_path: Path) -> None:
    decided: Target = (point, "decision read")
    read, written, checked = ([(point, place)] for place in ("read", "write", "check read"))
    places: list[Target] = [decided, *read, decided, decided, ("gate-opened", None), ("gate-answered", None), *written, decided]
    asked = [("gate-opened", None), ("gate-answered", None)] + (read if point != "mid-effect" else [])
    rejected = checked if point != "mid-effect" else []
    places += [("gate-answered", None), *rejected, decided, *asked, decided, *checked, decided, *read, decided, *checked, *asked]
    places += read if point != "mid-effect" else []  # the end of the step itself
    ended = await trial(GOAL, tmp_path, shared_store, choose=Each(places))
    assert ended.found == [], "\n".join(ended.told)
    assert ended.kills == Counter(places), "\n".join(ended.told)
    assert ended.kills[decided] == ROUNDS


async def test_a_new_version_of_the_plan_leaves_the_key_of_what_was_begun_as_it_is(tmp_path: Path) -> None:
    faults: list[Target] = [("after-effect", "idempotent_write")]
    ended = await trial(REVISED, tmp_path, choose=Each(faults), keeps=True)
    assert ended.found == [], "\n".join(ended.told)
    assert ended.kills == dict.fromkeys(faults, 1)
    async with PlanStore(ended.place.store_url) as store:
        assert len(await store.revisions.of_run(ended.run_id or "")) > 0
    put = [line for line in lines_of(ended.place.world) if line.step == "s0"]
    assert ([line.attempt for line in put], len({line.key for line in put})) == ([1, 2], 1)


@pytest.mark.parametrize("kind", RACES, ids=lambda kind: kind.__name__)
async def test_of_two_processes_one_executes_a_run(kind: Race, shared_store: str | None, tmp_path: Path) -> None:
    for seed in range(MOST_SEEDS):
        ended, happened = await race(kind, seed, tmp_path, shared_store)
        assert ended.found == [], "\n".join(ended.told)
        if happened:
            return
    pytest.fail(f"none of {MOST_SEEDS} runs came to it")


async def test_places_that_the_draws_missed_are_targeted(tmp_path: Path) -> None:
    left: Target = ("in-transaction", "run_changed")
    every = Share(0, 0, range(1, sys.maxsize), [None], tmp_path)
    every.done.update(target for target in (*TARGETS, *GOAL_TARGETS) if target != left)
    every.raced.update(kind.__name__ for kind in RACES[1:])
    await every.aim()
    assert every.found == []
    assert dict(every.done) == dict.fromkeys((*TARGETS, *GOAL_TARGETS), 1)
    assert dict(every.raced) == dict.fromkeys([kind.__name__ for kind in RACES], 1)


async def test_a_process_that_does_not_end_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(EVERYTHING, tmp_path, None, lambda _: None) as trial:
        process = start(trial.order("start", fault=Fault("mid-effect", stops=True)))
        assert await process.said() == STOPPED
        monkeypatch.setattr(processes, "PATIENCE_SECONDS", 0.1)
        told = await process.ended()
    assert told.error == SILENT
    assert "did not end within 0.1 s" in told.words
    assert "(most recent call first)" in told.words  # the stacks of its threads
    assert "await asyncio.shield(self._ended)" in told.words  # and what the tasks wait for


async def test_an_effect_of_which_the_record_knows_nothing_is_found(tmp_path: Path) -> None:
    ended = await trial(EVERYTHING, tmp_path, choose=lambda _: None, keeps=True)
    lines = ended.place.world.read_text().splitlines()
    ended.place.world.write_text("\n".join([*lines, lines[2], lines[0].replace('"attempt": 1', '"attempt": 9')]) + "\n")
    async with PlanStore(ended.place.store_url) as store:
        ended.store = store
        assert {violation.kind for violation in await ended.look(is_over=True)} == {"twice", "unrecorded", "repeated"}


async def test_an_answer_of_the_model_that_the_record_does_not_have_is_found(tmp_path: Path) -> None:
    ended = await trial(GOAL, tmp_path, choose=lambda _: None, keeps=True)
    calls = ended.place.model.read_text().splitlines()
    text = model_calls(ended.place.model)[-2].text
    ended.place.model.write_text("\n".join([calls[0], *calls]).replace(f'"text": "{text}"', '"text": "another"') + "\n")
    async with PlanStore(ended.place.store_url) as store:
        ended.store = store
        assert {violation.kind for violation in await ended.look(is_over=True)} == {"paid twice", "untrue"}
