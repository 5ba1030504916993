"""Tests of the constraints of a draft: what is checked, and how unchecked constraints are shown."""

from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.documents import dump_plan
from plan_adapter.gates import ApprovalRequest, CallbackApprover
from plan_adapter.model.drafts import PlanRequest
from plan_adapter.runs import arun_plan
from plan_adapter.store import PlanStatus, RunContext, load_plan
from plan_adapter.text.draft_text import CONSTRAINTS_NOTE
from tests.agent.server import says, scripted
from tests.agent.test_planner import BACK_UP, DEPLOY, TOOLS, VERIFY, corrections, done
from tests.cli.conftest import Plan, home, plan

__all__ = ["home", "plan"]

CONSTRAINTS = ("back up the database first", "only off-peak", "verify afterwards")
CONSTRAINT_ARGUMENTS = [word for text in CONSTRAINTS for word in ("--constraint", text)]
TOOL_ARGUMENTS = [word for name in ("look", "back_up", "deploy") for word in ("--tools", f"tests.agent.test_planner:{name}")]
UNORDERED = [BACK_UP, {**DEPLOY, "depends_on": []}, {**VERIFY, "depends_on": []}]
FIRST, OFF_PEAK, AFTERWARDS = (
    {"number": 1, "steps": ["backup"], "before": ["deploy"]},
    {"number": 2, "steps": ["deploy"], "before": []},
    {"number": 3, "steps": ["deploy"], "before": ["verify"]},
)

ANSWERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no claims": (done(*UNORDERED), ["not checked", "not checked", "not checked"]),
    "claims about all constraints": (
        done(*UNORDERED, constraints=[{"number": n, "steps": ["deploy"], "before": []} for n in (1, 2, 3)]),
        ["not checked", "not checked", "not checked"],
    ),
    "correct claims": (
        done(BACK_UP, DEPLOY, VERIFY, constraints=[FIRST, OFF_PEAK, AFTERWARDS]),
        ["order checked", "not checked", "order checked"],
    ),
    "claims with wrong numbers": (
        done(BACK_UP, DEPLOY, VERIFY, constraints=[{**FIRST, "number": 2}, {**FIRST, "number": 99}]),
        ["not checked", "order checked", "not checked"],
    ),
}


