"""Tests of the harness: it detects each variant of the product with one rule removed, by the expected kind of violation."""

from pathlib import Path

import pytest

from tests.faults.broken import VARIANTS, Variant
from tests.faults.harness import Trial, only_at, random_fault, run_trial
from tests.faults.plans import EVERYTHING, scenario_of
from tests.faults.races import RACES, race

pytestmark = pytest.mark.thorough

MAX_SEEDS = 60


@pytest.mark.parametrize("name", VARIANTS)
async def test_the_harness_detects_the_variant(name: str, tmp_path: Path) -> None:
    variant, others = VARIANTS[name], list[str]()
    for seed in range(EVERYTHING, MAX_SEEDS):
        if variant.where(scenario_of(seed)):
            trial = await run_variant(name, seed, tmp_path)
            if is_detected(variant, trial):
                return
            others += map(str, trial.violations)
    pytest.fail(f"no run of {MAX_SEEDS} seeds detects the variant; other violations: {others}")


async def run_variant(name: str, seed: int, folder: Path) -> Trial:
    """Run a trial with kills, or a race, under a variant."""
    variant = VARIANTS[name]
    if variant.race is None:
        return await run_trial(seed, folder, choose=only_at(*variant.at) if variant.at else random_fault, variant=name)
    kind = next(kind for kind in RACES if kind.__name__ == variant.race)
    return (await race(kind, seed, folder, variant=name, sleep_at=variant.at))[0]


def is_detected(variant: Variant, trial: Trial) -> bool:
    """Whether the trial has a violation of an expected kind."""
    return any(violation.kind in variant.detected_as for violation in trial.violations)
