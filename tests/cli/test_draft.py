"""Tests of `plan draft` with a model over HTTP: its input, its output and its exit codes."""

import asyncio
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.documents import load_plan
from plan_adapter.local.settings import Settings
from plan_adapter.store.store import PlanStore
from tests.agent.conftest import forget_model_servers
from tests.agent.server import Reply, Request, says, scripted
from tests.cli.conftest import Plan
from tests.cli.drafting import GOOD, KEY, QUESTION, TASK, WRONG, Drafting, configure, done, draft, step, tools_in_prompt
from tests.cli.test_run import TOOLS
from tests.cli.test_terminal import without_utf_8

__all__ = ["draft", "forget_model_servers"]


def test_the_plan_goes_to_stdout_and_the_progress_to_stderr(draft: Drafting, plan: Plan) -> None:
    with scripted(says(WRONG), says(GOOD)) as server:
        result = draft(
            server, TASK, "--constraint", "先第一次", "--constraint", "小声", "--context", '{"时间": "早上"}', "--max-steps", "3"
        )
        prompt = server.requests[0]["messages"][1]["content"]
        assert server.headers[0]["authorization" if "authorization" in server.headers[0] else "Authorization"] == f"Bearer {KEY}"
    assert result.code == 0
    found = load_plan(result.out)
    assert [(s.id, s.depends_on, s.parameters) for s in found.steps] == [
        ("first", [], {"who": "世界"}),
        ("second", ["first"], {"who": "大家"}),
    ]
    assert found.options.require_approval
    begin, first, second, *rest = result.err.splitlines()
    assert begin.startswith("draft ")
    assert "asking 模型-1, which may plan with fail, get_lost, greet, " in begin
    assert first.startswith("round 1: quick, strict_schema, 15 tokens, ")
    assert first.endswith("; to correct: steps[0].parameters.who: [bad-parameters]; steps[0].parameters.wo: [bad-parameters]")
    assert second.startswith("round 2: quick, strict_schema, 15 tokens, ")
    assert rest[:3] == [
        "the model says: 问候两次。",
        "constraint 1 (先第一次): order checked: `first` completes before `second` starts",
        "constraint 2 (小声): not checked: the plan does not say how it is kept",
    ]
    assert rest[3].startswith("2 rounds, 1 correction, 30 tokens, ")
    assert rest[3].endswith(", by 模型-1")
    assert (TASK in prompt, '"时间":"早上"' in prompt, "at most 3 steps" in prompt) == (True, True, True)
    Path("计划.yaml").write_text(result.out, encoding="utf-8")
    assert plan("validate", "计划.yaml", *TOOLS).code == 0


def test_a_plan_that_the_model_abandons_in_its_thought_is_not_written(draft: Drafting) -> None:
    thought = f"<think>\n```json\n{json.dumps(done(step('fail', {})))}\n```\nNo, the wrong tool.\n</think>\n\n"
    with scripted(Reply(thought + json.dumps(GOOD))) as server:
        result = draft(server, TASK)
    assert result.code == 0
    assert [found.tool_name for found in load_plan(result.out).steps] == ["greet", "greet"]
    assert "round 2" not in result.err


def test_every_model_call_is_stored(draft: Drafting) -> None:
    with scripted(says(WRONG), says(GOOD)) as server:
        result = draft(server, TASK, "--json", "--allow", "大声", "--allow", "net")

    async def kept() -> Any:
        async with PlanStore(Settings().store_url) as store:
            return await store.drafts.get(result.lines[0]["id"])

    found = asyncio.run(kept())
    assert [json.loads(call.answer) for call in found.calls] == [WRONG, GOOD]
    assert (found.request.task, found.request.permissions, found.failure) == (TASK, ("大声", "net"), None)
    assert found.plan is not None
    assert found.plan.permissions == ["大声", "net"]


def test_json_prints_one_object_with_the_plan_calls_and_notes(draft: Drafting) -> None:
    with scripted(says(WRONG), says({**GOOD, "options": {"require_approval": False}})) as server:
        result = draft(server, TASK, "--json", "--constraint", "先第一次")
    assert (result.code, len(result.lines)) == (0, 1)
    line = result.lines[0]
    assert [(c["number"], c["phase"], c["rung"], c["tokens"], len(c["problems"])) for c in line["calls"]] == [
        (1, "quick", "strict_schema", 15, 2),
        (2, "quick", "strict_schema", 15, 0),
    ]
    assert [step["id"] for step in line["plan"]["steps"]] == ["first", "second"]
    assert line["constraints"][0] | {"how": ""} == {"number": 1, "text": "先第一次", "checked": True, "how": ""}
    assert line["notes"] == ["ignored in the answer, because a model may not decide it: `options`"]
    assert (line["failure"], line["question"], line["problems"]) == (None, None, [])


