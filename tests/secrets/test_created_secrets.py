"""Tests of missing secrets: each one refuses the start, wherever it is used, unless a step before its use creates it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.errors import InvalidPlanError
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.gates import Approval
from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.plans import lint
from plan_adapter.runs import arun_plan
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest

Fields = dict[str, Any]

VALUE = "Kennwort-密码-1"
WRITE: Fields = {"id": "write", "tool_name": "note", "parameters": {"text": "x"}}
"""A step that writes, and could create a secret."""


def use(step_id: str = "use", name: str = "made", **fields: Any) -> Fields:
    """Return a step that uses a secret."""
    return {"id": step_id, "tool_name": "note", "parameters": {"text": f"${{{{ secrets.{name} }}}}"}, **fields}


def make(step_id: str = "make", name: str = "made", **fields: Any) -> Fields:
    """Return a step that creates a secret."""
    return {"id": step_id, "tool_name": "make", "parameters": {"name": name}, "creates_secrets": [name], **fields}


def undo(name: str = "made") -> Fields:
    """Return the rollback of a step, which uses a secret."""
    return {"rollback": {"tool_name": "note", "parameters": {"text": f"${{{{ secrets.{name} }}}}"}}}


def group(*steps: Fields, **fields: Any) -> Fields:
    """Return a group of two items."""
    return {"id": "each", "for_each": "${{ ['a', 'b'] }}", "steps": [*steps], **fields}


def sub_plan(*steps: Fields, **fields: Any) -> Fields:
    """Return a step that runs a plan with these steps."""
    pinned = {"description": "A part", "options": {"require_approval": False}, "steps": [*steps]}
    return {"id": "part", "plan": "part.yaml", "pinned": pinned, **fields}


def plan_of(*steps: Fields, last: tuple[Fields, ...] = (), **options: Any) -> ExecutionPlan:
    """Return a plan of these steps and `finally` steps. It asks for no approval."""
    document = {"description": "Make a secret", "options": {"require_approval": False, **options}, "steps": [*steps], "finally": [*last]}
    return ExecutionPlan.model_validate(document)


class World:
    """A folder of secrets, and tools that write into it and note what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.creates = True

        @tool(effect="write")
        def note(text: str) -> str:
            """Note a text."""
            self.notes.append(text)
            return "noted"

        @tool(effect="write")
        def make(name: str) -> str:
            """Store a new secret, and repeat it carelessly."""
            value = f"{VALUE}-{len(self.notes)}"
            if self.creates:
                (folder / name).write_text(value, encoding="utf-8")
            self.notes.append("made")
            return f"the new one is {value}"

        @tool(effect="write")
        def fail() -> None:
            """Fail."""
            self.notes.append("failed")
            message = "it failed"
            raise ValueError(message)

        self.tools = ToolRegistry([note, make, fail])

    async def run(self, plan: ExecutionPlan, store: PlanStore | None = None, **options: Any) -> Any:
        """Return the run of `plan`."""
        return await arun_plan(plan, tools=self.tools, store=store, offline=True, **options)

    async def resume(self, run_id: str, store: PlanStore, **skipped: str) -> Any:
        """Resume a run, with these steps skipped: `step="the reason"`."""
        options = ResumeOptions(skipped=skipped) if skipped else None
        return await execute_resume(run_id, tools=self.tools, run_request=RunRequest(), store=store, offline=True, options=options)

    def problems(self, plan: ExecutionPlan) -> list[tuple[str, str, str]]:
        """Return severity, code and place of the problems of `plan`."""
        return [(problem.severity, problem.code, problem.at) for problem in lint(plan, self.tools)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    folder = tmp_path / "mounted"
    folder.mkdir()
    monkeypatch.setenv("PLAN_ADAPTER_SECRETS_DIR", str(folder))
    return World(folder)


AFTER = {"depends_on": ["write"]}
MISSING: dict[str, tuple[Callable[[], ExecutionPlan], str]] = {
    "a step after a write": (lambda: plan_of(WRITE, use(**AFTER)), "steps[1].parameters"),
    "a finally step": (lambda: plan_of(WRITE, last=(use(),)), "finally[0].parameters"),
    "a rollback": (lambda: plan_of(WRITE, {**WRITE, "id": "b", **AFTER, **undo()}), "steps[1].rollback.parameters"),
    "a group": (lambda: plan_of(WRITE, group(use(), **AFTER)), "steps[1].steps[0].parameters"),
    "a rollback in a group": (
        lambda: plan_of(WRITE, group({**WRITE, "id": "b", **undo()}, **AFTER)),
        "steps[1].steps[0].rollback.parameters",
    ),
    "a second step of a group": (
        lambda: plan_of(group({**WRITE, "id": "a"}, use(depends_on=["a"]))),
        "steps[0].steps[1].parameters",
    ),
    "a sub-plan": (lambda: plan_of(WRITE, sub_plan(use(), **AFTER)), "steps[1].pinned.steps[0].parameters"),
    "a condition that is false": (lambda: plan_of(WRITE, use(when="${{ 1 > 2 }}", **AFTER)), "steps[1].parameters"),
    "another secret than the one that is created": (
        lambda: plan_of(make(name="other"), use(name="other", depends_on=["make"]), use("b", depends_on=["make"])),
        "steps[2].parameters",
    ),
}


@pytest.mark.parametrize("name", MISSING)
async def test_a_missing_secret_refuses_the_start_wherever_it_is_used(name: str, world: World) -> None:
    make_plan, place = MISSING[name]
    async with PlanStore() as store:
        with pytest.raises(InvalidPlanError) as refused:
            await world.run(make_plan(), store)
        assert await store.runs() == []
    assert [(problem.code, problem.at) for problem in refused.value.problems] == [("missing-secret", place)]
    assert "there is no secret `made`" in refused.value.problems[0].message
    assert "`creates_secrets`" in refused.value.problems[0].hint
    assert world.notes == []


CREATED: dict[str, Callable[[], ExecutionPlan]] = {
    "a later step": lambda: plan_of(make(), use(depends_on=["make"])),
    "a step after a later step": lambda: plan_of(make(), {**WRITE, "depends_on": ["make"]}, use(depends_on=["write"])),
    "a reference": lambda: plan_of(make(), use(when="${{ steps.make.result != '' }}")),
    "a finally step": lambda: plan_of(make(), last=(use(),)),
    "two finally steps": lambda: plan_of(WRITE, last=(make(), use(depends_on=["make"]))),
    "the same group": lambda: plan_of(group(make(), use(depends_on=["make"]))),
    "a group before": lambda: plan_of(group(make()), use(depends_on=["each"])),
    "a group after": lambda: plan_of(make(), group(use(), depends_on=["make"])),
    "a sub-plan before": lambda: plan_of(sub_plan(make()), use(depends_on=["part"])),
    "a sub-plan after": lambda: plan_of(make(), sub_plan(use(), depends_on=["make"])),
    "the same sub-plan": lambda: plan_of(sub_plan(make(), use(depends_on=["make"]))),
}


@pytest.mark.parametrize("name", CREATED)
async def test_a_step_may_create_the_secret_that_a_later_step_uses(name: str, world: World) -> None:
    plan = CREATED[name]()
    assert world.problems(plan) == []
    run = await world.run(plan)
    assert run.is_completed, [(step.id, step.error) for step in run.steps]
    assert any(note.startswith(VALUE) for note in world.notes)
    assert VALUE not in repr(run)  # the step that creates it returned it


async def test_a_rollback_may_use_the_secret_that_its_own_step_or_an_earlier_one_created(world: World) -> None:
    fail = {"id": "fail", "tool_name": "fail", "depends_on": ["b"]}
    plan = plan_of(make(**undo()), {**WRITE, "id": "b", "depends_on": ["make"], **undo()}, fail)
    assert world.problems(plan) == []
    run = await world.run(plan)
    assert (run.step("make").rolled_back, run.step("b").rolled_back) == (True, True)
    assert world.notes == ["made", "x", "failed", f"{VALUE}-0", f"{VALUE}-0"]


EARLY = "error", "early-secret"
WRONG: dict[str, tuple[Callable[[], ExecutionPlan], list[tuple[str, str, str]]]] = {
    "no order": (lambda: plan_of(make(), use()), [(*EARLY, "steps[1].parameters")]),
    "the reverse order": (lambda: plan_of(use(), make(depends_on=["use"])), [(*EARLY, "steps[0].parameters")]),
    "the step itself": (
        lambda: plan_of(make(parameters={"name": "${{ secrets.made }}"})),
        [(*EARLY, "steps[0].parameters")],
    ),
    "the rollback of an earlier step": (
        lambda: plan_of({**WRITE, **undo()}, make(**AFTER)),
        [(*EARLY, "steps[0].rollback.parameters")],
    ),
    "a finally step creates it": (lambda: plan_of(use(), last=(make(),)), [(*EARLY, "steps[0].parameters")]),
    "finally steps without an order": (lambda: plan_of(WRITE, last=(make(), use())), [(*EARLY, "finally[1].parameters")]),
    "a group without an order": (lambda: plan_of(group(make(), use())), [(*EARLY, "steps[0].steps[1].parameters")]),
    "a step beside a sub-plan": (lambda: plan_of(sub_plan(make()), use()), [(*EARLY, "steps[1].parameters")]),
    "a sub-plan too early": (lambda: plan_of(sub_plan(use()), make()), [(*EARLY, "steps[0].pinned.steps[0].parameters")]),
    "a name that no step uses": (lambda: plan_of(make()), [("warning", "unused-secret", "steps[0].creates_secrets[0]")]),
    "a name that only a sub-plan creates": (
        lambda: plan_of(sub_plan(make())),
        [("warning", "unused-secret", "steps[0].pinned.steps[0].creates_secrets[0]")],
    ),
    "two steps that create it": (
        lambda: plan_of(make(), make("again", depends_on=["make"]), use(depends_on=["again"])),
        [("warning", "secret-created-twice", "steps[1].creates_secrets[0]")],
    ),
    "a name written twice": (
        lambda: plan_of(make(creates_secrets=["made", "made"]), use(depends_on=["make"])),
        [("warning", "duplicate-entry", "steps[0].creates_secrets[1]")],
    ),
    "a name that cannot be one": (
        lambda: plan_of(make(creates_secrets=["two words"])),
        [("error", "bad-secret-name", "steps[0].creates_secrets[0]")],
    ),
    "a group that creates it": (
        lambda: plan_of(group(WRITE, creates_secrets=["made"]), use(depends_on=["each"])),
        [("error", "bad-group", "steps[0].creates_secrets")],
    ),
    "a step with a plan that creates it": (
        lambda: plan_of(sub_plan(WRITE, creates_secrets=["made"]), use(depends_on=["part"])),
        [("error", "bad-sub-plan", "steps[0].creates_secrets")],
    ),
    "a question that creates it": (
        lambda: plan_of({"id": "ask", "ask": {"question": "?", "fields": {"x": {}}}, "creates_secrets": ["made"]}, use(depends_on=["ask"])),
        [("error", "bad-question", "steps[0].creates_secrets")],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_order_or_name_is_a_problem_with_its_place(name: str, world: World) -> None:
    make_plan, problems = WRONG[name]
    assert world.problems(make_plan()) == problems


async def test_a_resume_needs_the_secret_of_a_step_that_completed_and_did_not_create_it(world: World) -> None:
    world.creates = False
    async with PlanStore() as store:
        run = await world.run(plan_of(make(), use(depends_on=["make"])), store)
        assert (run.step("make").status, run.step("use").status) == ("completed", "failed")
        with pytest.raises(InvalidPlanError) as refused:
            await world.resume(run.id, store)
        (problem,) = refused.value.problems
        assert (problem.code, problem.at) == ("missing-secret", "steps[1].parameters")
        assert problem.message.endswith("; `make`, which creates it, does not run now")
        (world.folder / "made").write_text("made-by-hand", encoding="utf-8")
        run = await world.resume(run.id, store)
    assert (run.is_completed, world.notes) == (True, ["made", "made-by-hand"])


async def test_a_resume_starts_without_the_secret_of_a_step_that_runs_again(world: World) -> None:
    broken = {"id": "first", "tool_name": "fail"}
    plan = plan_of(broken, make(depends_on=["first"]), use(depends_on=["make"]), last=(use("last"),))
    async with PlanStore() as store:
        run = await world.run(plan, store)
        assert {step.id: step.status for step in run.steps} == {"first": "failed", "make": "skipped", "use": "skipped", "last": "failed"}
        run = await world.resume(run.id, store, first="by hand")
    assert (run.step("use").status, run.step("last").status) == ("completed", "completed")


async def test_a_resume_that_skips_the_creating_step_needs_its_secret(world: World) -> None:
    broken = {"id": "make", "tool_name": "fail", "creates_secrets": ["made"]}
    async with PlanStore() as store:
        run = await world.run(plan_of(broken, use(depends_on=["make"])), store)
        with pytest.raises(InvalidPlanError, match="which creates it, does not run now"):
            await world.resume(run.id, store, make="by hand")


async def test_a_resume_needs_the_secrets_of_the_rollbacks_of_completed_steps(world: World) -> None:
    (world.folder / "undo").write_text("undo-value", encoding="utf-8")
    broken = {"id": "fail", "tool_name": "fail", "depends_on": ["write"], "on_error": "continue"}
    async with PlanStore() as store:
        run = await world.run(plan_of({**WRITE, **undo("undo")}, broken), store)
        assert run.step("write").status == "completed"
        (world.folder / "undo").unlink()
        with pytest.raises(InvalidPlanError) as refused:
            await world.resume(run.id, store)
    assert [problem.at for problem in refused.value.problems] == ["steps[0].rollback.parameters"]


async def test_a_step_gets_the_new_secret_if_an_older_one_existed(world: World) -> None:
    (world.folder / "made").write_text("the-older-value", encoding="utf-8")
    run = await world.run(plan_of(make(), use(depends_on=["make"])))
    assert (run.step("make").result, world.notes) == ("the new one is ***", ["made", f"{VALUE}-0"])


class ApproveAll:
    """An approver that approves and records every text."""

    def __init__(self) -> None:
        self.texts = list[str]()

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.texts.append(request.text)
        return answer_to(request, decision="approve", by="ana", known_by="unverified")


async def test_gates_name_the_step_that_creates_a_secret(world: World) -> None:
    approver = ApproveAll()
    first = make(requires_approval=True)
    run = await world.run(plan_of(first, use(depends_on=["make"], requires_approval=True), require_approval=True), approver=approver)
    assert run.is_completed
    whole, of_make, of_use = approver.texts
    for text in (whole, of_use):
        assert "uses the secrets: `made` (is created by step `make`)" in text
    assert "creates secrets `made`" in whole and "creates secrets: `made`" in of_make
    assert not any("has no secret" in text for text in approver.texts)
