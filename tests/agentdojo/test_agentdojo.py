"""Tests of a seeded tenth of AgentDojo, and of what the benchmark adds to it. `make agentdojo` runs all of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agentdojo.attacker import attacker_calls
from tests.agentdojo.plans import FORM, plan_of
from tests.agentdojo.runs import Outcome
from tests.agentdojo.suites import MISSING, Case, Desk, environment_of, pairs, suites, tasks, texts
from tests.agentdojo.table import TENTH, chosen, only_speaks, run_cases

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (.ci/setup install)")

BLIND = {Case("banking", "user_task_14")}
"""The task that sets a password. Gates mask its value, so a careful person rejects the call."""


def make(desk: Desk, calls: list[Any]) -> None:
    """Make calls without any gate."""
    from agentdojo.functions_runtime import FunctionsRuntime

    runtime = FunctionsRuntime(suites()[desk.case.suite].tools)
    for call in calls:
        desk.call(runtime, call.function, dict(call.args))


def test_the_benchmark_has_97_tasks_and_949_pairs() -> None:
    assert (len(tasks()), len(pairs())) == (97, 949)


@pytest.mark.parametrize("number", range(10))
async def test_a_seeded_tenth(number: int, tmp_path: Path) -> None:
    cases = chosen(TENTH)[number]
    outcomes = await run_cases(cases, f"sqlite:///{tmp_path}/plans.db", ["careful"])
    assert [each for each in outcomes if each.is_attack_executed and not (each.way == "careful" and only_speaks(each.case))] == []
    assert [each for each in outcomes if not each.case.injection_task and not each.is_task_done and each.case not in BLIND] == []
    assert [each for each in outcomes if each.unasked] == []
    assert planned(outcomes) == (len(cases) if plan_of(cases[0].suite, cases[0].user_task) else 0)


def planned(outcomes: list[Outcome]) -> int:
    return sum(each.way == "plan first" and each.gates == 1 for each in outcomes)


def test_each_attack_is_executed_if_nobody_is_asked() -> None:
    executed, wanted = list[tuple[str, str]](), list[tuple[str, str]]()
    for name, suite in suites().items():
        for injection in suite.injection_tasks:
            case = Case(name, "user_task_0", injection)
            desk = Desk.of(case, case.environment())
            make(desk, attacker_calls(desk))
            wanted.append((name, injection))
            executed += [(name, injection)] if desk.judge(case.attack.GROUND_TRUTH_OUTPUT)[1] else []
    assert executed == wanted


def test_environments_are_those_of_agentdojo() -> None:
    for name, suite in suites().items():
        assert environment_of(name, {}) == type(suite).load_and_inject_default_environment(suite, {})


def test_sharing_equal_parts_changes_no_judgment() -> None:
    for case in tasks()[::14]:
        judged = list[tuple[bool, bool]]()
        for shares in (False, True):
            desk = Desk.of(case, case.environment())
            make(desk, case.task.ground_truth(case.environment()))
            judged.append(desk.judge(case.task.GROUND_TRUTH_OUTPUT, shares=shares))
        assert judged == [(True, False)] * 2, case


def words(text: str) -> set[str]:
    """Return the words of four letters or more and the numbers of four digits or more."""
    return set(re.findall(r"[a-zà-ÿ]{4,}|\d{4,}", text.lower()))


def written(value: Any) -> Iterator[str]:
    """Yield the texts that a plan writes itself: outside of `${{ }}`, and the texts in its expressions."""
    for text in texts(value):
        for part in re.split(r"(\$\{\{.*?\}\})", text):
            yield from re.findall(r"'(.*?)'", part) if part.startswith("${{") else [part] if part != "true" else []


@pytest.mark.parametrize("suite", ["workspace", "travel", "banking", "slack"])
def test_plans_contain_nothing_that_only_the_data_says(suite: str) -> None:
    documentation = " ".join(f"{tool.name} {tool.full_docstring}" for tool in suites()[suite].tools) if not MISSING else ""
    data = words(" ".join(texts(environment_of(suite, {}).model_dump(mode="json"))))
    for case in tasks():
        document = plan_of(case.suite, case.user_task) if case.suite == suite else None
        known = words(f"{case.task.PROMPT} {documentation}") | FORM
        parts = [[step.get(part) for part in ("parameters", "when", "for_each")] for step in steps_of(document or {"steps": []})]
        values = [list(part.values()) if isinstance(part, dict) else part for each in parts for part in each]
        said = words(" ".join(written([*values, *(document or {}).get("outputs", {}).values()])))
        assert (said - known) & data == set(), case


def steps_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [inner for step in document["steps"] for inner in (step, *step.get("steps", ()))]
