"""Tests of the operations that an agent can call, and of their answers."""

import asyncio
import json
import threading

import pytest

from plan_adapter import PlanStore
from plan_adapter.agent import OpenAIModel
from plan_adapter.cli.mcp.offers import EFFECTS
from plan_adapter.store import PlanStatus, RunContext
from tests.agent.server import Reply, says, scripted
from tests.mcp.harness import DEPLOY, Harness


async def test_a_run_waits_for_a_person_and_continues_once_approved(harness: Harness) -> None:
    async with harness.agent() as agent:
        begun = await agent.call("run_plan", document=DEPLOY, inputs={"version": "1.2"})
        run_id = begun["run"]
        assert (begun["status"], begun["gates"][0]["command"]) == (
            "pending_approval",
            f"plan approve {run_id} --digest {begun['gates'][0]['digest'][:12]}",
        )
        assert f"plan approve {run_id}" in begun["next"]
        waiting = await agent.call("resume_run", run=run_id)
        assert (waiting["status"], harness.started, harness.deployed) == ("pending_approval", [], [])
        await harness.answer(run_id)
        await agent.call("resume_run", run=run_id[:30], wait_seconds=0)
        assert harness.started == [run_id]
        await harness.execute(run_id)
        shown = await agent.call("show_run", run=run_id)
        assert (shown["status"], shown["steps"][0]["result"], harness.deployed) == ("completed", "1.2", ["1.2"])
        assert (await agent.refused("resume_run", run=run_id))["error"] == "RunConflict"
        assert [run["run"] for run in (await agent.call("list_runs", status="completed"))["runs"]] == [run_id]
    assert (await harness.run(run_id)).requested_by == "mcp/agent"


async def test_every_answer_is_text_and_structured_content_with_readable_chinese(harness: Harness) -> None:
    async with harness.agent() as agent:
        result = await agent.client.call_tool("preview_plan", {"document": DEPLOY})
    assert json.loads(result.content[0].text) == result.structured_content
    assert "部署一个版本" in result.content[0].text
    assert (result.structured_content["missing_inputs"], result.structured_content["requires_approval"]) == (["version"], True)


async def test_annotations_state_the_effect_of_each_tool(harness: Harness) -> None:
    async with harness.agent() as agent:
        tools = {tool.name: tool.annotations for tool in (await agent.client.list_tools()).tools}
    assert set(tools) == set(EFFECTS)
    reads = {name for name, hints in tools.items() if hints.read_only_hint}
    assert reads == {"list_tools", "validate_plan", "preview_plan", "show_run", "list_runs", "list_gates"}
    assert {name for name, hints in tools.items() if hints.destructive_hint} == {"run_plan", "cancel_run", "resume_run"}
    assert tools["cancel_run"].idempotent_hint
    assert not tools["run_plan"].idempotent_hint


async def test_all_problems_of_a_document_are_reported_at_once_with_their_lines(harness: Harness) -> None:
    wrong = "description: x\nsteps:\n  - {tool_name: deplyo, description: y}\n  - {tool_name: look, depends_on: [z]}\n"
    async with harness.agent() as agent:
        found = await agent.call("validate_plan", document=wrong)
        assert not found["valid"]
        assert {("unknown-tool", 3), ("unknown-step", 4)} <= {(problem["code"], problem["line"]) for problem in found["problems"]}
        refused = await agent.refused("run_plan", document=wrong)
        assert {problem["code"] for problem in refused["problems"]} >= {"unknown-tool", "unknown-step"}
        refused = await agent.refused("run_plan", document=DEPLOY, inputs={"version": "new", "verison": "1"})
        assert {problem["code"] for problem in refused["problems"]} == {"bad-input", "unknown-input"}


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("aprove_run", {}, "there is no tool `aprove_run`"),
        ("show_rum", {"run": "x"}, "did you mean `show_run`"),
        ("show_run", {"runs": "x", "wait_seconds": "long"}, "the tool has no parameter `runs`"),
        ("show_run", {"run": "x", "wait_seconds": 1e6}, "`wait_seconds` "),
        ("show_run", {"run": "没有这样"}, "no run has the id `没有这样`"),
        ("run_plan", {}, "give `plan`, the name of a stored one, or `document`"),
        ("run_plan", {"plan": "deploy", "document": DEPLOY}, "give `plan`"),
        ("run_plan", {"plan": "nothing"}, "no stored plan is called `nothing`"),
        ("run_plan", {"plan": "deploy@newest"}, "a version is a number"),
        ("draft_plan", {"task": "Deploy"}, "no model is configured"),
        ("validate_plan", {"document": "x" * 1_000_001}, ""),
        ("list_runs", {"status": "done"}, "`status` "),
    ],
)
async def test_an_invalid_call_is_refused_with_the_reason(harness: Harness, tool: str, arguments: dict[str, object], message: str) -> None:
    async with harness.agent() as agent:
        result = await agent.client.call_tool(tool, arguments)
    if tool == "validate_plan":
        assert result.structured_content["problems"][0]["code"] == "too-large"
    else:
        assert result.is_error
        assert message in result.structured_content["message"]


