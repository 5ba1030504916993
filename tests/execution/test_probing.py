"""Tests of writes with an unknown outcome: what their probes find, who is asked, and how the step ends."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from plan_adapter import tool
from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.ports import RecordedResolution, UnknownOutcome
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import Attempt
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.tools import Done, Failed, NotDone, ToolContext
from tests.execution.support import Execution


@dataclass
class Shop:
    """A shop that takes orders and loses its first `lost` answers; `probed` has the arguments of each probe call."""

    lost: int = 1
    arrives: bool = True  # whether a call with a lost answer was done
    probe_result: Callable[[], Any] | None = None  # replaces the lookup
    sent: list[str] = field(default_factory=list)
    calls: int = 0
    keys: list[str] = field(default_factory=list)
    probed: list[tuple[str, int, str]] = field(default_factory=list)

    def tool(self) -> Any:
        async def look(order: str, context: ToolContext) -> Done | Failed | NotDone | None:
            """Look for an order."""
            self.probed.append((order, context.attempt, context.idempotency_key))
            if self.probe_result is not None:
                return self.probe_result()
            return Done({"order": order}, note="看过了") if order in self.sent else NotDone()

        @tool(effect="write", probe=look)
        async def send(order: str, context: ToolContext, note: str = "") -> dict[str, Any]:
            """Send an order."""
            self.calls += 1
            self.keys.append(context.idempotency_key)
            if self.calls > self.lost or self.arrives:
                self.sent.append(order)
            if self.calls <= self.lost:
                raise UnknownOutcomeError("the line went dead")
            return {"order": order}

        return send

    def execution(self, *, history: RunHistory | None = None, **fields: Any) -> Execution:
        plan = ExecutionPlan(description="Send one order")
        plan.add_step("send", "Send it", {"order": "订单"}, id="send", **fields)
        return Execution(plan, [self.tool()], history=history or RunHistory())


def interrupted_attempt(**changed: Any) -> RunHistory:
    attempt = Attempt("a-1", "r-1", "send", None, 1, "send", "write", {"order": "订单"}, "key-1", datetime.now(UTC))
    return RunHistory(attempts={("send", None): 1}, unknown={("send", None): attempt})


async def test_a_write_that_the_probe_finds_done_is_not_repeated_and_gets_its_receipt() -> None:
    shop = Shop()
    execution = shop.execution()
    run = await execution.go()
    assert (run.status, run.step("send").result, shop.sent) == (PlanStatus.COMPLETED, {"order": "订单"}, ["订单"])
    assert run.step("send").reason == "the probe of `send` reports that it was done"
    [receipt] = execution.recorder.receipts
    [attempt] = execution.recorder.attempts
    assert (receipt.attempt_id, receipt.outcome, receipt.by, receipt.known_by) == (attempt.id, Outcome.SUCCEEDED, "send", "probe")
    assert (receipt.result, receipt.note) == ({"order": "订单"}, "看过了")
    assert shop.probed == [("订单", 1, shop.keys[0])]


async def test_a_write_that_the_probe_finds_not_done_is_repeated_without_using_a_retry() -> None:
    shop = Shop(arrives=False)
    execution = shop.execution()
    run = await execution.go()
    assert (run.status, shop.sent, shop.calls, run.step("send").retry_count) == (PlanStatus.COMPLETED, ["订单"], 2, 0)
    lost, done = execution.recorder.receipts
    assert (lost.outcome, lost.known_by, lost.number, done.known_by, done.number) == (Outcome.FAILED, "probe", 1, None, 2)


@pytest.mark.parametrize(("retries", "calls"), [(0, 2), (2, 6)])
async def test_a_tool_that_always_loses_its_answer_is_not_attempted_forever(retries: int, calls: int) -> None:
    shop = Shop(lost=100, arrives=False)
    run = await shop.execution(max_retries=retries).go()
    assert (run.status, run.reason, shop.calls, run.step("send").retry_count) == (PlanStatus.FAILED, RunReason.STEP_FAILED, calls, retries)


@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (2, 2)])
async def test_a_write_that_the_probe_finds_failed_ends_its_attempt_and_may_be_retried(retries: int, calls: int) -> None:
    shop = Shop(arrives=False, probe_result=lambda: Failed("the shop refused it", note="看过了"))
    execution = shop.execution(max_retries=retries)
    run = await execution.go()
    first = execution.recorder.receipts[0]
    assert (first.outcome, first.error, first.known_by, first.note) == (Outcome.FAILED, "the shop refused it", "probe", "看过了")
    assert (shop.calls, run.step("send").retry_count) == (calls, calls - 1)
    assert run.step("send").status is (StepStatus.COMPLETED if retries else StepStatus.FAILED)
    assert retries or run.step("send").error == "the shop refused it"


def fails() -> None:
    raise RuntimeError("the shop is closed")


def no_json() -> Done:
    return Done(object())


@pytest.mark.parametrize(
    ("probe_result", "logged"),
    [
        (lambda: None, "the probe `look` cannot tell"),
        (fails, "the shop is closed"),
        (lambda: True, "returned bool instead of Done, Failed, NotDone or None"),
        (no_json, "not JSON"),
    ],
    ids=["none", "raises", "garbage", "no_json"],
)
async def test_an_inconclusive_probe_leaves_the_outcome_unknown_and_logs_why(probe_result: Callable[[], Any], logged: str) -> None:
    shop = Shop(probe_result=probe_result)
    execution = shop.execution(max_retries=3)
    run = await execution.go()
    assert (run.reason, run.step("send").outcome, shop.calls, execution.recorder.receipts) == (RunReason.UNKNOWN, Outcome.UNKNOWN, 1, [])
    assert any(logged in (event.message or "") for event in execution.events if event.kind == "log")


async def test_a_probe_has_the_timeout_of_its_step() -> None:
    entered = threading.Event()
    never = threading.Event()

    def look() -> Done:
        """Look forever."""
        entered.set()
        never.wait()
        return Done()

    @tool(effect="write", probe=look)
    async def act() -> None:
        """Act, and never return."""
        await asyncio.Event().wait()

    plan = ExecutionPlan(description="Act")
    plan.add_step("act", "Act", id="act", timeout_ms=50)
    execution = Execution(plan, [act])
    try:
        run = await execution.go()
    finally:
        never.set()
    assert entered.is_set()
    assert run.step("act").outcome is Outcome.UNKNOWN
    assert any("gave no answer within 0.05 s" in (event.message or "") for event in execution.events)


@pytest.mark.parametrize("effect", ["read", "idempotent_write"])
async def test_a_repeatable_call_is_retried_without_a_probe(effect: Any) -> None:
    shop = Shop(arrives=False)
    run = await shop.execution(effect=effect, max_retries=1).go()
    assert (run.status, shop.calls, shop.probed) == (PlanStatus.COMPLETED, 2, [])


# Attempts of an earlier start


async def test_the_probe_gets_the_parameters_number_and_key_of_an_interrupted_attempt() -> None:
    shop = Shop(sent=["订单"])
    execution = shop.execution(history=interrupted_attempt())
    run = await execution.go()
    assert (run.status, run.step("send").result, shop.calls) == (PlanStatus.COMPLETED, {"order": "订单"}, 0)
    assert shop.probed == [("订单", 1, "key-1")]
    [receipt] = execution.recorder.receipts
    assert (receipt.attempt_id, receipt.number, receipt.by, receipt.known_by) == ("a-1", 1, "send", "probe")


async def test_an_interrupted_attempt_that_was_not_done_is_repeated() -> None:
    shop = Shop(lost=0)
    execution = shop.execution(history=interrupted_attempt())
    run = await execution.go()
    assert (run.status, shop.sent, shop.calls) == (PlanStatus.COMPLETED, ["订单"], 1)
    assert [(receipt.number, receipt.outcome, receipt.known_by) for receipt in execution.recorder.receipts] == [
        (1, Outcome.FAILED, "probe"),
        (2, Outcome.SUCCEEDED, None),
    ]


@pytest.mark.parametrize(("retries", "numbers"), [(0, [1]), (1, [1, 2])])
async def test_an_interrupted_attempt_that_failed_counts_as_the_first(retries: int, numbers: list[int]) -> None:
    shop = Shop(lost=0, probe_result=lambda: Failed("the shop refused it"))
    execution = shop.execution(history=interrupted_attempt(), max_retries=retries)
    run = await execution.go()
    assert ([receipt.number for receipt in execution.recorder.receipts], shop.calls) == (numbers, retries)
    assert run.step("send").status is (StepStatus.COMPLETED if retries else StepStatus.FAILED)


async def test_a_write_that_was_done_but_does_not_meet_done_when_fails_the_step() -> None:
    shop = Shop(sent=["订单"])
    execution = shop.execution(history=interrupted_attempt(), done_when="${{ result.order == 'another' }}")
    run = await execution.go()
    assert (run.step("send").status, run.step("send").outcome, shop.calls) == (StepStatus.FAILED, Outcome.FAILED, 0)
    assert "done_when is not met" in (run.step("send").error or "")


# People, who are asked if the probe cannot tell


@dataclass
class ScriptedPerson:
    """Resolves every unknown outcome with `resolution`. Implements `ports.Outcomes`."""

    resolution: RecordedResolution | None
    asked: list[UnknownOutcome] = field(default_factory=list)

    async def ask(self, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
        self.asked.append(unknown_outcome)
        return self.resolution


@pytest.mark.parametrize(
    ("resolution", "status", "reason", "sent"),
    [
        (RecordedResolution("done", "ana says so", {"order": 1}), PlanStatus.COMPLETED, None, 0),
        (RecordedResolution("again", "ana says so"), PlanStatus.COMPLETED, None, 1),
        (RecordedResolution("abort", "ana ends it"), PlanStatus.CANCELLED, RunReason.CANCELLED, 0),
        (None, PlanStatus.FAILED, RunReason.UNKNOWN, 0),
    ],
    ids=["done", "again", "abort", "nobody"],
)
@pytest.mark.parametrize("in_this_start", [True, False], ids=["lost_now", "lost_before"])
async def test_the_resolution_of_a_person_decides_how_the_step_ends(
    resolution: RecordedResolution | None, status: PlanStatus, reason: RunReason | None, sent: int, in_this_start: bool
) -> None:
    shop = Shop(lost=1 if in_this_start else 0, arrives=False, probe_result=lambda: None)
    execution = shop.execution(history=RunHistory() if in_this_start else interrupted_attempt())
    execution.outcomes = person = ScriptedPerson(resolution)
    run = await execution.go()
    assert (run.status, run.reason, len(shop.sent)) == (status, reason, sent)
    [unknown_outcome] = person.asked
    assert (unknown_outcome.step.id, unknown_outcome.attempt.number) == ("send", 1)
    assert ("the line went dead" if in_this_start else "an earlier start") in unknown_outcome.why
    if status is PlanStatus.COMPLETED:
        assert run.step("send").result == ({"order": "订单"} if sent else {"order": 1})
    else:
        assert run.message == ("ana ends it" if resolution is not None else "the outcome of `send` is unknown")


async def test_other_branches_continue_while_an_outcome_gate_is_open() -> None:
    shop = Shop(arrives=True, probe_result=lambda: None)
    looked = list[str]()
    answer: asyncio.Future[RecordedResolution] = asyncio.get_running_loop().create_future()

    class Slow:
        async def ask(self, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
            return await answer

    @tool(effect="read")
    async def observe(name: str) -> str:
        """Look."""
        looked.append(name)
        if name == "last":
            answer.set_result(RecordedResolution("done", "ana says so"))
        return name

    plan = ExecutionPlan(description="Send one order, and look elsewhere")
    plan.options.max_parallel_steps = 1  # a call that waits for a person holds no slot
    plan.add_step("send", "Send it", {"order": "a"}, id="send")
    plan.add_step("observe", "Look", {"name": "first"}, id="first")
    plan.add_step("observe", "Look", {"name": "last"}, id="last", depends_on=["first"])
    plan.add_step("observe", "Look", {"name": "after"}, id="after", depends_on=["send"])
    execution = Execution(plan, [shop.tool(), observe])
    execution.outcomes = Slow()
    run = await execution.go()
    assert (run.status, looked) == (PlanStatus.COMPLETED, ["first", "last", "after"])


async def test_stopping_a_run_withdraws_its_outcome_gate() -> None:
    shop = Shop(probe_result=lambda: None)

    class Never:
        async def ask(self, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
            execution.scope.stop.set("cancelled", "enough")
            await unknown_outcome.withdrawn
            return None

    execution = shop.execution()
    execution.outcomes = Never()
    run = await execution.go()
    assert (run.status, run.step("send").outcome) == (PlanStatus.CANCELLED, Outcome.UNKNOWN)
    assert run.message == "enough; the outcome of `send` is unknown"
