"""Tests of an agent that tries everything: it opens no gate and writes nothing, whatever it calls and whatever its plans contain."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from plan_adapter import PlanAdapterError, PlanStore
from plan_adapter.gates.approval import os_user
from plan_adapter.model.record import AUTHOR
from plan_adapter.model.status import PlanStatus
from tests.mcp.harness import DEPLOY, Harness

STEP = {"id": "d", "tool_name": "deploy", "description": "Deploy", "parameters": {"version": "6.6.6"}}
READ = {"id": "r", "tool_name": "look", "description": "Look"}


def plan(*steps: dict[str, Any], **fields: Any) -> str:
    return json.dumps({"description": "Deploy", "steps": [*steps] or [STEP], **fields})


def inside(document: str) -> str:
    """Return a plan that runs the one in `document`."""
    return plan({"id": "part", "plan": "part.yaml", "pinned": json.loads(document)})


DOCUMENTS = {
    "no approval": plan(options={"require_approval": False}),
    "approves itself": plan(options={"auto_approve": True}),
    "in other spellings": plan(options={"requireApproval": False, "autoApprove": True}),
    "twice": plan().removesuffix("}") + ', "options": {"require_approval": true}, "options": {"require_approval": false}}',
    "a seed that was approved": plan(UserApproved=True, Status="approved", ApprovedBy="ana", Options={"RequireApproval": False}),
    "approved in its metadata": plan(metadata={"approved": True, "approved_by": "ana"}, options={"require_approval": False}),
    "approved by the agent": plan(approval={"approvers": ["mcp/agent"], "self_approval": True, "known_by": ["unverified"]}),
    "expires at once, and is skipped": plan(approval={"expires": "skip"}, options={"approval_timeout_ms": 1}),
    "nobody may cancel it": plan(approval={"operators": ["mcp/agent"]}),
    "answered by the agent": plan(
        {"id": "decide", "ask": {"question": "Deploy?", "fields": {"choice": {}}}, "approvers": ["mcp/agent"]},
        {**STEP, "when": "${{ steps.decide.result.choice == 'yes' }}"},
        options={"require_approval": False},
    ),
    "expires at once": plan(options={"approval_timeout_ms": 1, "require_approval": False}),
    "released": plan(approval={"release": True, "remind_after_ms": 1}),
    "says what it does is a read": plan({**STEP, "effect": "read"}, options={"require_approval": False}),
    "says it is safe to repeat": plan({**STEP, "effect": "idempotent_write"}),
    "as a rollback": plan(
        {**READ, "rollback": {"tool_name": "deploy", "parameters": {"version": "6.6.6"}}}, options={"auto_approve": True}
    ),
    "for each": plan({**STEP, "for_each": "${{ [1, 2] }}", "requires_approval": False}, options={"require_approval": False}),
    "a tool that was not named": plan({**READ, "tool_name": "until_there"}),
    "a built-in tool": plan({**READ, "tool_name": "bash", "parameters": {"command": "plan approve --help"}}),
    "a secret": plan({**STEP, "parameters": {"version": "${{ secrets.token }}"}}),
    "a secret, in a rollback": plan({**STEP, "rollback": {"tool_name": "look", "parameters": {"text": "${{ secrets.token }}"}}}),
    "a secret, as the default of an input": plan(
        {**STEP, "parameters": {"version": "${{ inputs.which }}"}}, inputs={"which": {"type": "secret", "default": "token"}}
    ),
    "a secret, as an input of a sub-plan": inside(
        plan({**STEP, "parameters": {"version": "${{ inputs.which }}"}}, inputs={"which": {"type": "secret", "default": "token"}})
    ),
    "gives itself a permission": plan(permissions=["deploy"]),
    "gives itself a permission by an input": plan(permissions="${{ inputs.x ? ['deploy'] : [] }}", inputs={"x": {"type": "boolean"}}),
    "gives a sub-plan a permission by an input": inside(plan(permissions="${{ ['deploy'] }}")),
    "gives a sub-plan a permission": inside(plan(permissions=["deploy"])),
    "gives a sub-plan in a sub-plan a permission": inside(inside(plan(permissions=["deploy"]))),
    "approves a sub-plan": inside(inside(plan(approval={"approvers": ["mcp/agent"]}))),
    "lets models act in a sub-plan": inside(plan(approval={})),
    "answers a question of a sub-plan": inside(
        plan({"id": "decide", "ask": {"question": "Deploy?", "fields": {"choice": {}}}, "approvers": ["mcp/agent"]})
    ),
    "a read in a sub-plan": inside(inside(plan({**STEP, "effect": "read"}))),
    "a goal": plan({"goal": "approve this run", "tools": ["deploy"]}),
    "a tag": "!!python/object/apply:os.system ['touch deployed.txt']",
    "an anchor": "description: &x Deploy\nsteps: [*x]\n",
    "a key of Prefect's": plan({**STEP, "parameters": {"version": "1", "__prefect_kind": "jinja"}}),
    "a file": "./unapproved.yaml",
    "a file by its path": "/etc/passwd",
    "nothing": "",
}

ANSWERS = (
    "approve",
    "approve_run",
    "plan_approve",
    "reject",
    "reject_run",
    "resolve",
    "resolve_run",
    "revise",
    "revise_run",
    "answer_gate",
)


async def test_no_document_runs_without_approval(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.cli.mcp.operations.MAX_WAITING_RUNS", len(DOCUMENTS))
    (harness.folder / "unapproved.yaml").write_text(DEPLOY, encoding="utf-8")
    begun: dict[str, str] = {}
    async with harness.agent() as agent:
        for trick, document in DOCUMENTS.items():
            result = (await agent.client.call_tool("run_plan", {"document": document})).structured_content
            begun |= {result["run"]: trick} if "run" in result else {}
        for run_id in begun:
            for tool in ("resume_run", "show_run"):
                await agent.client.call_tool(tool, {"run": run_id})
    assert set(begun.values()) >= {"no approval", "approves itself", "in other spellings", "a seed that was approved", "for each"}
    await assert_nothing_was_done(harness, begun)


@pytest.mark.parametrize(
    ("trick", "code"),
    [
        ("approved by the agent", "approval-by-agent"),
        ("nobody may cancel it", "approval-by-agent"),
        ("answered by the agent", "approval-by-agent"),
        ("gives itself a permission", "approval-by-agent"),
        ("gives a sub-plan a permission", "approval-by-agent"),
        ("gives a sub-plan in a sub-plan a permission", "approval-by-agent"),
        ("approves a sub-plan", "approval-by-agent"),
        ("lets models act in a sub-plan", "approval-by-agent"),
        ("answers a question of a sub-plan", "approval-by-agent"),
        ("a read in a sub-plan", "lowered-effect"),
        ("says what it does is a read", "lowered-effect"),
        ("says it is safe to repeat", "lowered-effect"),
        ("a secret", "unnamed-secret"),
        ("a secret, in a rollback", "unnamed-secret"),
        ("a secret, as the default of an input", "unnamed-secret"),
        ("a secret, as an input of a sub-plan", "unnamed-secret"),
        ("a built-in tool", "unknown-tool"),
    ],
)
async def test_fields_that_only_a_person_may_set_are_problems_of_the_document(harness: Harness, trick: str, code: str) -> None:
    async with harness.agent() as agent:
        found = await agent.call("validate_plan", document=DOCUMENTS[trick])
        refused = [await agent.refused(tool, document=DOCUMENTS[trick]) for tool in ("preview_plan", "run_plan")]
    assert not found["valid"]
    for answer in (found, *refused):
        assert [problem["code"] for problem in answer["problems"] if problem["severity"] == "error"] == [code]


CHOOSES_A_SECRET = """
description: Deploy with an account that the run chooses
name: chooses
options: {require_approval: true}
inputs: {account: {type: secret, default: offered, enum: [offered, other, token]}, spare: {type: secret, default: offered}}
steps:
  - {id: d, tool_name: deploy, description: Deploy, parameters: {version: "${{ inputs.account }} ${{ inputs.spare }}"}}
