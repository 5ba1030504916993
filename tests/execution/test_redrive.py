"""Tests of what a resumed run will do, for any plan, record and resume options."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plan_adapter.execution.history import Record, ResumeOptions, StepChoice, choices
from plan_adapter.model import graph
from plan_adapter.model.errors import RunConflictError

CHAIN = {"build": (), "test": ("build",), "publish": ("test",), "notes": ("build",), "tell": ("publish", "notes")}


@st.composite
def plans(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    names = [f"s{number}" for number in range(draw(st.integers(1, 8)))]
    return {name: tuple(draw(st.lists(st.sampled_from(names[:place]), unique=True))) if place else () for place, name in enumerate(names)}


@st.composite
def records(draw: st.DrawFn) -> tuple[dict[str, tuple[str, ...]], Record]:
    """A plan and the record of a run: the dependencies of each succeeded step have succeeded."""
    plan = draw(plans())
    succeeded, failed = set[str](), set[str]()
    for name, dependencies in plan.items():
        if succeeded.issuperset(dependencies):
            end = draw(st.sampled_from(["succeeded", "failed", "pending"]))
            if end != "pending":
                (succeeded if end == "succeeded" else failed).add(name)
    return plan, Record(succeeded, failed)


@given(records(), st.data())
def test_exactly_the_succeeded_steps_are_carried_whatever_the_options(
    made: tuple[dict[str, tuple[str, ...]], Record], data: st.DataObject
) -> None:
    plan, record = made
    options = ResumeOptions(
        from_step=data.draw(st.none() | st.sampled_from([*plan])),
        only_failed=data.draw(st.booleans()),
        skipped=dict.fromkeys(data.draw(st.lists(st.sampled_from([*plan]), unique=True)), "没有必要"),
    )
    try:
        found = choices(plan, record, options)
    except RunConflictError:
        assume(False)
        raise
    assert list(found) == list(plan)
    assert {name for name, choice in found.items() if choice.kind == "carried"} == set(record.succeeded)
    assert {name for name, choice in found.items() if choice.kind == "skipped"} == set(options.skipped)
    running = {name for name, choice in found.items() if choice.kind == "run"}
    for name in running:
        assert options.from_step is None or _reaches(plan, options.from_step, name)
        assert not options.only_failed or any(_reaches(plan, failed, name) for failed in record.failed)
    if options.from_step is not None and not options.only_failed:
        assert options.from_step in running


@given(records())
def test_a_resume_without_options_runs_every_step_that_has_not_succeeded(made: tuple[dict[str, tuple[str, ...]], Record]) -> None:
    plan, record = made
    found = choices(plan, record, ResumeOptions())
    assert {name for name, choice in found.items() if choice.kind == "run"} == set(plan) - set(record.succeeded)


def _reaches(plan: dict[str, tuple[str, ...]], first: str, last: str) -> bool:
    after = graph.successors(plan)
    return first == last or any(_reaches(plan, following, last) for following in after[first])


def test_a_resume_from_a_step_runs_only_it_and_its_dependents() -> None:
    found = choices(CHAIN, Record({"build", "test"}, {"publish"}), ResumeOptions(from_step="publish"))
    assert {name: choice.kind for name, choice in found.items()} == {
        "build": "carried",
        "test": "carried",
        "publish": "run",
        "notes": "left",
        "tell": "run",
    }
    assert found["notes"] == StepChoice("left", "the run was resumed from `publish` only")


def test_a_skipped_step_keeps_its_reason_and_its_dependents_run() -> None:
    found = choices(CHAIN, Record({"build"}, {"test"}), ResumeOptions(skipped={"test": "它坏了"}))
    assert found["test"] == StepChoice("skipped", "它坏了")
    assert found["publish"].kind == "run"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ResumeOptions(from_step="nowhere"), "no step is called `nowhere`"),
        (ResumeOptions(from_step="build"), "`build` has succeeded, and is never run again in this run"),
        (ResumeOptions(from_step="publish"), "`publish` depends on `test`, which has not succeeded"),
        (ResumeOptions(skipped={"build": "x"}), "`build` has succeeded: it cannot be skipped"),
        (ResumeOptions(skipped={"test": " "}), "`test` is skipped without a reason"),
        (ResumeOptions(from_step="test", skipped={"test": "x"}), "cannot be both skipped and the step to run from"),
    ],
)
def test_an_impossible_resume_is_refused_with_the_reason(options: ResumeOptions, message: str) -> None:
    with pytest.raises(RunConflictError, match=message):
        choices(CHAIN, Record({"build"}, {"test"}), options)


def test_every_impossible_request_is_reported_at_once() -> None:
    with pytest.raises(RunConflictError, match=r"no step is called `x` \(known: .*\); no step is called `y` .*; .*no step has failed"):
        choices(CHAIN, Record({"build"}), ResumeOptions(from_step="x", skipped={"y": ""}, only_failed=True))
