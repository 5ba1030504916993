"""An agent that tries everything: no gate opens, nothing is written, whatever it calls and whatever stands in its plans."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from plan_adapter import PlanAdapterError, PlanStore
from plan_adapter.gates.approval import os_user
from plan_adapter.record import AUTHOR
from plan_adapter.status import PlanStatus
from tests.mcp.desk import DEPLOY, Desk

STEP = {"id": "d", "tool_name": "deploy", "description": "Deploy", "parameters": {"version": "6.6.6"}}
READ = {"id": "r", "tool_name": "look", "description": "Look"}


def plan(*steps: dict[str, Any], **fields: Any) -> str:
    return json.dumps({"description": "Deploy", "steps": [*steps] or [STEP], **fields})


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
    "a tool of the house": plan({**READ, "tool_name": "bash", "parameters": {"command": "plan approve --help"}}),
    "a secret": plan({**STEP, "parameters": {"version": "${{ secrets.token }}"}}),
    "a secret, in a rollback": plan({**STEP, "rollback": {"tool_name": "look", "parameters": {"text": "${{ secrets.token }}"}}}),
    "gives itself a permission": plan(permissions=["deploy"]),
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


async def test_no_document_runs_unasked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.cli.mcp.operations.MOST_WAITING", len(DOCUMENTS))
    (desk.folder / "unapproved.yaml").write_text(DEPLOY, encoding="utf-8")
    begun: dict[str, str] = {}
    async with desk.agent() as agent:
        for trick, document in DOCUMENTS.items():
            told = (await agent.client.call_tool("run_plan", {"document": document})).structured_content
            begun |= {told["run"]: trick} if "run" in told else {}
        for run_id in begun:
            for tool in ("resume_run", "show_run"):
                await agent.client.call_tool(tool, {"run": run_id})
    assert set(begun.values()) >= {"no approval", "approves itself", "in other spellings", "a seed that was approved", "for each"}
    await nothing_was_done(desk, begun)


@pytest.mark.parametrize(
    ("trick", "code"),
    [
        ("approved by the agent", "approval-by-agent"),
        ("nobody may cancel it", "approval-by-agent"),
        ("answered by the agent", "approval-by-agent"),
        ("gives itself a permission", "approval-by-agent"),
        ("says what it does is a read", "lowered-effect"),
        ("says it is safe to repeat", "lowered-effect"),
        ("a secret", "unnamed-secret"),
        ("a secret, in a rollback", "unnamed-secret"),
        ("a tool of the house", "unknown-tool"),
    ],
)
async def test_what_only_a_person_may_say_is_a_problem_of_the_document(desk: Desk, trick: str, code: str) -> None:
    async with desk.agent() as agent:
        found = await agent.call("validate_plan", document=DOCUMENTS[trick])
        refused = [await agent.refused(tool, document=DOCUMENTS[trick]) for tool in ("preview_plan", "run_plan")]
    assert not found["valid"]
    for answer in (found, *refused):
        assert [problem["code"] for problem in answer["problems"] if problem["severity"] == "error"] == [code]


async def test_a_plan_that_a_person_lets_run_unasked_waits_where_the_agent_picks_it(desk: Desk) -> None:
    await desk.save(DEPLOY, name="person")
    async with PlanStore(desk.url) as store:
        content = (await store.versions("person"))[0].digest
    async with desk.agent() as agent:
        for source in ("person", "person@1", content, content[:12]):
            begun = await agent.call("run_plan", plan=source, inputs={"version": "6.6.6"})
            assert begun["status"] == "pending_approval"
        for source in ("./unapproved.yaml", "store:person", f"sha256:{content}", "../person", "%", "person@1@1", ""):
            await agent.refused("run_plan", plan=source, inputs={"version": "6.6.6"})
    await nothing_was_done(desk)


async def test_no_call_answers_at_a_gate(desk: Desk) -> None:
    async with desk.agent() as agent:
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
    await nothing_was_done(desk)


async def test_what_a_person_rejected_stays_rejected(desk: Desk) -> None:
    async with desk.agent() as agent:
        run_id = (await agent.call("run_plan", document=DEPLOY, inputs={"version": "6.6.6"}))["run"]
        await desk.answer(run_id, "reject")
        await agent.client.call_tool("resume_run", {"run": run_id})
    await nothing_was_done(desk)


async def test_a_stored_policy_holds_for_the_agents_runs(desk: Desk) -> None:
    await desk.save(DEPLOY + "approval: {approvers: [sre], operators: [ana]}\n", name="guarded")
    async with desk.agent() as agent:
        assert (await agent.refused("run_plan", plan="guarded", inputs={"version": "1"}))["error"] == "NotApproved"
        assert (await agent.call("list_runs"))["runs"] == []


async def nothing_was_done(desk: Desk, tricks: Mapping[str, str] | None = None) -> None:
    """Go on with every run as its process would, and find that nothing was approved, written or begun by that."""
    async with PlanStore(desk.url) as store:
        runs = await store.runs(1000)
    for run in runs:
        with suppress(PlanAdapterError):  # that it refuses to go on is as good
            await desk.work(run.id)
    async with PlanStore(desk.url) as store:
        for run in await store.runs(1000):
            what = (tricks or {}).get(run.id, run.name)
            assert not [row for row in await store.approvals(run.id) if row.decision == "approve" or row.by == AUTHOR], what
            assert await store.attempts(run.id) == [], what
            assert run.status in (PlanStatus.PENDING_APPROVAL, PlanStatus.CANCELLED), what
    assert runs
    assert desk.deployed == []