async def test_only_the_named_operations_and_tools_are_offered(harness: Harness) -> None:
    async with harness.agent(names=["show_run", "list_runs"]) as agent:
        assert [tool.name for tool in (await agent.client.list_tools()).tools] == ["show_run", "list_runs"]
        assert "there is no tool `run_plan`" in (await agent.refused("run_plan", document=DEPLOY))["message"]
    async with harness.agent() as agent:
        assert [tool["name"] for tool in (await agent.call("list_tools"))["tools"]] == ["deploy", "look"]
        other = DEPLOY.replace("tool_name: deploy", "tool_name: until_there")
        assert (await agent.call("validate_plan", document=other))["problems"][0]["code"] == "unknown-tool"


async def test_a_runbook_is_a_tool_with_its_own_inputs_and_approval_option(harness: Harness) -> None:
    await harness.save(DEPLOY, name="runbook")
    (harness.folder / "file.yaml").write_text(DEPLOY.replace("\nname: deploy", "\nname: 部署"), encoding="utf-8")
    async with harness.agent(names=[], plans=["runbook", "./file.yaml", "gone"]) as agent:
        stored, file = (await agent.client.list_tools()).tools
        assert (stored.name, stored.title, file.title) == ("deploy", "deploy", "部署")
        assert file.name.startswith("plan_")
        assert stored.input_schema["properties"]["version"] == {"type": "string", "pattern": "^[0-9.]+$", "description": "Which one"}
        assert stored.input_schema["required"] == ["version"]
        begun = asyncio.ensure_future(agent.call("deploy", version="3.0"))
        while not harness.started:
            await asyncio.sleep(0.01)
        await harness.execute(harness.started[0])
        assert (await begun)["steps"][0]["status"] in ("completed", "pending")
        assert harness.deployed == ["3.0"]
        gated = await agent.call(file.name, version="4.0")  # needs approval, because an agent may be able to write to a file
        assert (gated["status"], harness.deployed, len(harness.started)) == ("pending_approval", ["3.0"], 1)
        assert (await agent.refused("deploy", version="x y"))["problems"][0]["code"] == "bad-input"
        assert (await agent.refused("deploy", versoin="1"))["problems"]


async def test_a_drafted_plan_is_stored_apart_from_runbooks_and_needs_an_approval(harness: Harness) -> None:
    steps = [{"tool_name": "deploy", "description": "Deploy", "parameters": {"version": "2.0"}}]
    plan = {"action": "plan_done", "speak": "好", "reason": "", "description": "deploy", "steps": steps}
    await harness.save(DEPLOY, name="deploy")
    with scripted(says(plan)) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with harness.agent(model=model) as agent:
            drafted = await agent.call("draft_plan", task="Deploy 2.0", constraints=["back up first"])
            assert (drafted["plan"], drafted["says"]) == ("draft/deploy@1", "好")
            begun = await agent.call("run_plan", plan=drafted["plan"])
        await model.aclose()
    assert (begun["status"], harness.started) == ("pending_approval", [])
    async with PlanStore(harness.url) as store:
        assert [version.author for version in await store.versions("draft/deploy")] == ["mcp/agent"]
        assert [version.author for version in await store.versions("deploy")] == ["ana"]


async def test_a_draft_keeps_the_token_limit_and_its_prompt_redacts_named_secrets(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DRAFT_ANSWER_TOKENS", "777")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_PIN", "47-11")  # too short to be redacted unless it is named
    with scripted(says({"action": "ask_user", "speak": "Which?", "reason": ""})) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with harness.agent(model=model, secrets=["pin"]) as agent:
            await agent.call("draft_plan", task="Deploy with 47-11")
        await model.aclose()
    assert server.requests[0]["max_completion_tokens"] == 777
    assert "Deploy with ***" in str(server.requests[0]["messages"])
    assert "47-11" not in str(server.requests)


async def test_a_cancelled_call_leaves_the_server_unchanged(harness: Harness) -> None:
    hold = threading.Event()
    with scripted(Reply("{}", hold=hold)) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with harness.agent(model=model) as agent:
            drafting = asyncio.ensure_future(agent.call("draft_plan", task="Deploy"))
            while not server.requests:
                await asyncio.sleep(0.01)
            assert (await agent.call("list_runs"))["runs"] == []  # while the draft is still waiting
            drafting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await drafting
            assert (await agent.call("validate_plan", document=DEPLOY))["valid"]
        hold.set()
        await model.aclose()


