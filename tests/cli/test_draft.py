"""`plan draft`: with a model over HTTP, by way of any chat, and at a terminal; what it writes where, and how it ends."""

import asyncio
import io
import json
import os
import shlex
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.documents import load_plan
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from tests.agent.conftest import no_memory_of_servers
from tests.agent.server import Reply, Request, ScriptedServer, says, scripted
from tests.cli.conftest import Plan, Said
from tests.cli.test_run import TOOLS
from tests.cli.test_terminal import BOUND_SECONDS, Terminal, terminals, without_utf_8

__all__ = ["no_memory_of_servers", "terminals"]

KEY = "sk-canary-0123"
TASK = "问候世界两次"


def step(tool_name: str, parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"tool_name": tool_name, "description": "问候", "parameters": parameters, **fields}


def done(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"action": "plan_done", "speak": "问候两次。", "reason": "", "description": "两次问候", "steps": [*steps], **fields}


FIRST, SECOND = step("greet", {"who": "世界"}, id="first"), step("greet", {"who": "大家"}, id="second", depends_on=["first"])
GOOD = done(FIRST, SECOND, constraints=[{"number": 1, "steps": ["first"], "before": ["second"]}])
WRONG = done(step("greet", {"wo": "世界"}))
QUESTION = {"action": "ask_user", "speak": "问候谁？", "reason": "缺名字"}


@pytest.fixture
def draft(plan: Plan, monkeypatch: pytest.MonkeyPatch):
    """Runs `plan draft` with the tests' tools and the model of a server that is up."""

    def call(server: ScriptedServer, *arguments: str | Path) -> Said:
        configure(monkeypatch, server.url)
        said = plan("draft", *arguments, *TOOLS)
        assert KEY not in said.out + said.err
        return said

    return call


Drafting = Any


def configure(monkeypatch: pytest.MonkeyPatch, url: str, key: str = KEY) -> None:
    for name, value in {"": "模型-1", "_URL": url, "_KEY": key}.items():
        monkeypatch.setenv(f"PLAN_ADAPTER_MODEL{name}", value)


def tools_told(request: Request) -> set[str]:
    """The names of the tools that a request's prompt lists."""
    listed = request["messages"][1]["content"].split("tools (JSON):\n")[1].split("\n\n")[0]
    return {tool["name"] for tool in json.loads(listed)}


def test_the_plan_goes_to_stdout_and_what_is_to_be_known_of_it_to_stderr(draft: Drafting, plan: Plan) -> None:
    with scripted(says(WRONG), says(GOOD)) as server:
        said = draft(server, TASK, "--constraint", "先第一次", "--constraint", "小声", "--context", '{"时间": "早上"}', "--max-steps", "3")
        prompt = server.requests[0]["messages"][1]["content"]
        assert server.headers[0]["authorization" if "authorization" in server.headers[0] else "Authorization"] == f"Bearer {KEY}"
    assert said.code == 0
    found = load_plan(said.out)
    assert [(s.id, s.depends_on, s.parameters) for s in found.steps] == [
        ("first", [], {"who": "世界"}),
        ("second", ["first"], {"who": "大家"}),
    ]
    assert found.options.require_approval
    begin, first, second, *rest = said.err.splitlines()
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
    Path("计划.yaml").write_text(said.out, encoding="utf-8")
    assert plan("validate", "计划.yaml", *TOOLS).code == 0


def test_every_question_and_answer_is_kept(draft: Drafting) -> None:
    with scripted(says(WRONG), says(GOOD)) as server:
        said = draft(server, TASK, "--json")

    async def kept() -> Any:
        async with PlanStore(Settings().store_url) as store:
            return await store.drafts.get(said.lines[0]["id"])

    found = asyncio.run(kept())
    assert [json.loads(call.answer) for call in found.calls] == [WRONG, GOOD]
    assert (found.request.task, found.failure, found.plan is not None) == (TASK, None, True)


def test_json_is_one_object_with_plan_calls_and_notes(draft: Drafting) -> None:
    with scripted(says(WRONG), says({**GOOD, "options": {"require_approval": False}})) as server:
        said = draft(server, TASK, "--json", "--constraint", "先第一次")
    assert (said.code, len(said.lines)) == (0, 1)
    told = said.lines[0]
    assert [(c["number"], c["phase"], c["rung"], c["tokens"], len(c["problems"])) for c in told["calls"]] == [
        (1, "quick", "strict_schema", 15, 2),
        (2, "quick", "strict_schema", 15, 0),
    ]
    assert [step["id"] for step in told["plan"]["steps"]] == ["first", "second"]
    assert told["constraints"][0] | {"how": ""} == {"number": 1, "text": "先第一次", "checked": True, "how": ""}
    assert told["notes"] == ["ignored in the answer, because a model may not decide it: `options`"]
    assert (told["failure"], told["question"], told["problems"]) == (None, None, [])


