"""Tests of replanning at the request of a person or an agent: a model drafts the remaining steps of a run from its record."""

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from plan_adapter import PlanRun, PlanStore
from plan_adapter.agent import Draft, OpenAIModel, PlanSession
from plan_adapter.errors import DraftError, NotApprovedError, RunConflictError
from plan_adapter.execution.history import RunHistory
from plan_adapter.local import secrets
from plan_adapter.model.canonical import canonical_document
from plan_adapter.model.options import Input
from plan_adapter.runner import draft_revision
from plan_adapter.runs import aresolve_step, aresume_run, arevise_run, arun_plan
from plan_adapter.runs.replan import Replanner
from plan_adapter.store import PlanStatus, StepStatus, load_plan
from plan_adapter.validation import validate
from tests.agent.releases import ANA, GOOD, REDEPLOY, World, a_plan, context_of, failed, remaining, step, undoable, user_message
from tests.agent.server import ScriptedServer, says, scripted


async def drafted(run: PlanRun, instruction: str, server: ScriptedServer, world: World, store: PlanStore, **options: Any) -> Draft:
    model = OpenAIModel("m", base_url=server.url)
    try:
        return await draft_revision(run.id, instruction, replanner=Replanner(model, **options), tools=world.tools, by="bo", store=store)
    finally:
        await model.aclose()


async def test_completed_steps_are_kept_and_remaining_steps_are_drafted_from_the_record(world: World, store: PlanStore) -> None:
    run = await failed(world, store)
    assert (run.status, run.step("second").status) == (PlanStatus.PARTIAL, StepStatus.FAILED)
    with scripted(GOOD) as server:
        draft = await drafted(run, "换成二号版本", server, world, store)
        context = context_of(server.requests[0])
        assert "换成二号版本" in user_message(server.requests[0])
    assert [(step["id"], "result" in step) for step in context["stays"]] == [("check", True), ("first", True)]
    assert context["stays"][0]["result"].endswith("characters more)")  # truncated
    assert [(step["id"], step["status"]) for step in context["not_done"]] == [("second", "failed"), ("third", "skipped")]
    assert "没有 bad-2 这个版本" in context["not_done"][0]["error"]
    assert context["ids_taken"] == ["check", "first", "second"]
    plan = draft.plan
    assert plan is not None
    old, new = canonical_document(a_plan()), canonical_document(plan)
    assert [step["id"] for step in new["steps"]] == ["check", "first", "redeploy", "third"]
    assert new["steps"][:2] == old["steps"][:2]
    assert [new[name] for name in ("inputs", "outputs", "metadata", "name", "description")] == [
        old[name] for name in ("inputs", "outputs", "metadata", "name", "description")
    ]
    assert plan.options.require_approval
    assert plan.options.allow_parallel
    assert plan.step("third").requires_approval  # like the step that it replaces
    revised = await arevise_run(run.id, plan, tools=world.tools, by="bo", store=store)
    with pytest.raises(NotApprovedError):
        await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    gate = next(iter(await store.gates.find(run_id=revised.id)))
    assert "redeploy" in gate.text
    done = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert (done.status, done.outputs) == (PlanStatus.COMPLETED, {"版本": "1"})
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy 2 on web-1", "look three"]
    assert (await store.verify(run.id)).problem is None
    assert {row["step_id"] for row in (await store.export(run.id))["attempts"]} == {"check", "first", "second", "redeploy", "third"}  # type: ignore[union-attr, index, call-overload]
    assert (await store.drafts.get(draft.id)).plan == plan


def vault(name: str) -> str | None:
    """Return the value of the secret `token`, which only somebody who knows its name can look up."""
    return "value-of-the-token" if name == "token" else None


