"""Tests of dependencies between steps."""

from itertools import pairwise
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.validation import find_problems, lint, validate
from tests.cases import for_each
from tests.validation.builders import TOOLS, found, plan, step


def using(*ids: str) -> dict[str, Any]:
    """Parameters that use the results of steps."""
    return {"value": [f'${{{{ steps["{step_id}"].result }}}}' for step_id in ids]}


def test_a_reference_creates_a_dependency() -> None:
    checked = plan(
        step("a"),
        step("b", when="${{ steps.a.status == 'completed' }}"),
        step("c", for_each="${{ steps.b.result }}", depends_on=["a"]),
        step("my-step", done_when="${{ result == steps.c.result }}"),
        step("e", parameters=using("my-step", "a")),
    )
    validated = validate(checked, TOOLS)
    assert validated.dependencies == {"a": (), "b": ("a",), "c": ("a", "b"), "my-step": ("c",), "e": ("a", "my-step")}
    assert validated.reduced == {"a": (), "b": ("a",), "c": ("b",), "my-step": ("c",), "e": ("my-step",)}


def test_steps_run_after_their_dependencies_and_otherwise_in_plan_order() -> None:
    checked = plan(step("z"), step("late", parameters=using("last")), step("a"), step("last"))
    assert validate(checked, TOOLS).order == ("z", "a", "last", "late")


def test_outputs_may_use_any_step() -> None:
    checked = plan(step("a"), step("b"), outputs={"both": ["${{ steps.a.result }}", "${{ steps.b.status }}"]})
    assert validate(checked, TOOLS).dependencies == {"a": (), "b": ()}


def test_an_unknown_dependency_names_the_nearest_step() -> None:
    (problem,) = find_problems(plan(step("drain"), step("b", depends_on=["drian"])), TOOLS)
    assert (problem.code, problem.at, problem.hint) == ("unknown-step", "steps[1].depends_on[0]", "did you mean `drain`?")


def test_a_step_that_depends_on_itself_says_so() -> None:
    assert found(plan(step("a", depends_on=["a"]))) == [("self-dependency", "steps[0].depends_on[0]")]


def test_a_cycle_is_shown_as_a_path_with_implied_dependencies() -> None:
    checked = plan(step("free"), step("b", depends_on=["c"]), step("c", parameters=using("d")), step("d", depends_on=["b", "free"]))
    (problem,) = find_problems(checked, TOOLS)
    assert (problem.code, problem.at) == ("cycle", "steps[1].depends_on")
    assert problem.message.endswith("b → c → d → b")
    assert "`c` uses `d`" in problem.hint


def test_every_cycle_is_a_problem_of_its_own() -> None:
    pairs = [step(f"s{number}", depends_on=[f"s{number ^ 1}"]) for number in range(6)]
    assert found(plan(*pairs)) == [("cycle", f"steps[{number}].depends_on") for number in (0, 2, 4)]


def test_a_cycle_behind_another_one_is_found_too() -> None:
    checked = plan(step("a", depends_on=["b"]), step("b", depends_on=["a"]), step("c", depends_on=["a", "d"]), step("d", depends_on=["c"]))
    assert found(checked) == [("cycle", "steps[0].depends_on"), ("cycle", "steps[2].depends_on")]


@pytest.mark.thorough
def test_a_cycle_of_ten_thousand_steps_is_abbreviated() -> None:
    ring = plan(*(step(f"s{number}", depends_on=[f"s{(number + 1) % 10_000}"]) for number in range(10_000)))
    (problem,) = find_problems(ring, TOOLS)
    assert problem.message.endswith("s0 → s1 → s2 → s3 → s4 → s5 → s6 → s7 → s8 → s9 → … → s9999 → s0")


graphs = st.lists(st.sets(st.integers(0, 11), max_size=4), min_size=1, max_size=12)


def plan_of(graph: list[set[int]], *, implied: bool) -> ExecutionPlan:
    """A plan whose step n waits for the steps graph[n], written or implied."""
    size = len(graph)
    names = [[f"s{other}" for other in sorted(others) if other < size and other != index] for index, others in enumerate(graph)]
    return plan(*(step(f"s{i}", parameters=using(*after)) if implied else step(f"s{i}", depends_on=after) for i, after in enumerate(names)))


@given(graphs, st.booleans())
def test_order_cycles_and_reduction_agree_with_graph_theory(graph: list[set[int]], implied: bool) -> None:
    checked = plan_of(graph, implied=implied)
    oracle = nx.DiGraph((f"s{other}", f"s{i}") for i, others in enumerate(graph) for other in others if other < len(graph) and other != i)
    oracle.add_nodes_from(item.id for item in checked.steps)
    problems = find_problems(checked, TOOLS)
    assert bool(problems) is not nx.is_directed_acyclic_graph(oracle)
    for problem in problems:
        path = problem.message.rpartition(": ")[2].split(" → ")
        assert all(oracle.has_edge(after, before) for before, after in pairwise(path))
    if not problems:
        validated = validate(checked, TOOLS)
        place = {name: index for index, name in enumerate(validated.order)}
        assert all(place[before] < place[after] for before, after in oracle.edges)
        assert len(place) == len(graph)
        reduced = {(before, after) for after, others in validated.reduced.items() for before in others}
        assert reduced == set(nx.transitive_reduction(oracle).edges)