@pytest.mark.parametrize("names", [("first", "second"), ("agent", "agent")])
async def test_an_agent_without_an_id_sees_only_the_runs_of_its_server(harness: Harness, names: tuple[str, str]) -> None:
    async with harness.agent(name=names[0], is_new=True) as first, harness.agent(name=names[1], is_new=True) as second:
        mine = (await first.call("run_plan", document=DEPLOY, inputs={"version": "1"}))["run"]
        theirs = (await second.call("run_plan", document=DEPLOY, inputs={"version": "2"}))["run"]
        assert [run["run"] for run in (await first.call("list_runs"))["runs"]] == [mine]
        assert [gate["run"] for gate in (await first.call("list_gates"))["gates"]] == [mine]
        assert (await first.call("show_run", run=mine))["run"] == mine
        for operation in ("show_run", "resume_run", "cancel_run"):
            assert "no run has the id" in str(await first.refused(operation, run=theirs))
    async with harness.agent(name=names[0], is_new=True) as restarted, harness.agent(context=RunContext(agent_id="a")) as other:
        for agent in (restarted, other):
            assert (await agent.call("list_runs"))["runs"] == (await agent.call("list_gates"))["gates"] == []
    async with harness.agent(name=names[0], context=RunContext(org_id="acme")) as elsewhere:
        assert (await elsewhere.call("list_runs"))["runs"] == []


async def test_an_agent_sees_only_runs_of_its_context_and_no_ids_of_the_context(harness: Harness) -> None:
    context = RunContext(agent_id="agent-7f3a", org_id="org-91bc", task_id="task-55de")
    answers: list[str] = []
    async with harness.agent(context=context, name="first") as agent:
        begun = await agent.call("run_plan", document=DEPLOY, inputs={"version": "1"})
        for tool, arguments in (("show_run", {"run": begun["run"]}), ("list_runs", {}), ("list_gates", {})):
            answers.append(json.dumps(await agent.call(tool, **arguments)))
        answers.append(json.dumps(begun))
    assert all(begun["run"] in text for text in answers)
    assert not [text for text in answers for value in ("agent-7f3a", "org-91bc", "task-55de", "mcp/first") if value in text]
    run = await harness.run(begun["run"])
    assert (run.agent_id, run.org_id, run.task_id, run.requested_by) == ("agent-7f3a", "org-91bc", "task-55de", "mcp/first")
    async with harness.agent(context=RunContext(agent_id="another"), name="second") as other:
        assert (await other.call("list_runs"))["runs"] == (await other.call("list_gates"))["gates"] == []
        assert "no run has the id" in (await other.refused("show_run", run=begun["run"]))["message"]


async def test_an_agent_can_see_but_not_change_a_run_of_another_agent(harness: Harness) -> None:
    team = RunContext(agent_id="team")
    async with harness.agent(name="first", context=team) as first:
        run_id = (await first.call("run_plan", document=DEPLOY, inputs={"version": "1"}))["run"]
    async with harness.agent(name="second", context=team) as second:
        assert (await second.call("show_run", run=run_id))["status"] == "pending_approval"
        for tool in ("cancel_run", "resume_run"):
            assert "was not started by you" in (await second.refused(tool, run=run_id))["message"]
    async with harness.agent(name="first", context=team) as first:
        assert (await first.call("cancel_run", run=run_id, reason="算了"))["status"] == "cancelled"
    assert (await harness.run(run_id)).message == "算了"


async def test_a_caller_who_is_not_an_operator_is_refused_and_nothing_is_recorded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", "root,mcp/other")
    async with harness.agent() as agent:
        refused = await agent.refused("run_plan", document=DEPLOY, inputs={"version": "1"})
        assert (refused["error"], (await agent.call("list_runs"))["runs"]) == ("NotApproved", [])
    async with harness.agent(name="other") as agent:
        assert (await agent.call("run_plan", document=DEPLOY, inputs={"version": "1"}))["status"] == "pending_approval"


async def test_the_number_of_waiting_runs_of_an_agent_is_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.cli.mcp.operations.MAX_WAITING_RUNS", 2)
    async with harness.agent() as agent:
        runs = [await agent.call("run_plan", document=DEPLOY, inputs={"version": str(number)}) for number in range(2)]
        assert "wait for people" in (await agent.refused("run_plan", document=DEPLOY, inputs={"version": "3"}))["message"]
        await agent.call("cancel_run", run=runs[0]["run"])
        await agent.call("run_plan", document=DEPLOY, inputs={"version": "3"})


async def test_secrets_and_long_results_do_not_reach_the_agent(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    document = """
description: Look
steps:
  - {id: long, tool_name: look, description: "", parameters: {text: 长长的文字, times: 10000}}
  - {id: leak, tool_name: look, description: "", parameters: {text: "postgresql://ana:pass-of-ana@db/x hunter2-hunter2"}}
"""
    async with harness.agent() as agent:
        run_id = (await agent.call("run_plan", document=document))["run"]
        monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "hunter2-hunter2")
        refused = await agent.client.call_tool("run_plan", {"document": document})
        assert refused.is_error and "secret-in-text" in refused.content[0].text and "hunter2" not in refused.content[0].text
        await harness.answer(run_id)
        run = await harness.execute(run_id)
        assert run.status is PlanStatus.COMPLETED
        result = await agent.client.call_tool("show_run", {"run": run_id})
    text = result.content[0].text
    assert "hunter2" not in text
    assert "pass-of-ana" not in text
    assert len(text) < 45_000
    assert "more characters" in text or "result" in text
