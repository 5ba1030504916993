"""A proof of identity is what a check in this package returned. What a program says about itself proves nothing."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, Step, ToolRegistry, approve, tool
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates import CallbackApprover
from plan_adapter.gates.approval import answer_to, os_user
from plan_adapter.gates.identity import Identity, identity_of_account, identity_of_name, recorded_identity
from plan_adapter.gates.policy import Policy
from plan_adapter.model.approvals import Answer, Approval, ApprovalRequest
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.plan import new_id
from plan_adapter.model.record import PlanRun
from plan_adapter.runs import acancel_run, aresolve_step, arun_plan
from plan_adapter.store import PlanStatus
from plan_adapter.store.policies import NewPolicy

PROOFS = ("ssh_signature", "totp", "os_user", "form")
ME = os_user()


class Till:
    """What was paid, and the tools that pay."""

    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool(effect="write")
        def pay(amount: int) -> None:
            """Pay."""
            if amount < 0:
                raise ValueError("not enough")
            self.paid.append(amount)

        self.tools = ToolRegistry([pay])


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[PlanStore]:
    async with PlanStore(f"sqlite:///{tmp_path}/plans.db") as opened:
        yield opened


def paying(*known_by: str, by: str = "bo", **fields: Any) -> ExecutionPlan:
    step = Step(id="pay", tool_name="pay", description="pay", parameters={"amount": 1}, requires_approval=True, **fields)
    return ExecutionPlan(description="pay", approval={"approvers": [by], "known_by": [*known_by]}, steps=[step])  # type: ignore[arg-type]


class Liar:
    """An approver that gives the answers of `change`, which says more about itself than is true."""

    def __init__(self, known_by: str, by: str = "bo", **more: Any) -> None:
        self.known_by, self.by, self.more = known_by, by, more

    async def ask(self, request: ApprovalRequest) -> Approval:
        return dataclasses.replace(answer_to(request, decision="approve", by=self.by, known_by=self.known_by), **self.more)

    async def ask_outcome(self, request: ApprovalRequest) -> Answer:
        return Answer("again", self.by, channel="os_user" if self.known_by == "os_user" else "form")


async def run(plan: ExecutionPlan, till: Till, store: PlanStore, approver: Any) -> PlanRun | NotApprovedError:
    try:
        return await arun_plan(plan, tools=till.tools, store=store, offline=True, approver=approver)
    except NotApprovedError as error:
        return error


@pytest.mark.parametrize("where", ["plan", "store"])
@pytest.mark.parametrize("known_by", PROOFS)
async def test_an_approver_that_claims_a_proof_is_refused(known_by: str, where: str, till: Till, store: PlanStore) -> None:
    if where == "store":
        policy = Policy(approvers=["bo"], known_by=[known_by], operators=[ME])  # type: ignore[list-item]
        await store.policy.set(NewPolicy(policy, 1, by=ME, known_by="os_user"))
    ended = await run(paying(*([known_by] if where == "plan" else [])), till, store, Liar(known_by))
    assert isinstance(ended, NotApprovedError)
    expected = "is recorded as signed, but has no signature" if known_by == "ssh_signature" else "bo is identified only by unverified"
    assert expected in str(ended)
    assert till.paid == []


@pytest.mark.parametrize(
    "more",
    [
        {"standing_id": "s"},
        {"used_at": dataclasses.replace(answer_to(ApprovalRequest("d", "n", "", ""), decision="approve", by="bo", known_by="")).at},
        {"signature": "-----BEGIN SSH SIGNATURE-----"},
    ],
    ids=["from a standing approval", "already used", "with a signature"],
)
@pytest.mark.parametrize("known_by", PROOFS)
async def test_no_other_field_of_an_answer_replaces_a_proof(known_by: str, more: Any, till: Till, store: PlanStore) -> None:
    ended = await run(paying("ssh_signature", "totp", "os_user", "form"), till, store, Liar(known_by, **more))
    assert isinstance(ended, NotApprovedError)
    assert till.paid == []


@pytest.mark.parametrize("known_by", [*PROOFS[1:], "not_required", "probe"])
async def test_a_claim_is_recorded_as_a_claim(known_by: str, till: Till, store: PlanStore) -> None:
    ended = await run(paying(), till, store, Liar(known_by))
    assert isinstance(ended, PlanRun)
    assert {row.known_by for row in await store.approvals(ended.id)} == {"unverified"}


async def test_the_account_of_this_process_counts_because_it_is_compared(till: Till, store: PlanStore) -> None:
    ended = await run(paying("os_user", by=ME), till, store, Liar("os_user", by=ME))
    assert isinstance(ended, PlanRun)
    assert (ended.status, till.paid) == (PlanStatus.COMPLETED, [1])
    assert {row.known_by for row in await store.approvals(ended.id)} == {"os_user"}
    refused = await run(paying("os_user", by=ME), till, store, CallbackApprover(lambda _: True, by=ME))
    assert isinstance(refused, NotApprovedError)


@pytest.mark.parametrize("known_by", PROOFS)
@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_prepared_approval_that_claims_a_proof_is_refused(known_by: str, till: Till, store: PlanStore, *, is_stored: bool) -> None:
    plan = paying(known_by)
    given = dataclasses.replace(approve(plan, tools=till.tools, by="bo"), known_by=known_by)
    if is_stored:
        await store.add_approval(given)
        assert [row.known_by for row in await store.approvals(given.approval_digest)] == ["unverified"]
    with pytest.raises(NotApprovedError):
        await arun_plan(plan, tools=till.tools, store=store, offline=True, approval=None if is_stored else given)
    assert till.paid == []


async def test_an_approval_cannot_be_stored_as_used(till: Till, store: PlanStore) -> None:
    given = approve(paying(), tools=till.tools, by="bo")
    await store.add_approval(dataclasses.replace(given, used_at=given.at))
    assert [row.used_at for row in await store.approvals(given.approval_digest)] == [None]


@pytest.mark.parametrize("known_by", ["os_user", "form"])
async def test_an_approver_that_claims_to_be_somebody_else_resolves_nothing(known_by: str, store: PlanStore) -> None:
    asked = list[str | None]()

    class Person(Liar):
        async def ask_outcome(self, request: ApprovalRequest) -> Answer | None:  # type: ignore[override]
            asked.append(request.refused)
            return await super().ask_outcome(request) if len(asked) < 2 else None

    @tool(effect="write")
    async def hang() -> None:
        """Never return."""
        await asyncio.Event().wait()

    policy = {"approvers": ["bo"], "known_by": [known_by]}
    step = Step(id="hang", tool_name="hang", timeout_ms=1)
    plan = ExecutionPlan(description="h", options=ExecutionOptions(require_approval=False), approval=policy, steps=[step])  # type: ignore[arg-type]
    ended = await arun_plan(plan, tools=ToolRegistry([hang]), store=store, offline=True, approver=Person(known_by))
    assert asked == [None, f"bo is identified only by unverified; an answer here needs {known_by}"]
    assert ended.step("hang").outcome == "unknown"
    with pytest.raises(NotApprovedError, match="bo is identified only by unverified"):
        await aresolve_step(ended.id, "hang", "done", by="bo", store=store)


async def test_a_rollback_is_requested_only_with_the_proof_that_the_plan_demands(till: Till, store: PlanStore) -> None:
    for by in ("bo", ME):
        plan = paying("os_user", by=by)
        plan.steps[0].requires_approval, plan.options.require_approval = False, False
        plan.steps.append(Step(id="fail", tool_name="pay", parameters={"amount": -1}, depends_on=["pay"]))
        plan.steps.append(Step(id="asks", tool_name="pay", parameters={"amount": 2}, depends_on=["fail"], requires_approval=True))
        failed = await arun_plan(plan, tools=till.tools, store=store, offline=True)
        cancel = acancel_run(failed.id, reason="enough", rollback=True, by=by, tools=till.tools, store=store, offline=True)
        if by == ME:
            await cancel
        else:
            with pytest.raises(NotApprovedError, match="bo is identified only by unverified; an answer here needs os_user"):
                await cancel


@pytest.mark.parametrize("known_by", PROOFS)
async def test_the_next_policy_is_not_set_with_a_claimed_proof(known_by: str, store: PlanStore) -> None:
    demanded = Policy(known_by=[known_by], operators=["bo"])  # type: ignore[list-item]
    await store.policy.set(NewPolicy(demanded, 1, by="ana", known_by="os_user"))
    with pytest.raises(NotApprovedError, match="bo is identified by unverified only"):
        await store.policy.set(NewPolicy(Policy(), 2, by="bo", known_by=known_by))


MAKERS: tuple[Callable[[], object], ...] = (
    lambda: Identity("bo", "totp", None),
    lambda: Identity("bo", "totp", object()),
    lambda: dataclasses.replace(identity_of_name("bo"), known_by="totp"),
    lambda: dataclasses.replace(identity_of_account(), by="bo"),
)


@pytest.mark.parametrize("make", MAKERS)
def test_an_identity_is_only_made_by_a_check(make: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        make()


def test_an_identity_says_what_was_checked() -> None:
    assert (identity_of_account().by, identity_of_account().known_by) == (ME, "os_user")
    assert identity_of_account("bo").known_by == identity_of_name(ME).known_by == "unverified"
    row = dataclasses.replace(answer_to(ApprovalRequest("d", "n", "", ""), decision="approve", by="bo", known_by="totp"), id=new_id())
    assert recorded_identity(row).known_by == "totp"