@pytest.mark.parametrize("implied", [False, True], ids=["written", "implied"])
@pytest.mark.thorough
def test_a_plan_of_ten_thousand_steps_is_validated(implied: bool) -> None:
    layers = [[set(range(start - 100, start, 20)) if start else set[int]() for _ in range(100)] for start in range(0, 10_000, 100)]
    validated = validate(plan_of([after for layer in layers for after in layer], implied=implied), TOOLS)
    assert len(validated.order) == 10_000
    assert validated.reduced["s9999"] == ("s9800", "s9820", "s9840", "s9860", "s9880")


@pytest.mark.parametrize("when", ["${{ steps.a.status == 'failed' }}", '${{ true && steps["a"].status=="failed" }}'])
def test_a_condition_on_a_failed_dependency_is_a_warning(when: str) -> None:
    (problem,) = [problem for problem in lint(plan(step("a"), step("b", when=when)), TOOLS) if problem.code == "never-true"]
    assert (problem.severity, problem.at) == ("warning", "steps[1].when")
    other = plan(step("a"), step("b", when="${{ steps.a.status == 'completed' }}"))
    assert "never-true" not in {problem.code for problem in lint(other, TOOLS)}


OK = "status == 'completed'"


@for_each(
    when=[
        f"steps.b.{OK} || steps.c.{OK}",
        "steps.b.status != 'failed' || steps.c.status != 'failed'",
        "!(steps.b.status == 'failed' && steps.c.status == 'failed')",
        "'completed' in [steps.b.status, steps.c.status]",
        "[steps.b.status, steps.c.status].exists(s, s == 'completed')",
        f"steps.b.{OK} ? true : steps.c.{OK}",
        "steps.b.error == null || steps.c.error == null",
        f"steps.b.{OK} || steps.c.result.ok",
        f"inputs.force ? steps.b.{OK} : steps.c.{OK}",
        f"inputs.force && steps.b.{OK} || steps.c.{OK}",
        f"!inputs.force ? steps.c.{OK} : steps.b.{OK}",
        f"steps.b.{OK} && (inputs.force || steps.c.{OK})",
    ]
)
def test_a_condition_that_one_of_two_steps_would_meet_is_a_warning(when: str) -> None:
    inputs = {"force": Input(type="boolean")} if "inputs" in when else {}
    checked = plan(step("b"), step("c"), step("d", when=f"${{{{ {when} }}}}"), inputs=inputs)
    (problem,) = lint(checked, TOOLS)
    assert (problem.code, problem.severity, problem.at) == ("needs-every-step", "warning", "steps[2].when")
    assert problem.message == "`d` is skipped if `b` or `c` fails, even if the condition is true then"


@for_each(
    when=[
        "steps.c.status != 'completed' || inputs.force",
        "steps.c.status == 'failed' || inputs.force",
        "inputs.force || steps.c.error != null",
        "inputs.force ? steps.c.status == 'failed' : true",
    ]
)
def test_a_condition_that_asks_for_a_failure_or_an_input_is_a_warning(when: str) -> None:
    checked = plan(step("c"), step("d", when=f"${{{{ {when} }}}}"), inputs={"force": Input(type="boolean")})
    (problem,) = lint(checked, TOOLS)
    assert (problem.code, problem.at) == ("needs-every-step", "steps[1].when")
    assert problem.message == "`d` is skipped if `c` fails, even if the condition is true then"


@for_each(
    when=[
        f"steps.b.{OK} && steps.c.{OK}",
        f"steps.b.{OK}",
        "steps.b.status != 'skipped'",
        "steps.b.result.x == 1 || steps.c.result.y == 2",
        f"steps.either.{OK} || steps.other.{OK}",  # of two branches, one is skipped by its condition
        "steps.either.result == null",
        f"inputs.force || steps.b.{OK}",
        f"inputs.force ? steps.either.{OK} : steps.other.{OK}",
        f"steps.b.{OK} && (inputs.force || steps.either.{OK})",
        "inputs.force || steps.b.result.changed",
    ]
)
def test_a_condition_that_only_completed_or_skipped_steps_meet_is_no_warning(when: str) -> None:
    branches = [step("either", when="${{ inputs.force }}"), step("other", when="${{ !inputs.force }}")]
    inputs = {"force": Input(type="boolean")}
    assert lint(plan(step("b"), step("c"), *branches, step("d", when=f"${{{{ {when} }}}}"), inputs=inputs), TOOLS) == []


def test_the_condition_of_a_step_in_a_group_is_looked_at_too() -> None:
    inner = [step("b"), step("c"), step("d", when=f"${{{{ steps.b.{OK} || steps.c.{OK} }}}}")]
    group = Step(id="group", description="Each", for_each="${{ [1, 2] }}", steps=inner)
    assert [(problem.code, problem.at) for problem in lint(plan(group), TOOLS)] == [("needs-every-step", "steps[0].steps[2].when")]
