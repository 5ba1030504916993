"""Tests of the built-in approvers: a callback function, and a policy of rules."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, Step, ToolRegistry, run_plan, tool
from plan_adapter.errors import InvalidPlanError, NotApprovedError
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.approvers import CallbackApprover, PolicyApprover, PrefectApprover, Rule
from plan_adapter.model.approvals import Approval, ApprovalRequest, Decision, GatePolicy
from plan_adapter.model.errors import ApprovalRequiredError
from plan_adapter.model.options import Input
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.store import PlanStatus


def request(*, name: str = "nightly-backup", step: str | None = None, by: str = "cron", digest: str = "d" * 64) -> ApprovalRequest:
    return ApprovalRequest(
        digest,
        name,
        "Back up",
        "text",
        run_id="run-1",
        gate_id="gate-1",
        step_id=step,
        item=2 if step else None,
        gate_policy=GatePolicy(requested_by=by),
    )


def decision_and_note(approval: Approval) -> tuple[Decision, str]:
    return approval.decision, approval.note


@pytest.mark.parametrize(
    ("returned", "answer"),
    [
        (True, ("approve", "")),
        (False, ("reject", "")),
        ("approve", ("approve", "")),
        ("reject", ("reject", "")),
        ("request_changes", ("request_changes", "")),
        (("reject", "维护窗口已关闭"), ("reject", "维护窗口已关闭")),
        (("approve", "for tonight"), ("approve", "for tonight")),
        ((False, "too early"), ("reject", "too early")),
    ],
)
async def test_the_return_value_of_a_function_is_its_answer(returned: Any, answer: tuple[str, str]) -> None:
    async def later(_: ApprovalRequest) -> Any:
        await asyncio.sleep(0)
        return returned

    assert decision_and_note(await CallbackApprover(lambda _: returned).ask(request())) == answer
    assert decision_and_note(await CallbackApprover(later).ask(request())) == answer


async def test_a_functions_answer_names_the_gate_and_carries_no_proof() -> None:
    answer = await CallbackApprover(lambda asked: asked.step_id == "drain", by="bot").ask(request(step="drain"))
    assert (answer.decision, answer.by, answer.known_by) == ("approve", "bot", "unverified")
    assert (answer.approval_digest, answer.run_id, answer.gate_id, answer.step_id, answer.item) == ("d" * 64, "run-1", "gate-1", "drain", 2)


async def test_a_callback_may_return_a_complete_approval() -> None:
    own = answer_to(request(), decision="approve", by="ana", known_by="totp")
    assert await CallbackApprover(lambda _: own).ask(request()) is own


NO_ANSWERS = [
    None,
    1,
    0,
    "yes",
    "approved",
    "Approve",
    "",
    "维护窗口已关闭",
    ["approve"],
    {"decision": "approve"},
    ("approve",),
    ("yes", "note"),
]


@pytest.mark.parametrize("returned", [*NO_ANSWERS, ("approve", "a", "b"), (True, None), {}], ids=repr)
async def test_what_is_no_answer_raises_with_what_to_return(returned: Any) -> None:
    with pytest.raises(
        TypeError, match=r'not an answer here: return True, False, "approve", "reject", "request_changes", or \("reject", "why"\)'
    ):
        await CallbackApprover(lambda _: returned).ask(request())


@pytest.mark.parametrize("returned", [True, "approve", ("approve", "go"), "yes", None], ids=repr)
async def test_an_approval_is_no_answer_to_a_question(returned: Any) -> None:
    asked = replace(request(), kind="question", fields={"choice": Input(), "为什么": Input(default="")})
    with pytest.raises(TypeError, match=r"return its fields, \{'choice': …, '为什么': …\}, or \"reject\""):
        await CallbackApprover(lambda _: returned).ask(asked)
    assert (await CallbackApprover(lambda _: False).ask(asked)).decision == "reject"
    assert (await CallbackApprover(lambda _: {"choice": "a"}).ask(asked)).result == {"choice": "a"}


async def test_a_function_is_asked_with_the_request_and_answers_in_the_name_of_callback() -> None:
    asked: list[ApprovalRequest] = []

    def answer(of: ApprovalRequest) -> str:
        asked.append(of)
        return "approve"

    given = await CallbackApprover(answer).ask(request(step="drain"))
    assert asked == [request(step="drain")]
    assert (given.by, given.known_by, given.step_id, given.note, given.result) == ("callback", "unverified", "drain", "", None)


async def test_the_answer_of_a_function_to_a_question_names_its_gate() -> None:
    asked = replace(request(step="ask"), kind="question", fields={"choice": Input()})
    given = await CallbackApprover(lambda _: {"choice": "a"}, by="bot").ask(asked)
    assert (given.decision, given.by, given.known_by, given.result) == ("approve", "bot", "unverified", {"choice": "a"})
    assert (given.run_id, given.gate_id, given.step_id, given.item) == ("run-1", "gate-1", "ask", 2)


async def test_a_wrong_answer_is_named_with_the_function_that_gave_it() -> None:
    class Asking:
        def __call__(self, _: ApprovalRequest) -> Any:
            return "x" * 200

    wanted = 'True, False, "approve", "reject", "request_changes", or ("reject", "why")'
    with pytest.raises(TypeError) as error:
        await CallbackApprover(Asking()).ask(request())
    assert str(error.value) == f"the approver `Asking` returned 'xxx{'x' * 96}, which is not an answer here: return {wanted}"

    def say_nothing(_: ApprovalRequest) -> Any:
        return None

    asked = replace(request(), kind="question", fields={"n": Input(), "why": Input()})
    with pytest.raises(TypeError) as error:
        await CallbackApprover(say_nothing).ask(asked)
    assert str(error.value) == (
        f"the approver `{say_nothing.__qualname__}` returned None, which is not an answer here: "
        """return its fields, {'n': …, 'why': …}, or "reject\""""
    )


