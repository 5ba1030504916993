"""`python -m tests.simulation RUNS=1000 SEED=1`: simulate the runs of RUNS seeds from SEED on. A seed with a violation is printed.

With SEED alone, print everything that happens in its run. VARIANT removes a rule of `tests.faults.broken` first.
"""

import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.simulation import simulate_all

SHARE = 25
"""How many seeds a process simulates at a time."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    options = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "PLAN_ADAPTER_"))]:
        del os.environ[name]
    seed, variant = int(options.get("SEED") or 1), options.get("VARIANT") or None
    if options.get("SEED") and not options.get("RUNS"):
        return _show(seed, variant)
    return _all(range(seed, seed + int(options.get("RUNS") or 1000)), variant)


def _show(seed: int, variant: str | None) -> int:
    (outcome,) = simulate_all([seed], variant)
    print("\n".join([*outcome.trace, "", *outcome.events, *outcome.violations]))
    return 1 if outcome.violations else 0


def _all(seeds: Sequence[int], variant: str | None) -> int:
    began, happened, failed = time.monotonic(), Counter[str](), 0
    shares = [seeds[at : at + SHARE] for at in range(0, len(seeds), SHARE)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for outcomes in pool.map(simulate_all, shares, [variant] * len(shares)):
            for outcome in outcomes:
                happened += outcome.happened
                if outcome.violations:
                    failed += 1
                    print(f"make simulate SEED={outcome.seed}: {'; '.join(outcome.violations)}", flush=True)
    for what, count in happened.most_common():
        print(f"{count:8}  {what}")
    print(f"{len(seeds)} runs, {failed} with violations, {time.monotonic() - began:.0f} s, SEED={seeds[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
