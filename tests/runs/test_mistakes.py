"""A table of mistakes that programs make: each is answered with what is wrong and what to write instead."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plan_adapter import ExecutionPlan, PlanRun, Step, approve, compile_plan, resume_run, run_plan, tool
from plan_adapter.errors import ApprovalRequiredError, InvalidPlanError, NotApprovedError, RunConflictError, RunNotFoundError
from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.plans import ExecutionOptions, Input, validate
from plan_adapter.runs import (
    Hooks,
    Plans,
    answer_gate,
    cancel_run,
    continue_run,
    get_run,
    list_runs,
    open_gates,
    resolve_step,
    revise_run,
    rollback_run,
    start_run,
)


@tool(effect="read")
def greet(who: str) -> str:
    """Greet somebody."""
    return f"Hello, {who}!"


def untyped(who):  # type: ignore[no-untyped-def]
    return who


def plan(**fields: Any) -> ExecutionPlan:
    made = ExecutionPlan(description="Greet", **fields)
    made.add_step(greet, who="Ana")
    return made


def run_with(**fields: Any) -> PlanRun:
    return run_plan(plan(), tools=[greet], offline=True, **fields)


def waiting() -> PlanRun:
    return start_run(plan(), tools=[greet], offline=True)


def completed() -> PlanRun:
    return run_plan(plan(options=ExecutionOptions(require_approval=False)), tools=[greet], offline=True)


def after_an_unknown_step() -> object:
    made = plan()
    made.add_step(greet, who="Bo", depends_on=["step_9"])
    return validate(made, [greet])


def with_open_loop(call: Callable[[Coroutine[Any, Any, PlanRun]], object]) -> object:
    """Call with a coroutine that nobody awaited, and close it."""
    coroutine = _never_awaited()
    try:
        return call(coroutine)
    finally:
        coroutine.close()


async def _never_awaited() -> PlanRun:
    raise AssertionError("it is never awaited")


untyped_call: Any = run_plan  # as a program without type checks sees it
untyped_list: Any = list_runs
MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a number as plan": (lambda: untyped_call(3, tools=[greet]), TypeError, "`plan` is 3: pass an ExecutionPlan, the path or the text"),
    "a mapping as plan": (lambda: untyped_call({}, tools=[greet]), TypeError, "`plan` is {}: pass an ExecutionPlan"),
    "a plan that was not awaited": (
        lambda: with_open_loop(lambda made: untyped_call(made, tools=[greet])),
        TypeError,
        "`plan` is a coroutine that was not awaited: await it, and pass its result",
    ),
    "a file that is not there": (
        lambda: run_plan("restart.yaml", tools=[greet]),
        InvalidPlanError,
        "restart.yaml: error[unreadable]: the file does not exist",
    ),
    "a name as text": (lambda: run_plan("restart", tools=[greet]), InvalidPlanError, "a plan is a mapping with `description` and `steps`"),
    "another thing to compile": (lambda: compile_plan(3, tools=[greet]), TypeError, "`plan` is 3"),  # type: ignore[arg-type]
    "another thing as version": (lambda: revise_run(waiting().id, 3, tools=[greet]), TypeError, "`plan` is 3"),  # type: ignore[arg-type]
    "no tools": (lambda: untyped_call(plan(), tools=None), TypeError, "`tools` is None: pass a ToolRegistry, a list of tools"),
    "one tool": (lambda: untyped_call(plan(), tools=greet), TypeError, "`tools` is one tool: pass a list, `tools=[greet]`"),
    "no tools to roll back": (lambda: rollback_run(waiting().id, tools=None, offline=True), TypeError, "`tools` is None"),  # type: ignore[arg-type]
    "a function without annotations": (
        lambda: run_plan(plan(), tools=[untyped]),
        ToolDefinitionError,
        "`untyped` cannot be a tool: parameter `who` has no annotation; annotate it",
    ),
    "a misspelt keyword": (
        lambda: untyped_call(plan(), tols=[greet]),
        TypeError,
        "`run_plan` has no parameter `tols`; did you mean `tools`?",
    ),
    "a keyword of a method": (
        lambda: Plans(tools=[greet]).run(plan(), offlin=True),  # type: ignore[call-arg]
        TypeError,
        "`run` has no parameter `offlin`; did you mean `offline`?",
    ),
    "a misspelt field of a plan": (
        lambda: ExecutionPlan(descripton="x"),  # type: ignore[call-arg]
        ValidationError,
        "there is no field `descripton`; did you mean `description`?",
    ),
    "a misspelt field of a step": (
        lambda: Step(id="a", tool_name="greet", dependson=["b"]),  # type: ignore[call-arg]
        ValidationError,
        "there is no field `dependson`; did you mean `depends_on`?",
    ),
    "an unknown step": (after_an_unknown_step, InvalidPlanError, "no step is called `step_9`; did you mean `step_2`?"),
    "an attribute of a reference": (lambda: plan().steps[0].result.adress, AttributeError, 'the member of its value is `["adress"]`'),
    "a misspelt input": (
        lambda: run_plan(plan(inputs={"host": Input(default="x")}), tools=[greet], inputs={"hots": "y"}),
        InvalidPlanError,
        "the plan has no input `hots`; did you mean `host`?",
    ),
    "a misspelt reference": (lambda: plan(inputs={"host": Input()}).input("hots"), KeyError, "no input `hots`; did you mean `host`?"),
    "a step that is no tool": (lambda: plan().add_step(3), TypeError, "a step calls a tool"),  # type: ignore[arg-type]
    "a step of a plan": (lambda: plan().step("stp_1"), KeyError, "no step is called `stp_1`; did you mean `step_1`?"),
    "a step of a run": (lambda: waiting().step("stp_1"), KeyError, "no step is called `stp_1`; did you mean `step_1`?"),
    "no approval": (lambda: run_plan(plan(), tools=[greet], offline=True), ApprovalRequiredError, "pass `approval=approve(plan, …)`"),
    "true as approval": (
        lambda: run_with(approval=True),
        TypeError,
        "`approval` is True: pass what `approve(plan, tools=…)` returns",
    ),
    "a name as approver": (
        lambda: run_with(approver="ana"),
        TypeError,
        "`approver` is 'ana', which has no",
    ),
    "a mapping as hooks": (
        lambda: run_with(hooks={"on_step_start": print}),
        TypeError,
        "pass `Hooks(",
    ),
    "a text as hook": (lambda: Hooks(on_step_start="x"), TypeError, "`on_step_start` is 'x': pass a function"),  # type: ignore[arg-type]
    "a mapping as context": (
        lambda: run_with(context={"agent_id": "a"}),
        TypeError,
        "pass `RunContext(",
    ),
    "a text as store": (
        lambda: run_with(store="x"),
        TypeError,
        "pass a PlanStore",
    ),
    "a number as time": (
        lambda: approve(plan(), tools=[greet], valid_for=3),  # type: ignore[arg-type]
        TypeError,
        "valid_for is 3: give a timedelta",
    ),
    "an unknown gate": (lambda: answer_gate("nope", "approve", by="ana", digest="00" * 4), RunNotFoundError, "there is no gate nope"),
    "an empty digest": (lambda: answer_gate("nope", "approve", by="ana", digest=""), ValueError, "`digest` needs at least 8 characters"),
    "a short digest": (lambda: answer_gate("nope", "approve", by="ana", digest="0a"), ValueError, "`digest` needs at least 8 characters"),
    "an answer of nobody": (lambda: answer_gate("nope", "approve", by=" ", digest="00" * 4), ValueError, "`by` is empty"),
    "a gate without digest": (lambda: answer_gate("nope", "approve", by="ana"), TypeError, "`digest` is missing"),
    "an unknown decision": (
        lambda: answer_gate(open_gates(waiting().id)[0], "aprove", by="ana"),  # type: ignore[arg-type]
        NotApprovedError,
        "not `aprove`; did you mean `approve`?",
    ),
    "an answer by nobody": (
        lambda: Plans(tools=[greet]).answer(open_gates(waiting().id)[0], "approve"),
        TypeError,
        "`by` is missing: pass the name of the person who answers",
    ),
    "an unknown run": (lambda: get_run("nope"), RunNotFoundError, "no run has the id `nope`"),
    "a run for its id": (
        lambda: resume_run(waiting(), tools=[greet], offline=True),  # type: ignore[arg-type]
        TypeError,
        "a run is named by its id, not by PlanRun(",
    ),
    "nothing for an id": (lambda: cancel_run(None), TypeError, "a run is named by its id, not by None"),  # type: ignore[arg-type]
    "an unknown status": (lambda: untyped_list(status="complet"), ValueError, "no run has the status `complet`; did you mean `completed`?"),
    "an unknown resolution": (
        lambda: resolve_step(waiting().id, "step_1", "dne"),  # type: ignore[arg-type]
        ValueError,
        "there is no resolution `dne`; did you mean `done`?",
    ),
    "the outcome of an unknown step": (lambda: resolve_step(waiting().id, "nope", "done"), RunNotFoundError, "is called `nope`"),
    "a completed run": (lambda: continue_run(completed().id, tools=[greet], offline=True), RunConflictError, "there is nothing to resume"),
}


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{tmp_path / 'plans.db'}")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_to_write(mistake: str) -> None:
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)
    assert "--" not in str(raised.value) and "`plan " not in str(raised.value), "Python is answered in its own words"