@pytest.mark.parametrize("written", ["${{ secrets.token }}", "${{ inputs.account }}"])
async def test_the_model_does_not_see_the_values_of_secrets_that_only_the_plan_or_an_input_names(
    written: str, world: World, store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = EntryPoints([EntryPoint("vault", f"{__name__}:vault", "plan_adapter.secrets")])
    monkeypatch.setattr(secrets.metadata, "entry_points", lambda group: points.select(group=group))
    plan = a_plan()
    plan.step("third").parameters = {"host": written}
    if "inputs" in written:
        plan.inputs["account"] = Input(type="secret", default="token")
    run = await failed(world, store, plan)
    with scripted(GOOD) as server:
        await drafted(run, "Deploy 2 with value-of-the-token", server, world, store)
    assert "Deploy 2 with ***" in user_message(server.requests[0])
    assert "value-of-the-token" not in str(server.requests)


async def test_an_id_with_attempts_is_sent_back_to_the_model_and_generated_ids_avoid_it(world: World, store: PlanStore) -> None:
    plan = a_plan()
    plan.steps[2].id, plan.steps[3].depends_on = "step_1", ["step_1"]
    run = await failed(world, store, plan)
    again = remaining(step("deploy", {"version": "2"}, id="step_1"), step("look", {"host": "a"}, id="check"))
    with scripted(again, remaining(step("deploy", {"version": "2"}))) as server:
        draft = await drafted(run, "again", server, world, store)
    assert [problem.partition("] ")[0] for problem in draft.calls[0].problems if "taken-id" in problem] == [
        "steps[0].id: [taken-id",
        "steps[1].id: [taken-id",
    ]
    assert draft.plan is not None
    assert [step.id for step in draft.plan.steps] == ["check", "first", "step_1_"]


async def test_a_step_that_an_output_refers_to_is_required_and_may_keep_its_id(world: World, store: PlanStore) -> None:
    run = await failed(world, store, a_plan(outputs={"二": "${{ steps.second.result }}"}))
    with scripted(remaining(REDEPLOY), remaining({**REDEPLOY, "id": "second"})) as server:
        draft = await drafted(run, "版本二", server, world, store)
        assert context_of(server.requests[0])["ids_needed"] == ["second"]
    assert any("second" in problem and "unknown-reference" in problem for problem in draft.calls[0].problems)
    assert draft.plan is not None
    await arevise_run(run.id, draft.plan, tools=world.tools, by="bo", store=store)
    done = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert (done.status, done.outputs, done.step("second").attempts) == (PlanStatus.COMPLETED, {"二": "2 on web-1"}, 2)
    assert [(receipt.step_id, receipt.number) for receipt in await store.receipts(run.id)][-2:] == [("second", 1), ("second", 2)]
    keys = {attempt.idempotency_key for attempt in await store.attempts(run.id) if attempt.step_id == "second"}
    assert len(keys) == 2  # the new content is another call
    assert (await store.verify(run.id)).problem is None


async def test_a_partly_completed_step_with_items_is_kept_and_resumed(world: World, store: PlanStore) -> None:
    plan = load_plan("""
description: 逐个发布
options: {require_approval: false, continue_on_error: true}
steps:
  - {id: all, tool_name: deploy, for_each: "${{ ['1', 'bad-2'] }}", parameters: {version: "${{ item }}"}}
  - {id: after, tool_name: look, parameters: {host: a}, depends_on: [all]}
""")
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    with scripted(remaining(step("look", {"host": "b"}, id="other"))) as server:
        draft = await drafted(run, "look elsewhere", server, world, store)
        (stays,) = context_of(server.requests[0])["stays"]
    assert (stays["id"], stays["results"]) == ("all", {"0": "1"})
    assert draft.plan is not None
    assert [step.id for step in draft.plan.steps] == ["all", "other"]
    await arevise_run(run.id, draft.plan, tools=world.tools, by="bo", store=store)
    again = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert again.step("other").status is StepStatus.COMPLETED
    assert sorted(world.did) == ["deploy 1", "deploy bad-2", "deploy bad-2", "look b"]


async def test_no_model_is_asked_for_a_run_that_cannot_be_revised(world: World, store: PlanStore) -> None:
    lost = a_plan()
    lost.steps[2].parameters = {"version": "lost"}
    found = {
        "the outcome of `second` is unknown.*plan resolve": (await failed(world, store, lost)).id,
        "was rolled back": (await failed(world, store, undoable())).id,
        "has completed": (await failed(world, store, a_plan(steps=a_plan().steps[:2]))).id,
        "records the outcome": (await failed(world, store, lost, host="web-2")).id,
    }
    await aresolve_step([*found.values()][3], "second", "abort", by="ana", store=store)
    with scripted(GOOD) as server:
        for error, run_id in found.items():
            with pytest.raises(RunConflictError, match=error):
                await drafted(await store.run(run_id), "go on", server, world, store)
        assert server.requests == []


async def test_a_revision_may_change_failed_steps_but_not_possibly_completed_steps(world: World, store: PlanStore) -> None:
    run = await failed(world, store)
    repaired = a_plan()
    repaired.step("second").parameters = {"version": "2"}
    done_otherwise = a_plan()
    done_otherwise.step("first").parameters = {"version": "9"}
    with pytest.raises(RunConflictError, match=r"have succeeded \(first\); start a new run"):
        await arevise_run(run.id, done_otherwise, tools=world.tools, by="bo", store=store)
    await arevise_run(run.id, repaired, tools=world.tools, by="bo", store=store)
    done = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert (done.status, done.step("second").attempts, done.step("second").result) == (PlanStatus.COMPLETED, 2, "2")
    lost = a_plan()
    lost.step("second").parameters = {"version": "lost"}
    other = await failed(world, store, lost)
    for version in (repaired, a_plan(steps=a_plan().steps[:2])):
        with pytest.raises(RunConflictError, match=r"may have been done \(second\)"):
            await arevise_run(other.id, version, tools=world.tools, by="bo", store=store)


async def test_attempts_of_a_removed_step_are_kept_and_other_steps_are_rolled_back(world: World, store: PlanStore) -> None:
    first = undoable()
    first.step("second").on_error = "continue"
    run = await failed(world, store, first)
    shorter = undoable()
    shorter.steps = [*shorter.steps[:2], shorter.steps[2].model_copy(update={"id": "other", "parameters": {"version": "bad-3"}})]
    await arevise_run(run.id, shorter, tools=world.tools, by="bo", store=store)
    again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    assert (again.status, [step.id for step in again.steps]) == (PlanStatus.PARTIAL, ["check", "first", "other"])
    assert world.did[-1] == "undo 1"
    assert {(attempt.kind, attempt.step_id) for attempt in await store.attempts(run.id)} == {
        ("step", "check"),
        ("step", "first"),
        ("step", "second"),
        ("step", "other"),
        ("rollback", "first"),
    }
    assert (await store.verify(run.id)).problem is None


async def test_an_agent_replans_its_run_and_a_person_approves_the_new_version(world: World, store: PlanStore) -> None:
    with scripted(remaining(step("unheard_of", {})), GOOD) as server:
        model = OpenAIModel("m", base_url=server.url)
        session = PlanSession(model, world.tools, store=store, offline=True)
        with pytest.raises(RunConflictError, match="nothing has run yet"):
            await session.revise("换", by="bo")
        session.use(a_plan())
        await session.execute(inputs={"host": "web-1"})
        await session.revise("换成二号版本", by="bo")
        with pytest.raises(NotApprovedError):
            await session.resume()
        session.approve(by="ana", inputs={"host": "web-1"})
        session.approver = ANA  # for the step with its own gate
        assert (await session.resume()).status is PlanStatus.COMPLETED
        await model.aclose()
    (revision,) = await store.revisions.of_run(session.run.id if session.run else "")
    assert (revision.by, revision.note.partition(" (")[0]) == ("bo", "换成二号版本")


async def test_a_failed_draft_leaves_the_run_of_an_agent_unchanged(world: World, store: PlanStore) -> None:
    with scripted(says({"action": "ask_user", "speak": "哪个版本？", "reason": ""})) as server:
        model = OpenAIModel("m", base_url=server.url)
        session = PlanSession(model, world.tools, store=store, offline=True)
        session.use(a_plan())
        before = await session.execute(inputs={"host": "web-1"})
        with pytest.raises(DraftError, match="哪个版本"):
            await session.revise("换", by="bo")
        await model.aclose()
    assert await store.revisions.of_run(before.id) == []


def test_a_run_without_attempts_is_replanned_as_a_whole(world: World) -> None:
    from plan_adapter.agent.remaining_plan import RemainingPlan

    found = RemainingPlan.of(validate(a_plan(), world.tools), RunHistory())
    assert (found.kept, found.taken, found.needed) == (frozenset(), frozenset(), {"first"})


async def test_a_goal_in_place_of_the_remaining_steps_sees_the_result_of_the_last_step_that_stays(world: World, store: PlanStore) -> None:
    run = await failed(world, store)
    goals = [{"content": "装好新版本", "done_when": "it runs", "tools": ["look", "deploy"], "id": name} for name in ("install", "tell")]
    with scripted(remaining(*goals)) as server:
        draft = await drafted(run, "again", server, world, store)
    assert draft.plan is not None, draft.problems
    assert [(step.id, step.depends_on) for step in draft.plan.steps[2:]] == [("install", ["first"]), ("tell", ["install"])]