def drafted(plan: Plan, monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any], arguments: tuple[str, ...] = ()) -> Any:
    with scripted(*(says(answer) for answer in answers)) as server:
        monkeypatch.setenv("PLAN_ADAPTER_MODEL", "m")
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        result = plan("draft", "Deploy 2.1", *CONSTRAINT_ARGUMENTS, *TOOL_ARGUMENTS, "-o", "plan.yaml", *arguments)
        return result, corrections(server) if len(server.requests) > 1 else ""


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_unchecked_constraint_is_shown_wherever_the_plan_is_shown(kind: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, checks = ANSWERS[kind]
    result, _ = drafted(plan, monkeypatch, answer, arguments=("--json",))
    assert result.code == 0, result.err
    expected = [f"{text}: {check}" for text, check in zip(CONSTRAINTS, checks, strict=True)]
    err_lines = result.err.splitlines()
    assert [line for line in err_lines if line.startswith("constraint")] == [
        next(line for line in err_lines if line.startswith(f"constraint {number} ({text}): {check}: "))
        for number, (text, check) in enumerate(zip(CONSTRAINTS, checks, strict=True), 1)
    ]
    draft_json, shown = result.lines[0], plan("show", "--draft", result.lines[0]["id"])
    drafts = [draft_json, plan("show", "--draft", draft_json["id"], "--json").lines[0]]
    for found in drafts:
        assert [(kept["text"], kept["checked"]) for kept in found["constraints"]] == [
            (text, check == "order checked") for text, check in zip(CONSTRAINTS, checks, strict=True)
        ]
    assert plan("run", "plan.yaml", *TOOL_ARGUMENTS, "--offline", "--detach").code == 6
    run_id = plan("runs", "--json").lines[0]["id"]
    for text in (shown.out, plan("approve", run_id, "--show").out):
        for line in expected:
            constraint, _, check = line.rpartition(": ")
            shown_as = f"- **not checked**: {constraint}: " if check == "not checked" else f"- order checked: {constraint}: "
            assert shown_as in text, (shown_as, text)
        assert CONSTRAINTS_NOTE in text


def test_a_broken_order_is_sent_back_to_the_model_and_corrected(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = done(*UNORDERED, constraints=[FIRST, OFF_PEAK, AFTERWARDS])
    result, correction = drafted(plan, monkeypatch, wrong, ANSWERS["correct claims"][0])
    assert result.code == 0
    assert "constraints[0]: [broken-constraint] `deploy` can start before `backup`" in correction
    assert "constraints[2]: [broken-constraint] `verify` can start before `deploy`" in correction
    never, _ = drafted(plan, monkeypatch, wrong, arguments=("--force",))
    assert (never.code, "constraints[0]: [broken-constraint]" in never.err) == (1, True)


def test_a_revised_plan_shows_its_constraints_as_not_checked(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drafted(plan, monkeypatch, ANSWERS["correct claims"][0])[0].code == 0
    assert plan("run", "plan.yaml", *TOOL_ARGUMENTS, "--offline", "--detach").code == 6
    run_id = plan("runs", "--json").lines[0]["id"]
    Path("plan.yaml").write_text(Path("plan.yaml").read_text(encoding="utf-8").replace("2.1", "2.2"), encoding="utf-8")
    assert plan("revise", run_id, "plan.yaml", *TOOL_ARGUMENTS).code == 0
    text = plan("approve", run_id, "--show").out
    assert "**changed since then**: no constraint was checked again" in text
    assert "- **not checked**: back up the database first: the plan was changed" in text
    assert "order checked:" not in text


async def gate_text_of(store: PlanStore, text: str, tenant_id: str | None = None) -> str:
    asked = list[str]()

    def answer(request: ApprovalRequest) -> bool:
        asked.append(request.text)
        return True

    context, approver = RunContext(tenant_id=tenant_id), CallbackApprover(answer, by="ana")
    run = await arun_plan(load_plan(text), tools=TOOLS, store=store, approver=approver, context=context, offline=True)
    assert run.status is PlanStatus.COMPLETED
    return asked[0]


async def test_a_plan_gate_shows_only_its_own_draft(tmp_path: Path) -> None:
    request = PlanRequest("Deploy [x](http://evil) 2.1\n# now", constraints=CONSTRAINTS)
    with scripted(says(ANSWERS["correct claims"][0])) as server:
        model = OpenAIModel("m", base_url=server.url)
        url = f"sqlite:///{tmp_path / 'plans.db'}"
        async with PlanStore(url) as store, PlanStore(url, tenant_id="a") as theirs, PlanStore(url, tenant_id="b") as others:
            draft = await Planner(model, TOOLS, keep=store.drafts).drafted(request)
            assert draft.plan is not None
            text = dump_plan(draft.plan)
            shown = await gate_text_of(store, text)
            assert "### Drafted by a model" in shown
            assert "- the task: Deploy `[x](http://evil)` 2.1 # now\n" in shown
            assert "### Drafted by a model" not in await gate_text_of(store, text.replace("2.1", "2.2"))
            await Planner(model, TOOLS, keep=theirs.drafts).drafted(PlanRequest("The task of a"))
            for seen, tenant, task in (
                (store, "a", "The task of a"),
                (theirs, "a", "The task of a"),
                (store, "b", "Deploy"),
                (others, "b", ""),
            ):
                shown = await gate_text_of(seen, text, tenant)
                assert (f"- the task: {task}" in shown) is bool(task), (tenant, task)
                assert ("### Drafted by a model" in shown) is bool(task)
        await model.aclose()


MALFORMED: dict[str, Any] = {
    "a text": "the backup is first",
    "a list of texts": ["the backup is first"],
    "no number": [{"steps": ["backup"], "before": ["deploy"]}],
    "a number that is a text": [FIRST | {"number": "first"}],
    "a number that is not whole": [FIRST | {"number": 1.5}],
    "true as the number": [FIRST | {"number": True}],
    "no steps": [{"number": 1, "before": ["deploy"]}],
    "steps that are objects": [FIRST | {"steps": [{"id": "backup"}]}],
    "before that is an object": [FIRST | {"before": {"id": "deploy"}}],
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_statement_about_a_constraint_is_corrected(kind: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = done(BACK_UP, DEPLOY, VERIFY, constraints=MALFORMED[kind])
    result, correction = drafted(plan, monkeypatch, wrong, done(BACK_UP, DEPLOY, VERIFY, constraints=[FIRST]))
    assert result.code == 0, result.err
    assert "constraints[0]: [bad-value]" in correction
    assert 'write {"number", "steps", "before"}' in correction
    assert "constraint 1 (back up the database first): order checked" in result.err


READABLE: dict[str, Any] = {
    "a number as text": [FIRST | {"number": "1"}],
    "a number as a float": [FIRST | {"number": 1.0}],
    "one statement without a list": FIRST,
    "one step without a list": [FIRST | {"steps": "backup", "before": "deploy"}],
    "positions": [FIRST | {"steps": [0], "before": ["1"]}],
    "one position without a list": [FIRST | {"steps": 0, "before": 1}],
}


@pytest.mark.parametrize("kind", READABLE)
def test_a_statement_in_another_form_is_read(kind: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    result, correction = drafted(plan, monkeypatch, done(BACK_UP, DEPLOY, VERIFY, constraints=READABLE[kind]))
    assert (result.code, correction) == (0, "")
    assert "constraint 1 (back up the database first): order checked: `backup` completes before `deploy` starts" in result.err


async def test_statements_about_constraints_that_nobody_made_are_ignored() -> None:
    with scripted(says(done(BACK_UP, DEPLOY, VERIFY, constraints="none"))) as server:
        model = OpenAIModel("m", base_url=server.url)
        draft = await Planner(model, TOOLS).drafted(PlanRequest("Deploy 2.1"))
        await model.aclose()
    assert draft.plan is not None
    assert (draft.repairs, draft.constraints) == (0, [])
