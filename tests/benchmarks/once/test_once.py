"""An approved call is one effect, wherever its process is killed. `make bench-once` kills more, and the programs of peers."""

from pathlib import Path

import pytest

from tests.benchmarks.once.__main__ import US
from tests.benchmarks.once.killing import PLACES, kill_often
from tests.benchmarks.once.world import running_world

SOME = ("in the effect", "after the effect")


@pytest.mark.parametrize("places", [SOME, pytest.param(PLACES, marks=pytest.mark.thorough)], ids=["in the effect", "everywhere"])
def test_an_approved_call_has_one_effect_and_an_unknown_outcome_is_reported(places: tuple[str, ...], tmp_path: Path) -> None:
    with running_world() as world, US.running(tmp_path, world) as programs:
        kills = kill_often(programs, places, 2 * len(places), seed=1)
    assert [kill.effects for kill in kills] == [1] * len(kills)
    assert {kill.place for kill in kills if kill.unknowns} >= {*SOME}
    assert {kill.place for kill in kills} >= {*places} - {"after the call"}
