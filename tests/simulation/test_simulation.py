"""Tests of simulated runs: they keep every guarantee, a seed repeats its run, and broken variants of the product are detected.

`make test` simulates a few seeds, `make thorough` and `make simulate` many.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.faults.broken import VARIANTS
from tests.faults.plans import scenario_of
from tests.processes import FORKS
from tests.simulation.loop import DeadlockError, VirtualLoop
from tests.simulation.simulation import Outcome, simulate_all

ROOT = Path(__file__).parents[2]

DETECTED = {
    "intents are not durable before the effect": 40,
    "receipts are ignored on resume": 40,
    "a write with an unknown outcome counts as not started": 60,
    "idempotency keys depend on the attempt": 40,
    "epochs are not incremented": 5,
    "the digest of a call is not compared": 40,
    "the use of a call's approval is not counted": 5,
    "no step waits at a gate": 5,
    "the write of a goal needs no approval": 20,
    "receipts are written before the effect": 5,
    "an audit entry is omitted": 5,
    "nothing is redacted": 5,
    "every run completes": 5,
    "a person's `done` counts as `again`": 20,
    "the first step is undone first": 20,
}
"""The variants that few seeds detect, and how many are enough."""

QUICK = {"epochs are not incremented", "no step waits at a gate", "nothing is redacted"}
"""`make test` covers these variants: few seeds detect them."""


@pytest.mark.parametrize("seeds", [range(8, 16), pytest.param(range(16, 300), marks=pytest.mark.thorough)], ids=["few", "many"])
def test_a_simulated_run_keeps_its_guarantees(seeds: range) -> None:
    outcomes = in_its_process(seeds)
    assert {outcome.seed: outcome.violations for outcome in outcomes if outcome.violations} == {}
    assert any(outcome.happened["killed"] for outcome in outcomes)
    assert any(outcome.happened["frozen"] for outcome in outcomes)


def test_a_seed_has_the_same_run_each_time() -> None:
    outputs = set[str]()
    for hash_seed in ("1", "2"):  # decides the order of sets of texts
        command = [sys.executable, "-m", "tests.simulation", "SEED=6"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        outputs.add(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) > 50


@pytest.mark.parametrize("variant", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.thorough) for name in DETECTED])
def test_the_simulation_detects_the_variant(variant: str) -> None:
    others = list[str]()
    suited = [seed for seed in range(1000) if VARIANTS[variant].where(scenario_of(seed))][: DETECTED[variant]]
    for at in range(0, len(suited), 2):
        violations = [violation for outcome in in_its_process(suited[at : at + 2], variant) for violation in outcome.violations]
        if any(violation.partition(":")[0] in VARIANTS[variant].detected_as for violation in violations):
            return
        others += violations
    pytest.fail(f"no run of {len(suited)} seeds detects the variant; other violations: {others}")


def in_its_process(seeds: Sequence[int], variant: str | None = None) -> list[Outcome]:
    """Return the outcomes of `seeds`, from a process that ends afterwards, because a variant changes the product."""
    with ProcessPoolExecutor(1, mp_context=FORKS) as pool:
        return pool.submit(simulate_all, seeds, variant).result()


def test_nothing_left_to_wait_for_is_an_error() -> None:
    loop = VirtualLoop()
    with pytest.raises(DeadlockError, match="nothing is left to wait for"):
        loop.run_until_complete(loop.create_future())
    loop.close()