async def test_an_exception_of_the_function_propagates() -> None:
    async def broken(_: ApprovalRequest) -> bool:
        raise ConnectionError("the chat is down")

    with pytest.raises(ConnectionError):
        await CallbackApprover(broken).ask(request())


async def test_a_policy_without_a_matching_rule_rejects() -> None:
    answer = await PolicyApprover([]).ask(request(step="drain"))
    assert decision_and_note(answer) == ("reject", "no rule of the policy matches")
    assert (answer.by, answer.known_by, answer.gate_id, answer.step_id) == ("policy", "unverified", "gate-1", "drain")


async def test_a_form_needs_a_flow_run() -> None:
    with pytest.raises(ApprovalRequiredError) as error:
        await PrefectApprover().ask(request())
    assert str(error.value) == (
        "`nightly-backup` needs an approval, and without a flow run there is no form to answer: run it with a Prefect server"
    )


@pytest.mark.parametrize(
    ("rule", "matching"),
    [
        (Rule(), {"plan", "step", "other"}),
        (Rule(step=None), {"plan", "other"}),
        (Rule(step="drain"), {"step"}),
        (Rule(step="d*"), {"step"}),
        (Rule(plan="nightly-*"), {"plan", "step"}),
        (Rule(plan="Nightly-*"), set[str]()),
        (Rule(requested_by={"cron"}), {"plan", "step"}),
        (Rule(digests={"e" * 64}), {"other"}),
        (Rule(digests=[]), set[str]()),
        (Rule(when=lambda asked: asked.item == 2), {"step"}),
        (Rule(plan="nightly-*", requested_by={"ana"}), set[str]()),
    ],
)
async def test_a_rule_matches_if_all_its_conditions_hold(rule: Rule, matching: set[str]) -> None:
    requests = {"plan": request(), "step": request(step="drain"), "other": request(name="restart", by="ana", digest="e" * 64)}
    assert {name for name, asked in requests.items() if rule.fits(asked)} == matching