@pytest.mark.parametrize("name", ["计划.yaml", "计划.json"])
def test_a_file_is_written_and_never_overwritten_without_force(draft: Drafting, plan: Plan, name: str) -> None:
    with scripted(says(GOOD)) as server:
        result = draft(server, TASK, "-o", name)
        assert (result.code, result.out) == (0, "")
        assert f"wrote {name}" in result.err
        text = Path(name).read_text(encoding="utf-8")
        assert text.startswith("{") is name.endswith(".json")
        assert plan("validate", name, *TOOLS).code == 0
        Path(name).write_text("mine", encoding="utf-8")
        asked = len(server.requests)
        refused = draft(server, TASK, "-o", name)
        assert (refused.code, len(server.requests), Path(name).read_text(encoding="utf-8")) == (2, asked, "mine")
        assert f"{name} already exists: give another name, or --force" in refused.err
        assert draft(server, TASK, "-o", name, "--force").code == 0
    assert Path(name).read_text(encoding="utf-8") == text


def test_a_file_created_while_drafting_is_kept_and_the_plan_goes_to_stdout(draft: Drafting) -> None:
    def answer(_: Request) -> Reply:
        Path("plan.yaml").write_text("mine", encoding="utf-8")
        return says(GOOD)

    with scripted(answer) as server:
        result = draft(server, TASK, "-o", "plan.yaml")
    assert (result.code, Path("plan.yaml").read_text(encoding="utf-8")) == (2, "mine")
    assert load_plan(result.out).description == "两次问候"


@pytest.mark.parametrize(
    ("names", "seen", "hidden"),
    [
        ((), {"greet", "say"}, {"http_get", "bash"}),
        (("http_get",), {"greet", "say", "http_get"}, {"bash"}),
        (("greet",), {"greet"}, {"say", "http_get"}),
        (("greet", "http_get"), {"greet", "http_get"}, {"say", "bash"}),
    ],
    ids=["none named", "a built-in one", "one of mine", "both"],
)
def test_the_model_sees_only_the_selected_tools(draft: Drafting, names: tuple[str, ...], seen: set[str], hidden: set[str]) -> None:
    with scripted(says(GOOD)) as server:
        assert draft(server, TASK, *(word for name in names for word in ("--allow-tool", name))).code == 0
        listed = tools_in_prompt(server.requests[0])
    assert seen <= listed
    assert not hidden & listed


def test_an_unknown_tool_is_reported_with_the_nearest_name(draft: Drafting) -> None:
    with scripted(says(GOOD)) as server:
        result = draft(server, TASK, "--allow-tool", "gret")
        assert (result.code, result.err, server.requests) == (2, "plan: no such tool: `gret` (did you mean `greet`?)\n", [])