@pytest.mark.parametrize("name", ["计划.yaml", "计划.json"])
def test_a_file_is_written_and_never_overwritten_without_force(draft: Drafting, plan: Plan, name: str) -> None:
    with scripted(says(GOOD)) as server:
        said = draft(server, TASK, "-o", name)
        assert (said.code, said.out) == (0, "")
        assert f"wrote {name}" in said.err
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


def test_a_file_that_appears_meanwhile_is_left_alone_and_the_plan_is_not_lost(draft: Drafting) -> None:
    def answer(_: Request) -> Reply:
        Path("plan.yaml").write_text("mine", encoding="utf-8")
        return says(GOOD)

    with scripted(answer) as server:
        said = draft(server, TASK, "-o", "plan.yaml")
    assert (said.code, Path("plan.yaml").read_text(encoding="utf-8")) == (2, "mine")
    assert load_plan(said.out).description == "两次问候"


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
def test_the_model_sees_the_tools_that_were_named_to_it(draft: Drafting, names: tuple[str, ...], seen: set[str], hidden: set[str]) -> None:
    with scripted(says(GOOD)) as server:
        assert draft(server, TASK, *(word for name in names for word in ("--tool", name))).code == 0
        told = tools_told(server.requests[0])
    assert seen <= told
    assert not hidden & told


def test_a_tool_that_is_not_there_is_named_with_the_nearest(draft: Drafting) -> None:
    with scripted(says(GOOD)) as server:
        said = draft(server, TASK, "--tool", "gret")
        assert (said.code, said.err, server.requests) == (2, "plan: no such tool: `gret`: did you mean `greet`?\n", [])


