"""Tests of rolling restarts over SSH whose processes and connections are killed. `make faults HOSTS=20` kills them 300 times."""

import random
from pathlib import Path

import pytest

from tests.faults.broken import HOST_VARIANTS
from tests.faults.fleet import HOST_PLACES, ON_HOST, Faults, FleetTrial, Totals, open_fleet_trial

AFTER_EFFECT = "after-effect (write)"
BEFORE_CLAIM = f"{ON_HOST}before-claim"


class InTurn:
    """Chooses the next of `faults` for each process. The later ones have none."""

    def __init__(self, *faults: Faults) -> None:
        self.left = list(faults)

    def __call__(self, _trial: FleetTrial) -> Faults:
        return self.left.pop(0) if self.left else Faults()


async def test_a_restart_whose_process_and_connection_are_killed_repeats_nothing(tmp_path: Path) -> None:
    async with open_fleet_trial(tmp_path, random.Random(1), hosts=4) as trial:
        trial.latest, trial.holds = 1, 1
        await trial.run_to_end(InTurn(Faults(AFTER_EFFECT, (f"{ON_HOST}claimed",))))
        assert trial.violations == [], "\n".join(trial.events)
        assert trial.kills == {("run", AFTER_EFFECT): 1, ("connection", f"{ON_HOST}claimed"): 1}
        assert trial.probed > 0


@pytest.mark.thorough
@pytest.mark.timeout(1200)
async def test_a_restart_killed_at_each_place_on_a_host_repeats_nothing(tmp_path: Path) -> None:
    async with open_fleet_trial(tmp_path, random.Random(1), hosts=16) as trial:
        trial.latest, trial.holds = 1, 1
        await trial.run_to_end(InTurn(*(Faults(place, (place,)) for place in HOST_PLACES)))
        assert trial.violations == [], "\n".join(trial.events)
        assert [place for place in HOST_PLACES if not trial.kills["run", place]] == []


@pytest.mark.thorough
@pytest.mark.timeout(1200)
async def test_restarts_killed_where_few_were_killed_before_repeat_nothing(tmp_path: Path) -> None:
    totals = Totals(wanted=25, seed=1, hosts=8)
    await totals.run(tmp_path)
    assert totals.violations == 0
    assert totals.done.total() >= totals.wanted
    assert totals.probed > 0


DETECTED_BY = {
    "a host is not asked how a command ended": Faults(AFTER_EFFECT),
    "a command may begin after its probe": Faults(None, (BEFORE_CLAIM,)),
}


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", HOST_VARIANTS)
async def test_the_check_detects_the_variant(name: str, tmp_path: Path) -> None:
    async with open_fleet_trial(tmp_path, random.Random(1), hosts=4, variant=name) as trial:
        trial.latest, trial.holds = 1, 1
        await trial.run_to_end(InTurn(DETECTED_BY[name]))
        assert {violation.kind for violation in trial.violations} & HOST_VARIANTS[name].detected_as, "\n".join(trial.events)


@pytest.mark.thorough
async def test_a_wrong_end_is_detected(tmp_path: Path) -> None:
    async with open_fleet_trial(tmp_path, random.Random(1), hosts=4) as trial:
        await trial.run_to_end(InTurn())
        assert trial.violations == []
        log = trial.fleet.log.read_text()
        trial.fleet.log.write_text(log.replace(f"undrain {trial.broken}", f"undrain {trial.away}"))
        assert [str(violation) for violation in await trial.check()] == [
            f"lost: undrain {trial.broken} did not happen",
            f"extra: undrain {trial.away} happened",
        ]
