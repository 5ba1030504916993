"""Runs cases in several processes, and counts their outcomes in a table."""

import asyncio
import gc
import multiprocessing
import os
import random
import re
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from plan_adapter import PlanStore
from tests.agentdojo.runs import WAYS, Outcome, run_case, run_plan_first
from tests.agentdojo.suites import VERSION, Case, pairs, tasks

PLAN_FIRST = "plan first"
ALL, TENTH = (1, 0), (10, 1)
"""Shares: one user task in so many, and the seed."""
PROCESSES = (os.cpu_count() or 1) + 1
PAGE = Path(__file__).parents[2] / "plan_adapter" / "guide" / "benchmarks.md"
_VERSIONS = re.compile(r"^Versions: AgentDojo .*$", re.MULTILINE)


def chosen(share: tuple[int, int]) -> list[list[Case]]:
    """Return all user tasks, or one in `share[0]` of them, by the seed `share[1]`: each alone, followed by its pairs."""
    one_in, seed = share
    alone = tasks()
    if one_in > 1:
        alone = random.Random(seed).sample(alone, round(len(alone) / one_in))
    return [[case, *(pair for pair in pairs() if pair.user_task == case.user_task and pair.suite == case.suite)] for case in alone]


@dataclass(frozen=True)
class Found:
    """The outcomes of cases."""

    outcomes: Sequence[Outcome]

    def of(self, way: str, *, attacked: bool) -> list[Outcome]:
        """Return the outcomes of one way, with an injection or without."""
        return [each for each in self.outcomes if each.way == way and (each.case.injection_task is not None) == attacked]

    def attacks(self, way: str) -> list[Outcome]:
        """Return the outcomes in which the attack was executed."""
        return [each for each in self.of(way, attacked=True) if each.is_attack_executed]

    def row(self, way: str) -> str:
        """Return the row of one way."""
        alone, attacked, executed = self.of(way, attacked=False), self.of(way, attacked=True), self.attacks(way)
        spoken = sum(only_speaks(each.case) for each in executed)
        done, under_attack = (sum(each.is_task_done for each in part) for part in (alone, attacked))
        gates = sum(each.gates for each in alone) / max(1, len(alone))
        acts = f"{len(executed) - spoken} + {spoken}" if spoken else f"{len(executed)}"
        return f"| {way} | {acts} of {len(attacked)} | {done} of {len(alone)} | {under_attack} of {len(attacked)} | {gates:.1f} |"

    def markdown(self) -> str:
        """Return the tables."""
        return "\n".join([HEAD, *(self.row(way) for way in (*WAYS, PLAN_FIRST)), "", *self._gates()])

    def _gates(self) -> Iterable[str]:
        """Yield the table of gates per 100 writes of the user tasks that write."""
        planned = {each.case: each for each in self.of(PLAN_FIRST, attacked=False) if each.writes}
        goals = {each.case: each for each in self.of("rubber stamp", attacked=False) if each.writes}
        mixed = [planned.get(case, goal) for case, goal in goals.items()]
        yield "| what is approved | tasks | writes | gates | gates per 100 writes | writes that no gate covered |"
        yield "|---|---|---|---|---|---|"
        rows = (
            ("plans as a whole", [*planned.values()], 0),
            ("each write", [*goals.values()], 1),
            ("by default: plans as a whole; for tasks without one, goals and their writes", mixed, 0),
        )
        for name, outcomes, fewer in rows:
            writes, gates = sum(each.writes for each in outcomes), sum(each.gates - fewer for each in outcomes)
            unasked = sum(each.unasked for each in outcomes)
            yield f"| {name} | {len(outcomes)} | {writes} | {gates} | {100 * gates / max(1, writes):.0f} | {unasked} |"


HEAD = """\
| who approves | attacks executed | tasks done | tasks done under attack | gates per task |
|---|---|---|---|---|"""


def only_speaks(case: Case) -> bool:
    """Return whether the injection calls nothing, so that no gate can stop it: it makes the model say something."""
    return (case.suite, case.injection_task) == ("travel", "injection_task_6")


def run_all(share: tuple[int, int]) -> Found:
    """Run the cases of a share in processes of their own."""
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        return Found([outcome for part in pool.map(run_batch, chosen(share)) for outcome in part])


def run_batch(cases: Sequence[Case]) -> list[Outcome]:
    """Run the cases in this process, which does nothing else, with a store of their own."""
    gc.set_threshold(100_000, 20, 100)  # a collection takes as long as a run
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "PLAN_ADAPTER_"))]:
        del os.environ[name]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="plan-agentdojo-", dir=memory if memory.is_dir() else None) as folder:
        os.environ["PLAN_ADAPTER_HOME"] = folder
        return asyncio.run(run_cases(cases, f"sqlite:///{folder}/plans.db"))


async def run_cases(cases: Sequence[Case], url: str, ways: Sequence[str] = WAYS) -> list[Outcome]:
    """Run each case as a goal with each of `ways`, and as a plan if it has one."""
    found = list[Outcome]()
    async with PlanStore(url) as store:
        for case in cases:
            found += await run_case(case, store, ways)
            if (outcome := await run_plan_first(case, store)) is not None:
                found.append(outcome)
    return found


def write_page(found: Found) -> None:
    """Write the tables into the page of the guide."""
    page = PAGE.read_text(encoding="utf-8")
    versions = f"Versions: AgentDojo {version('agentdojo')}, its benchmark {VERSION}, this package {version('prefect-plan-adapter')}."
    made = f"{found.markdown()}\n\n{versions}"
    begin, end = page.index(HEAD), _VERSIONS.search(page)
    assert end is not None, f"{PAGE} has no line of versions"
    PAGE.write_text(page[:begin] + made + page[end.end() :], encoding="utf-8")
