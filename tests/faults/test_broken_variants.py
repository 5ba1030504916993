"""Whether the harness finds what it is for: the product with one rule taken out is caught, each time, and as what it is."""

from pathlib import Path

import pytest

from tests.faults.broken import VARIANTS, Variant
from tests.faults.harness import Trial, at_random, only_at, trial
from tests.faults.plans import EVERYTHING, scenario_of
from tests.faults.races import RACES, race

pytestmark = pytest.mark.thorough

MOST_SEEDS = 60


@pytest.mark.parametrize("name", VARIANTS)
async def test_it_is_found_that(name: str, tmp_path: Path) -> None:
    variant, others = VARIANTS[name], list[str]()
    for seed in range(EVERYTHING, MOST_SEEDS):
        if variant.where(scenario_of(seed)):
            ended = await tried(name, seed, tmp_path)
            if found_as(variant, ended):
                return
            others += map(str, ended.found)
    pytest.fail(f"no run of {MOST_SEEDS} seeds shows it; found: {others}")


async def tried(name: str, seed: int, folder: Path) -> Trial:
    """Kill the processes of a run, or have it raced for, under a variant."""
    variant = VARIANTS[name]
    if variant.race is None:
        return await trial(seed, folder, choose=only_at(*variant.at) if variant.at else at_random, variant=name)
    kind = next(kind for kind in RACES if kind.__name__ == variant.race)
    return (await race(kind, seed, folder, variant=name, asleep=variant.at))[0]


def found_as(variant: Variant, ended: Trial) -> bool:
    """Whether a violation was found that is of the kinds that taking this rule out makes."""
    return any(violation.kind in variant.found_as for violation in ended.found)