async def test_the_first_matching_rule_answers() -> None:
    policy = PolicyApprover(
        [Rule("reject", plan="prod-*", note="not by a machine"), Rule("approve", requested_by={"cron"})], by="night watch"
    )
    assert decision_and_note(await policy.ask(request(name="prod-db"))) == ("reject", "not by a machine")
    answer = await policy.ask(request())
    assert (answer.decision, answer.by, answer.known_by) == ("approve", "night watch", "unverified")


async def test_a_request_without_a_matching_rule_goes_to_the_fallback_approver() -> None:
    policy = PolicyApprover([Rule(plan="nightly-*")], otherwise=CallbackApprover(lambda _: "request_changes", by="ana"))
    answer = await policy.ask(request(name="restart"))
    assert (answer.decision, answer.by) == ("request_changes", "ana")


@pytest.mark.parametrize("step_id", [None, "pay"])
async def test_a_run_whose_approver_gave_no_answer_waits_for_one(step_id: str | None, tmp_path: Path) -> None:
    paid = list[int]()

    @tool(effect="write")
    def pay() -> None:
        """Pay."""
        paid.append(1)

    def answer(asked: ApprovalRequest) -> Any:
        return "approved" if asked.step_id == step_id else True

    plan = ExecutionPlan(description="Pay", steps=[Step(id="pay", tool_name="pay", requires_approval=True)])
    tools = ToolRegistry([pay])
    async with PlanStore(f"sqlite:///{tmp_path}/plans.db") as store:
        with pytest.raises(TypeError, match="'approved', which is not an answer here: return True"):
            await arun_plan(plan, tools=tools, store=store, offline=True, approver=CallbackApprover(answer))
        (left,) = await store.runs()
        assert [gate.step_id for gate in await store.gates.find(run_id=left.id)] == [step_id]
        assert (left.completed_at, paid) == (None, [])
        ended = await aresume_run(left.id, tools=tools, store=store, offline=True, approver=CallbackApprover(lambda _: True))
    assert (ended.status, paid) == (PlanStatus.COMPLETED, [1])


def test_a_function_as_approver_is_refused_at_the_call() -> None:
    def decide(_: ApprovalRequest) -> bool:
        raise AssertionError("nobody asks it")

    plan = ExecutionPlan(description="Pay", steps=[Step(id="pay", tool_name="pay")])
    with pytest.raises(TypeError, match=r"has no method `ask`: pass `CallbackApprover\(decide\)`"):
        run_plan(plan, tools=ToolRegistry([]), offline=True, approver=decide)  # type: ignore[arg-type]


async def test_a_name_that_contains_a_secret_is_refused_and_recorded_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "s3cr3t-of-names"
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", secret)

    @tool(effect="write")
    def pay() -> None:
        """Pay."""

    plan, tools = ExecutionPlan(description="Pay", steps=[Step(id="pay", tool_name="pay")]), ToolRegistry([pay])
    async with PlanStore(f"sqlite:///{tmp_path}/plans.db") as store:
        with pytest.raises(InvalidPlanError) as raised:
            await arun_plan(plan, tools=tools, store=store, offline=True, by=f"me {secret}", approver=CallbackApprover(lambda _: True))
        assert [(problem.code, problem.at) for problem in raised.value.problems] == [("secret-in-text", "requested_by")]
        with pytest.raises(NotApprovedError, match="the name of the person contains the value of a secret"):
            approver = CallbackApprover(lambda _: True, by=f"ana {secret}")
            await arun_plan(plan, tools=tools, store=store, offline=True, approver=approver)
        (run,) = await store.runs()
        await store.ledger.record_refusal(run.id, "no", by=f"eve {secret}")
        assert secret not in json.dumps(await store.export(run.id))