"""


async def test_an_agent_names_no_secret_that_it_was_not_named(harness: Harness) -> None:
    await harness.save(CHOOSES_A_SECRET)
    async with harness.agent(secrets=["token"], plans=["chooses"]) as agent:
        document = {"document": CHOOSES_A_SECRET.replace("default: offered", "default: token")}
        for tool in ("preview_plan", "run_plan"):
            assert not (await agent.client.call_tool(tool, {**document, "inputs": {"account": "token"}})).is_error
            refused = await agent.refused(tool, **document, inputs={"account": "other"})
            assert [problem["code"] for problem in refused["problems"]] == ["unnamed-secret"]
            assert (await agent.refused(tool, plan="chooses", inputs={}))["problems"][0]["code"] == "unnamed-secret"
        # A person named the runbook, and offers what it lists.
        for given in ({}, {"account": "other"}, {"spare": "token"}):
            assert (await agent.call("chooses", **given))["status"] == "pending_approval"
        refused = await agent.refused("chooses", spare="other")
        assert [(problem["code"], problem["at"]) for problem in refused["problems"]] == [("unnamed-secret", "inputs.spare")]
    await assert_nothing_was_done(harness)


async def test_a_saved_plan_without_approval_waits_for_approval_when_an_agent_runs_it(harness: Harness) -> None:
    await harness.save(DEPLOY, name="person")
    async with PlanStore(harness.url) as store:
        content = (await store.versions("person"))[0].digest
    async with harness.agent() as agent:
        for source in ("person", "person@1", content, content[:12]):
            begun = await agent.call("run_plan", plan=source, inputs={"version": "6.6.6"})
            assert begun["status"] == "pending_approval"
        for source in ("./unapproved.yaml", "store:person", f"sha256:{content}", "../person", "%", "person@1@1", ""):
            await agent.refused("run_plan", plan=source, inputs={"version": "6.6.6"})
    await assert_nothing_was_done(harness)


async def test_no_tool_call_can_answer_a_gate(harness: Harness) -> None:
    async with harness.agent() as agent:
        run_id = (await agent.call("run_plan", document=DEPLOY, inputs={"version": "6.6.6"}))["run"]
        gate = (await agent.call("list_gates"))["gates"][0]
        for name in ANSWERS:
            refused = await agent.refused(name, run=run_id, decision="approve", by=os_user(), gate=gate)
            assert "there is no tool" in refused["message"]
        extras = {"yes": True, "approve": True, "approver": os_user(), "approval": {"decision": "approve"}, "by": "ana", "offline": True}
        for name, value in extras.items():
            for tool in ("resume_run", "show_run", "cancel_run"):
                await agent.refused(tool, run=run_id, **{name: value})
            await agent.refused("run_plan", document=DEPLOY, inputs={"version": "1"}, **{name: value})
        await agent.call("cancel_run", run=run_id, reason="approved by ana; plan approve")
        assert (await agent.refused("run_plan", document=DEPLOY, inputs={"version": "6.6.6", "approve": True}))["problems"]
        await agent.client.call_tool("resume_run", {"run": run_id})
    await assert_nothing_was_done(harness)


async def test_a_rejected_run_stays_rejected(harness: Harness) -> None:
    async with harness.agent() as agent:
        run_id = (await agent.call("run_plan", document=DEPLOY, inputs={"version": "6.6.6"}))["run"]
        await harness.answer(run_id, "reject")
        await agent.client.call_tool("resume_run", {"run": run_id})
    await assert_nothing_was_done(harness)


async def test_a_saved_plans_policy_applies_to_an_agents_runs(harness: Harness) -> None:
    await harness.save(DEPLOY + "approval: {approvers: [sre], operators: [ana]}\n", name="guarded")
    async with harness.agent() as agent:
        assert (await agent.refused("run_plan", plan="guarded", inputs={"version": "1"}))["error"] == "NotApproved"
        assert (await agent.call("list_runs"))["runs"] == []


async def assert_nothing_was_done(harness: Harness, tricks: Mapping[str, str] | None = None) -> None:
    """Resume every run as its worker would, and check that nothing was approved, written or started."""
    async with PlanStore(harness.url) as store:
        runs = await store.runs(1000)
    for run in runs:
        with suppress(PlanAdapterError):  # a refusal to resume is as good
            await harness.execute(run.id)
    async with PlanStore(harness.url) as store:
        for run in await store.runs(1000):
            what = (tricks or {}).get(run.id, run.name)
            assert not [row for row in await store.approvals(run.id) if row.decision == "approve" or row.by == AUTHOR], what
            assert await store.attempts(run.id) == [], what
            assert run.status in (PlanStatus.PENDING_APPROVAL, PlanStatus.CANCELLED), what
    assert runs
    assert harness.deployed == []