def test_all_mistakes_are_reported_at_once_before_a_model_is_asked(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    said = plan("draft", " ", "--max-steps", "0", "--context", "[1]", "--constraint", "", "-o", "none/plan.yaml")
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    for part in ("TASK is empty", "--max-steps is less than 1", "--context is neither a JSON object", "a --constraint is empty"):
        assert part in said.err
    for part in ("there are no tools to plan with: give --tools", "there is no folder none", "no model is configured"):
        assert part in said.err


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
def test_wrong_usage_says_what_is_wrong(plan: Plan, arguments: tuple[str, ...], expected: str) -> None:
    Path("latin.txt").write_bytes("größer".encode("latin-1"))
    said = plan("draft", *arguments, *TOOLS)
    assert (said.code, said.out) == (2, "")
    assert expected in said.err


def test_without_a_model_the_error_says_what_to_set(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    said = plan("draft", TASK, *TOOLS)
    assert said.code == 2
    for word in ("PLAN_ADAPTER_MODEL ", "PLAN_ADAPTER_MODEL_KEY", "OPENAI_API_KEY", "PLAN_ADAPTER_MODEL_URL", "--print-prompt"):
        assert word in said.err
    keyless = plan("draft", TASK, "--model", "gpt-x", *TOOLS)
    assert (keyless.code, "there is no key for the model `gpt-x`" in keyless.err) == (2, True)
    assert "is not a URL" in plan("draft", TASK, "--model", "m", "--model-url", "localhost:8080", *TOOLS).err


def test_the_command_line_names_another_model_than_the_environment(draft: Drafting) -> None:
    with scripted(says(GOOD)) as server, scripted(says(GOOD)) as other:
        said = draft(server, TASK, "--model", "m-2", "--model-url", other.url)
        assert (said.code, server.requests, other.requests[0]["model"]) == (0, [], "m-2")


def test_where_no_plan_comes_of_it_every_problem_is_shown_with_its_place_and_hint(draft: Drafting) -> None:
    with scripted(says(WRONG)) as server:
        said = draft(server, TASK)
        as_object = draft(server, TASK, "--json")
    assert (said.code, said.out, as_object.code) == (1, "", 1)
    assert "plan: no valid plan for the task: 3 wrong answers in a row without progress" in said.err
    assert "  steps[0].parameters.wo: [bad-parameters] the tool has no parameter `wo`; did you mean `who`?" in said.err
    assert "  steps[0].parameters.who: [bad-parameters]" in said.err
    (told,) = as_object.lines
    assert (told["plan"], {p["at"] for p in told["problems"]}) == (None, {"steps[0].parameters.wo", "steps[0].parameters.who"})
    assert "3 wrong answers in a row" in told["failure"]


def test_a_question_that_nobody_can_answer_is_shown_and_ends_with_2(draft: Drafting) -> None:
    with scripted(says(QUESTION)) as server:
        said = draft(server, TASK)
        as_object = draft(server, TASK, "--json")
    assert (said.code, said.out, as_object.code) == (2, "", 2)
    assert "the model asked, and nobody answered: 问候谁？" in said.err
    assert as_object.lines[0]["question"] == "问候谁？"


def test_a_question_is_answered_at_the_terminal(terminals: list[Terminal]) -> None:
    def answer(request: Request) -> Reply:
        return says(GOOD if "answer (JSON)" in request["messages"][-1]["content"] else QUESTION)

    with scripted(answer) as server:
        model = {"PLAN_ADAPTER_MODEL": "模型-1", "PLAN_ADAPTER_MODEL_URL": server.url, "PLAN_ADAPTER_MODEL_KEY": KEY}
        terminal = Terminal("draft", TASK, "-o", "计划.yaml", *TOOLS, **model)
        terminals.append(terminal)
        terminal.wait_for("your answer: ")
        terminal.type("\n")
        terminal.wait_for_next("your answer: ")
        terminal.type("世界上的人\n")
        assert terminal.end() == 0
        assert '"answer":"世界上的人","question":"问候谁？"' in server.requests[-1]["messages"][-1]["content"]
    assert "the model asks: 问候谁？" in terminal.shown
    assert KEY not in terminal.raw
    assert load_plan(Path("计划.yaml")).description == "两次问候"


def test_ctrl_c_while_the_model_is_asked_ends_at_once(terminals: list[Terminal]) -> None:
    asked, never = threading.Event(), threading.Event()

    def answer(_: Request) -> Reply:
        asked.set()
        return Reply(hold=never)

    with scripted(answer) as server:
        terminal = Terminal("draft", TASK, *TOOLS, PLAN_ADAPTER_MODEL="m", PLAN_ADAPTER_MODEL_URL=server.url)
        terminals.append(terminal)
        assert asked.wait(BOUND_SECONDS)
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
        never.set()
    assert "interrupted" in terminal.shown


# Going on with a draft


def resume_words(said: str) -> list[str]:
    """The words to type that a command told."""
    return shlex.split(said.split("continue with: plan ")[1].splitlines()[0])


def test_ctrl_c_says_how_to_continue_and_nothing_is_paid_for_twice(terminals: list[Terminal], draft: Drafting) -> None:
    asked, never = threading.Event(), threading.Event()

    def held(_: Request) -> Reply:
        asked.set()
        return Reply(hold=never)

    with scripted(says(WRONG), held, says(GOOD)) as server:
        words = [
            "--constraint",
            "先第一次",
            "--context",
            '{"时间": "早上", "口令": "hunter2"}',
            "--max-steps",
            "3",
            "-o",
            "计划.yaml",
            *TOOLS,
        ]
        terminal = Terminal(
            "draft", TASK, *words, PLAN_ADAPTER_MODEL="模型-1", PLAN_ADAPTER_MODEL_URL=server.url, PLAN_ADAPTER_MODEL_KEY=KEY
        )
        terminals.append(terminal)
        assert asked.wait(BOUND_SECONDS)
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
        never.set()
        verb, *rest = resume_words(terminal.shown)
        said = draft(server, *rest)
        assert (verb, said.code, len(server.requests)) == ("draft", 0, 3)
        assert "hunter2" not in str(server.requests)
    assert load_plan(Path("计划.yaml")).description == "两次问候"
    assert "round 1: quick, strict_schema, 15 tokens" in said.err
    assert [line.endswith("; kept from before") for line in said.err.splitlines() if line.startswith("round")] == [True, False]


def test_a_model_that_was_away_is_asked_once_it_is_there(draft: Drafting, plan: Plan) -> None:
    with scripted(Reply(status=401, error="expired"), says(QUESTION), says(GOOD)) as server:
        first = draft(server, TASK, "--tool", "greet")
        assert first.code == 2
        words = resume_words(first.err)
        assert plan(*words).code == 2  # nobody is there to answer
        again = plan(*words)
    assert (again.code, len(server.requests)) == (2, 2)
    assert "answer it at a terminal; the answers so far are kept" in again.err
    assert tools_told(server.requests[1]) == {"greet"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--resume", "nothing", *TOOLS), "no draft begins with `nothing`; `plan show --draft` lists them"),
        ((TASK, "--resume", "nothing"), "--resume continues a draft as it was started"),
        (("--resume", "x", "--constraint", "y"), "--resume continues a draft as it was started"),
        ((), "say in words what is to be done"),
    ],
)
def test_a_draft_that_cannot_be_continued_is_refused_with_the_reason(draft: Drafting, arguments: tuple[str, ...], expected: str) -> None:
    with scripted(says(GOOD)) as server:
        said = draft(server, *(word for word in arguments if word not in TOOLS))
        assert (said.code, server.requests) == (2, [])
    assert expected in said.err


def test_a_draft_without_its_tools_says_which_it_needs(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(Reply(status=401, error="expired")) as server:
        configure(monkeypatch, server.url)
        words = resume_words(plan("draft", TASK, *TOOLS).err)
        said = plan(*words[:3])
    assert (said.code, "give the --tools of its start" in said.err) == (2, True)


SENT_BACK = Reply(status=401, error=f"Incorrect API key provided: {KEY}")


@pytest.mark.parametrize("key", [KEY, f"{KEY}\n"], ids=["a key", "a key with the end of its line"])
def test_an_error_of_the_server_shows_no_key(plan: Plan, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    with scripted(SENT_BACK) as server:
        configure(monkeypatch, server.url.replace("://", "://ana:hunter2@"), key)
        for arguments in (("draft", TASK, *TOOLS), ("draft", TASK, "--json", *TOOLS), ("doctor", "--model")):
            said = plan(*arguments)
            assert said.code == 2
            assert "answers 401: " in said.err + said.out
            assert not [word for word in (KEY, "hunter2") if word in said.out + said.err]


def test_openais_own_key_is_not_shown_either(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(SENT_BACK) as server:
        for name, value in {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        said = plan("draft", TASK, "--model", "m", *TOOLS)
        assert (said.code, len(server.requests), KEY in said.err) == (2, 1, False)


def test_a_task_from_stdin_and_context_from_a_file(draft: Drafting, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("背景.yaml").write_text("主机: [web-1, web-2]\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"\ufeff{TASK}\n"))
    with scripted(says(GOOD)) as server:
        assert draft(server, "-", "--context", "@背景.yaml").code == 0
        prompt = server.requests[0]["messages"][1]["content"]
    assert f'task (JSON):\n"{TASK}"' in prompt
    assert '"主机":["web-1","web-2"]' in prompt


@pytest.mark.parametrize("given", ["当前在开发分支", "@背景.md"])
def test_the_context_may_be_a_text(draft: Drafting, given: str) -> None:
    Path("背景.md").write_text("当前在开发分支\n", encoding="utf-8")
    with scripted(says(GOOD)) as server:
        assert draft(server, TASK, "--context", given).code == 0
        assert 'context (JSON):\n"当前在开发分支"' in server.requests[0]["messages"][1]["content"]


def test_half_a_character_from_a_model_breaks_no_output(draft: Drafting) -> None:
    with scripted(says({**GOOD, "speak": "\ud800", "\udfff": 1})) as server:
        assert draft(server, TASK).code == 0
        said = draft(server, TASK, "--json")
    assert (said.code, said.lines[0]["speak"]) == (0, "\ud800")


def test_an_output_without_utf_8_gets_a_plan_that_can_be_read_all_the_same() -> None:
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


def test_what_the_guide_shows_of_a_draft_is_what_it_does(draft: Drafting, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
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
                said = plan(*shlex.split(line)[2:])
                assert said.code == 0, said.err
                printed += said.err
            else:
                shown.append(line)
    assert [line for line in shown if line not in printed.splitlines()] == []
    assert len(shown) == 2


# By way of any chat


def test_the_prompt_for_a_chat_holds_all_that_it_needs_and_asks_nobody(plan: Plan) -> None:
    said = plan("draft", TASK, "--constraint", "小声", "--print-prompt", *TOOLS)
    assert said.code == 0
    for part in ("You plan work", f'task (JSON):\n"{TASK}"', '"name":"greet"', "小声", "Its JSON Schema:\n{", '"ask_user"'):
        assert part in said.out
    assert '"name":"http_get"' not in said.out
    assert plan("draft", TASK, "--constraint", "小声", "--print-prompt", "-o", "问.txt", *TOOLS).out == ""
    assert Path("问.txt").read_text(encoding="utf-8") == said.out
    messages = plan("draft", TASK, "--constraint", "小声", "--print-prompt", "--json", *TOOLS).lines[0]["messages"]
    assert "\n\n".join(message["content"] for message in messages) + "\n" == said.out


def chat(plan: Plan, text: str, *arguments: str) -> Said:
    """What `plan draft --answer` makes of what came back."""
    Path("答.txt").write_text(text, encoding="utf-8")
    return plan("draft", TASK, "--answer", "答.txt", "--constraint", "先第一次", *arguments, *TOOLS)


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (json.dumps(GOOD), False),
        (f"好的，计划如下：\n```json\n{json.dumps(GOOD, ensure_ascii=False)}\n```\n祝好！", False),
        (f"\ufeff{json.dumps(GOOD, ensure_ascii=False)[:-1]},}}", True),
        (f"Here:\n```json\n{json.dumps(GOOD, ensure_ascii=False, indent=1)[:-2]}\n", True),
    ],
    ids=["plain", "in a fence", "one comma too many", "no end"],
)
def test_what_a_chat_answered_becomes_a_plan(plan: Plan, text: str, mended: bool) -> None:
    said = chat(plan, text)
    assert said.code == 0, said.out
    assert [s.id for s in load_plan(said.out).steps] == ["first", "second"]
    assert "constraint 1 (先第一次): order checked: `first` completes before `second` starts" in said.err
    assert ("was repaired" in said.err) is mended


def test_what_is_wrong_with_it_is_the_text_to_paste_back(plan: Plan) -> None:
    said = chat(plan, json.dumps(WRONG))
    first, *problems, last = said.out.splitlines()
    assert (said.code, first) == (1, "The answer cannot be used:")
    assert last == "Answer again with the whole object, everything else unchanged."
    assert [problem.partition("] ")[0] for problem in problems] == [
        "- steps[0].parameters.who: [bad-parameters",
        "- steps[0].parameters.wo: [bad-parameters",
    ]
    assert "paste stdout into the chat" in said.err
    (told,) = chat(plan, json.dumps(WRONG), "--json").lines
    assert (told["plan"], told["reply"]) == (None, said.out.removesuffix("\n"))


def test_an_answer_without_an_object_is_reported(plan: Plan) -> None:
    said = chat(plan, "我不会。")
    assert (said.code, "[syntax] the answer is not JSON" in said.out) == (1, True)


def test_a_claim_that_the_plan_does_not_keep_is_no_answer(plan: Plan) -> None:
    claim = {"number": 1, "steps": ["second"], "before": ["first"]}
    said = chat(plan, json.dumps({**GOOD, "constraints": [claim]}))
    assert (said.code, "constraints[0]: [broken-constraint]" in said.out) == (1, True)


def test_a_question_of_the_chat_is_for_the_person_there(plan: Plan) -> None:
    said = chat(plan, json.dumps(QUESTION))
    assert (said.code, said.out) == (2, "")
    assert "the model asks: 问候谁？\nanswer it in the chat" in said.err


def test_an_answer_that_only_continues_thinking_gets_a_reply_to_continue(plan: Plan) -> None:
    said = chat(plan, json.dumps({"action": "continue", "speak": "hm", "reason": "hard"}))
    assert (said.code, said.out) == (1, "Go on. Plan it now if you can.\n")


def test_an_answer_is_taken_from_stdin(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(GOOD)))
    assert load_plan(plan("draft", TASK, "--answer", "-", *TOOLS).out).description == "两次问候"


# What doctor says of the model


def of_model(said: Said) -> dict[str, Any]:
    return next(finding for finding in said.lines if finding["what"].startswith(("language model", "no language model", "<OpenAIModel")))


def test_doctor_asks_no_model_without_the_option(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    unset = of_model(plan("doctor", "--json"))
    assert (unset["ok"], "PLAN_ADAPTER_MODEL " in unset["hint"]) == (True, True)
    assert of_model(plan("doctor", "--json", "--model"))["ok"] is False
    with scripted(says({"ready": True})) as server:
        configure(monkeypatch, server.url)
        found = of_model(plan("doctor", "--json"))
        assert (found["ok"], found["what"], server.requests) == (True, f"language model 模型-1 at {server.url} is configured", [])


def test_doctor_says_how_the_model_answers_and_what_its_server_refuses(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(says({"ready": True}), knows=["json_object"], refuses=["reasoning_effort"]) as server:
        configure(monkeypatch, server.url)
        found = of_model(plan("doctor", "--json", "--model"))
    assert found["ok"] is True
    assert found["what"].startswith(f"language model 模型-1 at {server.url} answers as `模型-1` on the rung json_object (")
    assert found["what"].endswith(", 3 requests)")
    assert found["hint"] == "refuses strict_schema, schema, reasoning_effort"


def test_doctor_says_why_a_model_cannot_be_asked(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "http://127.0.0.1:9/v1")
    found = of_model(plan("doctor", "--json", "--model"))
    assert (found["ok"], "cannot be reached" in found["what"]) == (False, True)
