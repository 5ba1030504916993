"""Tests of `Planner`: a task becomes a valid plan or a reported failure. Repair, dependencies, constraints, budgets, questions."""

import gc
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from plan_adapter.agent.answer_text import read_answer
from plan_adapter.agent.model import ModelAnswer, Question
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Budget, Planner
from plan_adapter.model.drafts import Draft, PlanRequest
from plan_adapter.model.errors import DraftError, ModelError
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import find_problems
from tests.agent.server import Reply, ScriptedServer, says, scripted


@tool(effect="read")
def look(url: str, attempts: int = 1) -> dict[str, Any]:
    """Look at a page.

    Args:
        url: What to fetch.
        attempts: How often to try.
    """
    return {"url": url, "attempts": attempts}


@tool(effect="idempotent_write")
def back_up(database: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Back a database up."""
    return {"path": f"/{database}", "labels": labels}


@tool(effect="write")
def deploy(version: str, replicas: int = 2) -> str:
    """Deploy a version."""
    return f"{version} {replicas}"


TOOLS = ToolRegistry([look, back_up, deploy])
TASK = PlanRequest("Deploy 2.1 to production", constraints=("back up the database first",))

Step = dict[str, Any]


def step(tool_name: str, parameters: dict[str, Any], **fields: Any) -> Step:
    return {"tool_name": tool_name, "description": f"Call {tool_name}", "parameters": parameters, **fields}


BACK_UP = step("back_up", {"database": "app"}, id="backup")
DEPLOY = step("deploy", {"version": "2.1"}, id="deploy", depends_on=["backup"])
VERIFY = step("look", {"url": "http://app/health"}, id="verify", depends_on=["deploy"])
CLAIM = {"number": 1, "steps": ["backup"], "before": ["deploy"]}


def done(*steps: Step, **fields: Any) -> dict[str, Any]:
    return {"action": "plan_done", "speak": "Deploys 2.1.", "reason": "clear", "description": "Deploy 2.1", "steps": [*steps], **fields}


GOOD = done(BACK_UP, DEPLOY, VERIFY, constraints=[CLAIM], complexity="moderate", need_thinking=False)


async def drafted(server: ScriptedServer, request: PlanRequest = TASK, **options: Any) -> Draft:
    model = OpenAIModel("m", base_url=server.url, max_retries=0)
    try:
        draft = await Planner(model, TOOLS, **options).drafted(request)
    finally:
        await model.aclose()
    if draft.plan is not None:
        assert find_problems(draft.plan, TOOLS) == []
    return draft


def corrections(server: ScriptedServer) -> str:
    return server.requests[-1]["messages"][-1]["content"]


async def test_a_clear_task_is_planned_in_one_round() -> None:
    with scripted(says(GOOD)) as server:
        draft = await drafted(server)
    assert draft.plan is not None
    assert [(s.id, s.depends_on) for s in draft.plan.steps] == [("backup", []), ("deploy", ["backup"]), ("verify", ["deploy"])]
    assert (draft.plan.description, draft.complexity, draft.repairs, len(draft.calls)) == ("Deploy 2.1", "moderate", 0, 1)
    assert [(c.checked, c.how) for c in draft.constraints] == [(True, "`backup` completes before `deploy` starts")]
    assert (draft.calls[0].rung, draft.calls[0].usage.total) == ("strict_schema", 15)


async def test_the_same_request_sends_the_same_prompt() -> None:
    with scripted(says(GOOD)) as server:
        first, second = await drafted(server), await drafted(server)
        assert server.requests[0] == server.requests[1]
    assert first.calls[0].prompt_digest == second.calls[0].prompt_digest


async def test_a_drafted_plan_requires_approval_whatever_the_request_says() -> None:
    options = ExecutionOptions(require_approval=False, auto_approve=True, allow_parallel=True)
    with scripted(says({**GOOD, "options": {"require_approval": False}})) as server:
        draft = await drafted(server, PlanRequest("Deploy", options=options, metadata={"team": "平台"}))
    assert draft.plan is not None
    assert (draft.plan.options.require_approval, draft.plan.options.auto_approve, draft.plan.options.allow_parallel) == (True, False, True)
    assert (draft.plan.metadata, draft.notes) == ({"team": "平台"}, ["ignored in the answer, because a model may not decide it: `options`"])


def call(**fields: Any) -> dict[str, Any]:
    return done(step("deploy", {"version": "1"}, **fields))


AHEAD = [step("look", {"url": "${{ steps.b.result }}"}, id="a"), step("look", {"url": "${{ steps.a.result }}"}, id="b")]
UNBACKED = done(BACK_UP, {**DEPLOY, "depends_on": []}, constraints=[CLAIM])

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown tool": (done(step("deploi", {"version": "1"})), "steps[0].tool_name: [unknown-tool]"),
    "unknown parameter": (done(step("deploy", {"version": "1", "force": True})), "steps[0].parameters.force: [bad-parameters]"),
    "missing parameter": (done(step("deploy", {})), "[bad-parameters]"),
    "wrong type": (done(step("deploy", {"version": "1", "replicas": "many"})), "steps[0].parameters.replicas: [bad-parameters]"),
    "an index that does not exist": (call(depends_on=[7]), "steps[0].depends_on[0]: [unknown-step] there is no step 7"),
    "an id that does not exist": (done(step("deploy", {"version": "1"}, depends_on=["backup"])), "steps[0].depends_on[0]: [unknown-step]"),
    "cycle": (done(step("deploy", {"version": "1"}, depends_on=[1]), step("look", {"url": "x"}, depends_on=[0])), "[cycle]"),
    "itself": (done(step("deploy", {"version": "1"}, depends_on=[0])), "[self-dependency]"),
    "no steps": ({"action": "plan_done", "speak": "", "reason": ""}, "steps: [no-steps]"),
    "steps that are not a list": (done() | {"steps": {"a": 1}}, "steps: [no-steps]"),
    "a step that is text": (done() | {"steps": ["deploy it"]}, "steps[0]"),
    "steps beside continue": ({**GOOD, "action": "continue"}, "steps: [bad-value] steps with `continue`"),
    "no action": ({"speak": "hm"}, "action: [bad-value] the action is missing"),
    "another action": ({**GOOD, "action": "finish"}, 'action: [bad-value] "finish" is not an action'),
    "a lowered effect": (done(step("deploy", {"version": "1"}, effect="read")), "steps[0].effect: [lowered-effect]"),
    "a field that only people may set": (done(step("deploy", {"version": "1"}, on_error="continue")), "steps[0].on_error: [unknown-field]"),
    "duplicate ids": (done(BACK_UP, {**DEPLOY, "id": "backup", "depends_on": []}), "[duplicate-id]"),
    "references in a cycle": (done(*AHEAD), "[cycle]"),
    "a reference to nothing": (done(step("look", {"url": "${{ steps.nobody.result }}"})), "[unknown-reference]"),
    "a reserved key": (done(step("back_up", {"database": "a", "labels": {"__prefect_kind": "jinja"}})), "__prefect"),
    "a goal with an unknown tool": (done({"content": "Make it nice", "tools": ["wipe"]}), "[unknown-tool]"),
    "a broken constraint": (UNBACKED, "constraints[0]: [broken-constraint] `deploy` can start before"),
    "an empty question": ({"action": "ask_user", "speak": " ", "reason": ""}, "speak: [missing-field]"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
async def test_each_problem_is_sent_back_with_its_location_and_a_correction_is_accepted(kind: str) -> None:
    wrong, expected = WRONG[kind]
    with scripted(says(wrong), says(GOOD)) as server:
        draft = await drafted(server)
        assert expected in corrections(server)
        roles = [message["role"] for message in server.requests[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
    assert draft.plan is not None
    assert (draft.repairs, bool(draft.calls[0].problems), draft.calls[1].problems) == (1, True, ())


async def test_all_problems_are_sent_back_at_once() -> None:
    wrong = done(step("deploi", {}), step("deploy", {"replicas": "x"}, depends_on=[9, "nobody"]))
    with scripted(says(wrong), says(GOOD)) as server:
        await drafted(server)
        correction = corrections(server)
    for code in ("[unknown-tool]", "[bad-parameters]", "there is no step 9", "`nobody`"):
        assert code in correction


@pytest.mark.parametrize("kind", ["empty", "prose", "list", "cut off"])
async def test_text_without_a_decision_is_corrected(kind: str) -> None:
    reply = {"empty": Reply(""), "prose": Reply("Sure!"), "list": says([GOOD]), "cut off": Reply('{"action"', finish="length")}[kind]
    rungs = 1 if kind == "cut off" else 5
    with scripted(*[reply] * rungs, says(GOOD)) as server:
        draft = await drafted(server)
    assert (draft.plan is not None, draft.repairs) == (True, 1)


async def test_dependencies_by_index_by_id_by_digits_and_on_later_steps_are_kept() -> None:
    steps = (
        step("look", {"url": "c"}, depends_on=[1, "2"]),
        step("look", {"url": "a"}),
        step("look", {"url": "b"}, id="b", depends_on=["step_2", 1.0]),
        step("look", {"url": "d"}, depends_on=0),
    )
    with scripted(says(done(*steps))) as server:
        draft = await drafted(server, PlanRequest("Look around"))
    assert draft.plan is not None
    assert [s.depends_on for s in draft.plan.steps] == [["step_2", "b"], [], ["step_2", "step_2"], ["step_1"]]


async def test_a_dependency_that_a_correction_drops_is_questioned_once_and_then_noted() -> None:
    broken = done(BACK_UP, DEPLOY, {**VERIFY, "parameters": {}})
    dropped = done(BACK_UP, {**DEPLOY, "depends_on": []}, VERIFY)
    with scripted(says(broken), says(dropped), says(dropped)) as server:
        draft = await drafted(server, PlanRequest("Deploy"))
        assert "[dropped-dependency] `deploy` no longer depends on `backup`" in corrections(server)
    assert draft.plan is not None
    assert draft.notes == ["the model removed the dependency of `deploy` on `backup`"]


async def test_a_correction_may_drop_a_dependency_that_others_imply() -> None:
    broken = done(BACK_UP, DEPLOY, {**VERIFY, "parameters": {}, "depends_on": ["deploy", "backup"]})
    with scripted(says(broken), says(done(BACK_UP, DEPLOY, VERIFY))) as server:
        draft = await drafted(server, PlanRequest("Deploy"))
    assert (draft.plan is not None, len(draft.calls)) == (True, 2)


async def test_three_answers_in_a_row_without_progress_end_the_draft() -> None:
    with scripted(says(done(step("deploi", {})))) as server:
        draft = await drafted(server)
    assert (draft.plan, len(draft.calls)) == (None, 3)
    assert draft.failure == "no valid plan for the task: 3 wrong answers in a row without progress"
    assert [problem.code for problem in draft.problems] == ["unknown-tool"]
    three, two, one = ([step(f"no_{number}", {}) for number in range(many)] for many in (3, 2, 1))
    with scripted(*(says(done(*steps)) for steps in (three, three, two, two, one, one)), says(GOOD)) as server:
        draft = await drafted(server)
    assert (draft.plan is not None, len(draft.calls)) == (True, 7)


async def test_a_draft_error_lists_the_problems() -> None:
    with scripted(says(done(step("deploi", {})))) as server:
        model = OpenAIModel("m", base_url=server.url)
        with pytest.raises(DraftError, match=r"(?s)without progress.*steps\[0\].tool_name.*deploy") as raised:
            await Planner(model, TOOLS).adraft(TASK)
        await model.aclose()
    assert len(raised.value.draft.calls) == 3


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(Budget(rounds=2), "2 rounds is spent"), (Budget(tokens=20), "20 tokens is spent"), (Budget(seconds=0.0), "0 s is spent")],
)
async def test_an_exhausted_budget_ends_the_draft(budget: Budget, expected: str) -> None:
    with scripted(says({"action": "continue", "speak": "hm", "reason": "thinking"})) as server:
        draft = await drafted(server, budget=budget)
    assert draft.plan is None
    assert expected in (draft.failure or "")


async def test_a_hard_task_gets_a_second_deeper_pass() -> None:
    deeper = done(BACK_UP, DEPLOY, VERIFY, step("look", {"url": "again"}, depends_on=["verify"]), constraints=[CLAIM])
    with scripted(says({**GOOD, "need_thinking": True}), says(deeper)) as server:
        draft = await drafted(server)
        first, second = server.requests
    assert draft.plan is not None
    assert (len(draft.plan.steps), [call.phase for call in draft.calls]) == (4, ["quick", "deep"])
    assert (second["max_completion_tokens"], second["reasoning_effort"]) == (2 * first["max_completion_tokens"], "high")
    assert first["reasoning_effort"] == "none"


@pytest.mark.parametrize("action", [" plan_done ", "plan_done\n", "\tplan_done"])
async def test_whitespace_around_an_action_is_ignored(action: str) -> None:
    with scripted(says({**GOOD, "action": action, "complexity": " simple "})) as server:
        draft = await drafted(server)
    assert (draft.plan is not None, len(draft.calls)) == (True, 1)


async def test_the_context_may_be_a_text() -> None:
    with scripted(says(GOOD)) as server:
        draft = await drafted(server, PlanRequest("Deploy", context="当前在开发分支，需要合并到主分支并部署"))
        assert 'context (JSON):\n"当前在开发分支，需要合并到主分支并部署"' in server.requests[0]["messages"][1]["content"]
    assert draft.request.context == "当前在开发分支，需要合并到主分支并部署"


async def test_a_secret_in_a_context_that_is_a_text_is_redacted() -> None:
    with scripted(says(GOOD)) as server:
        draft = await drafted(server, PlanRequest("Deploy", context="log in at https://ana:hunter2@db"))
        assert "hunter2" not in json.dumps(server.requests)
    assert "in `context`; a plan refers to a secret" in draft.notes[0]


@pytest.mark.parametrize("field", ["constraints", "available_tools", "available_secrets", "permissions"])
def test_a_text_instead_of_a_list_is_refused(field: str) -> None:
    with pytest.raises(TypeError, match=rf"PlanRequest.{field} is a list of texts, not one text: write {field}=\['back up first'\]"):
        PlanRequest("Deploy", **{field: "back up first"})  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", [Reply(status=500, error="broken"), says(done(step("deploi", {})))], ids=["an error", "invalid"])
async def test_a_deep_pass_that_fails_falls_back_to_the_first_plan(failure: Reply) -> None:
    with scripted(says({**GOOD, "need_thinking": True}), failure) as server:
        draft = await drafted(server)
    assert draft.plan is not None
    assert (len(draft.plan.steps), draft.failure, draft.problems) == (3, None, [])
    assert draft.notes[0].startswith("the deep pass failed, so the first plan is kept: ")


async def test_the_model_asks_and_continues_with_the_answer() -> None:
    asked: list[str] = []

    async def person(question: str) -> str:
        asked.append(question)
        return "生产库"

    with scripted(says({"action": "ask_user", "speak": "Which database?", "reason": "two"}), says(GOOD)) as server:
        draft = await drafted(server, asker=person)
        assert '"answer":"生产库"' in corrections(server)
    assert (asked, draft.plan is not None) == (["Which database?"], True)


async def test_the_wait_for_a_person_does_not_count_towards_the_time_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    late = 0.0

    async def person(_: str) -> str:
        nonlocal late
        late = 10_000.0
        return "the first"

    real = time.monotonic
    monkeypatch.setattr("plan_adapter.agent.planner.time", SimpleNamespace(monotonic=lambda: real() + late))
    with scripted(says({"action": "ask_user", "speak": "Which?", "reason": "two"}), says(GOOD)) as server:
        draft = await drafted(server, asker=person)
    assert (draft.plan is not None, draft.failure) == (True, None)


async def test_an_unanswered_question_ends_the_draft_and_appears_in_the_failure() -> None:
    with scripted(says({"action": "ask_user", "speak": "Which database?", "reason": "two"})) as server:
        draft = await drafted(server)
    assert (draft.plan, draft.failure) == (None, "no valid plan for the task: the model asked, and nobody answered: Which database?")


async def test_a_constraint_that_is_not_about_order_is_listed_as_unchecked() -> None:
    request = PlanRequest("Deploy", constraints=("back up first", "only off-peak", "verify afterwards"))
    claims = [CLAIM, {"number": 3, "steps": ["deploy"], "before": ["verify"]}]
    with scripted(says(done(BACK_UP, DEPLOY, VERIFY, constraints=claims))) as server:
        draft = await drafted(server, request)
    assert [(c.number, c.checked) for c in draft.constraints] == [(1, True), (2, False), (3, True)]
    assert draft.constraints[1].how == "the plan does not say how it is kept"


async def test_max_steps_is_enforced() -> None:
    with scripted(says(GOOD), says(done(step("deploy", {"version": "1"})))) as server:
        draft = await drafted(server, PlanRequest("Deploy", max_steps=2))
        assert "[too-many-steps] the plan has 3 steps; the limit is 2" in corrections(server)
    assert draft.plan is not None


async def test_a_planner_sees_only_the_available_tools() -> None:
    with scripted(says(done(step("deploy", {"version": "1"}))), says(done(step("look", {"url": "x"})))) as server:
        draft = await drafted(server, PlanRequest("Deploy", available_tools=("look",)))
        text = json.dumps(server.requests[0])
        assert "[unknown-tool]" in corrections(server)
    assert "back_up" not in text
    assert draft.plan is not None


@pytest.mark.parametrize(
    ("request_", "tools", "expected"),
    [
        (PlanRequest(" "), TOOLS, "the task is empty"),
        (PlanRequest("x"), ToolRegistry(), "no tools"),
        (PlanRequest("x", max_steps=0), TOOLS, "max_steps"),
    ],
)
async def test_an_invalid_request_asks_no_model(request_: PlanRequest, tools: ToolRegistry, expected: str) -> None:
    with scripted(says(GOOD)) as server:
        draft = await Planner(OpenAIModel("m", base_url=server.url), tools).drafted(request_)
        assert (draft.plan, server.requests) == (None, [])
    assert expected in (draft.failure or "")


async def test_an_unreachable_model_raises_a_model_error() -> None:
    with pytest.raises(ModelError, match="cannot be reached"):
        await Planner(OpenAIModel("m", base_url="http://127.0.0.1:9/v1", max_retries=0), TOOLS).adraft(TASK)


async def test_values_encoded_for_strict_decoding_are_decoded() -> None:
    bent = step("back_up", {"database": "app", "labels": '{"who": "我"}'}, id=None, depends_on=None, rollback=None, effect=None)
    plain = step("back_up", {"database": "app", "labels": None})
    with scripted(says(done(bent, plain))) as server:
        draft = await drafted(server, PlanRequest("Back up"))
    assert draft.plan is not None
    assert [s.parameters for s in draft.plan.steps] == [{"database": "app", "labels": {"who": "我"}}, {"database": "app", "labels": None}]


async def test_an_answer_with_plan_steps_and_no_action_is_a_plan() -> None:
    with scripted(says({"description": "Deploy", "plan_steps": [step("deploy", {"version": "1"})]})) as server:
        draft = await drafted(server, PlanRequest("Deploy"))
    assert draft.plan is not None


def test_one_planner_drafts_one_plan_after_another_without_an_event_loop() -> None:
    with scripted(says(GOOD)) as server:
        planner = Planner(OpenAIModel("m", base_url=server.url, max_retries=0), TOOLS)
        assert [len(planner.draft(TASK).steps) for _ in range(4)] == [3, 3, 3, 3]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_draft_closes_its_connections_also_after_an_error() -> None:
    with scripted(Reply(status=500, error="broken"), says(done(step("deploi", {}))), says(GOOD)) as server:
        planner = Planner(OpenAIModel("m", base_url=server.url, max_retries=0), TOOLS, budget=Budget(rounds=1))
        with pytest.raises(ModelError, match="500"):
            planner.draft(TASK)
        with pytest.raises(DraftError, match="1 rounds is spent"):
            planner.draft(TASK)
        assert len(planner.draft(TASK).steps) == 3
        gc.collect()  # an open connection would warn here


def test_a_model_that_keeps_no_connections_drafts_without_an_event_loop() -> None:
    class OwnModel:
        name = "own"

        async def ask(self, question: Question) -> ModelAnswer:
            text = json.dumps(GOOD)
            return ModelAnswer(text, read_answer(text), self.name, "text")

    assert len(Planner(OwnModel(), TOOLS).draft(TASK).steps) == 3


async def test_draft_inside_a_running_event_loop_names_its_async_twin() -> None:
    with scripted(says(GOOD)) as server:
        planner = Planner(OpenAIModel("m", base_url=server.url), TOOLS)
        with pytest.raises(RuntimeError, match="an event loop is running here: await `adraft` instead"):
            planner.draft(TASK)
    assert not server.requests