def test_all_mistakes_are_reported_at_once_before_the_model_is_called(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    result = plan("draft", " ", "--max-steps", "0", "--context", "[1]", "--constraint", "", "-o", "none/plan.yaml")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    for part in ("TASK is empty", "--max-steps is less than 1", "--context is neither a JSON object", "a --constraint is empty"):
        assert part in result.err
    for part in ("there are no tools to plan with: name built-in ones", "there is no folder none", "no model is configured"):
        assert part in result.err


@pytest.mark.parametrize("verb", ["draft", "pursue"])
def test_without_tools_the_error_names_the_built_in_ones_and_no_model_is_asked(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    with scripted(says(GOOD)) as server:
        configure(monkeypatch, server.url)
        result = plan(verb, TASK)
    assert (result.code, result.out, server.requests) == (2, "", [])
    for part in (
        "name built-in ones that the model may use, as in --allow-tool http_get (bash, copy_from, ",
        "--tools package.module:name",
        "`plan tools`",
    ):
        assert part in result.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((TASK, "--print-prompt", "--answer", "a.txt"), "give --print-prompt or --answer"),
        (("-", "--answer", "-"), "stdin can hold the task or the answer, not both"),
        ((TASK, "--context", "{", "--print-prompt"), "--context starts like JSON but is not (Expecting property name"),
        ((TASK, "--context", "@none.yaml", "--print-prompt"), "none.yaml: error[unreadable]: the file does not exist"),
        ((TASK, "--context", '{"a": "\\ud800"}', "--print-prompt"), "--context.a: the text contains an unpaired surrogate"),
        ((TASK, "--answer", "none.txt"), "the answer cannot be read from none.txt: No such file"),
        ((TASK, "--answer", "latin.txt"), "the answer cannot be read from latin.txt: it is not UTF-8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_usage_error_says_what_is_wrong(plan: Plan, arguments: tuple[str, ...], expected: str) -> None:
    Path("latin.txt").write_bytes("größer".encode("latin-1"))
    result = plan("draft", *arguments, *TOOLS)
    assert (result.code, result.out) == (2, "")
    assert expected in result.err


def test_the_error_without_a_model_names_the_settings(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    result = plan("draft", TASK, *TOOLS)
    assert result.code == 2
    for word in ("PLAN_ADAPTER_MODEL ", "PLAN_ADAPTER_MODEL_KEY", "OPENAI_API_KEY", "PLAN_ADAPTER_MODEL_URL", "--print-prompt"):
        assert word in result.err
    keyless = plan("draft", TASK, "--model", "gpt-x", *TOOLS)
    assert (keyless.code, "there is no key for the model `gpt-x`" in keyless.err) == (2, True)
    assert "is not a URL" in plan("draft", TASK, "--model", "m", "--model-url", "localhost:8080", *TOOLS).err


def test_model_options_override_the_environment(draft: Drafting) -> None:
    with scripted(says(GOOD)) as server, scripted(says(GOOD)) as other:
        result = draft(server, TASK, "--model", "m-2", "--model-url", other.url)
        assert (result.code, server.requests, other.requests[0]["model"]) == (0, [], "m-2")


def test_a_failed_draft_shows_every_problem_with_its_location_and_hint(draft: Drafting) -> None:
    with scripted(says(WRONG)) as server:
        result = draft(server, TASK)
        as_object = draft(server, TASK, "--json")
    assert (result.code, result.out, as_object.code) == (1, "", 1)
    assert "plan: no valid plan for the task: 3 wrong answers in a row without progress" in result.err
    assert "  steps[0].parameters.wo: [bad-parameters] the tool has no parameter `wo`; did you mean `who`?" in result.err
    assert "  steps[0].parameters.who: [bad-parameters]" in result.err
    (line,) = as_object.lines
    assert (line["plan"], {p["at"] for p in line["problems"]}) == (None, {"steps[0].parameters.wo", "steps[0].parameters.who"})
    assert "3 wrong answers in a row" in line["failure"]


def test_an_unanswered_question_is_shown_and_exits_with_2(draft: Drafting) -> None:
    with scripted(says(QUESTION)) as server:
        result = draft(server, TASK)
        as_object = draft(server, TASK, "--json")
    assert (result.code, result.out, as_object.code) == (2, "", 2)
    assert "the model asked, and nobody answered: 问候谁？" in result.err
    assert as_object.lines[0]["question"] == "问候谁？"


def test_the_task_is_read_from_stdin_and_the_context_from_a_file(draft: Drafting, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("背景.yaml").write_text("主机: [web-1, web-2]\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"\ufeff{TASK}\n"))
    with scripted(says(GOOD)) as server:
        assert draft(server, "-", "--context", "@背景.yaml").code == 0
        prompt = server.requests[0]["messages"][1]["content"]
    assert f'task (JSON):\n"{TASK}"' in prompt
    assert '"主机":["web-1","web-2"]' in prompt


@pytest.mark.parametrize("given", ["当前在开发分支", "@背景.md"])
def test_the_context_can_be_plain_text(draft: Drafting, given: str) -> None:
    Path("背景.md").write_text("当前在开发分支\n", encoding="utf-8")
    with scripted(says(GOOD)) as server:
        assert draft(server, TASK, "--context", given).code == 0
        assert 'context (JSON):\n"当前在开发分支"' in server.requests[0]["messages"][1]["content"]


def test_an_unpaired_surrogate_from_the_model_does_not_break_the_output(draft: Drafting) -> None:
    with scripted(says({**GOOD, "speak": "\ud800", "\udfff": 1})) as server:
        assert draft(server, TASK).code == 0
        result = draft(server, TASK, "--json")
    assert (result.code, result.lines[0]["speak"]) == (0, "\ud800")


def test_a_plan_written_to_a_non_utf_8_output_can_still_be_loaded() -> None:
    answer = Path("答.txt")
    answer.write_text(json.dumps(GOOD), encoding="utf-8")
    done = without_utf_8("draft", TASK, "--answer", answer, *TOOLS)
    assert done.returncode == 0
    assert load_plan(done.stdout.decode("ascii")).description == "两次问候"


ACME = """
from plan_adapter import ToolRegistry, tool

@tool(effect="write")
def drain(node: str) -> str:
    "Take a node out of the pool."
    return node

@tool(effect="write")
def restart(node: str) -> str:
    "Restart a node."
    return node

registry = ToolRegistry([drain, restart])
"""


def test_the_draft_example_in_the_guide_works_as_shown(draft: Drafting, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    section = (Path(__file__).parents[2] / "plan_adapter/guide/drafting.md").read_text(encoding="utf-8")
    export, *lines = section.split("```console\n")[1].split("```")[0].replace("\\\n", "").splitlines()
    assert {word.partition("=")[0] for word in shlex.split(export)[2:]} == {"PLAN_ADAPTER_MODEL", "PLAN_ADAPTER_MODEL_URL"}
    Path("acme").mkdir()
    Path("acme/tools.py").write_text(ACME, encoding="utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    steps = [
        step("drain", {"node": "web-1"}, id="drain"),
        step("restart", {"node": "web-1"}, id="restart", depends_on=["drain"]),
        step("http_get", {"url": "http://web-1/"}, id="verify", depends_on=["restart"]),
    ]
    printed, shown = "", list[str]()
    with scripted(says(done(*steps, constraints=[{"number": 1, "steps": ["drain"], "before": ["restart"]}]))) as server:
        configure(monkeypatch, server.url)
        for line in lines:
            if line.startswith("$ "):
                result = plan(*shlex.split(line)[2:])
                assert result.code == 0, result.err
                printed += result.err
            else:
                shown.append(line)
    assert [line for line in shown if line not in printed.splitlines()] == []
    assert len(shown) == 2
