"""Tests of one step: attempts, retries, intents, receipts, results, and what a resumed run repeats."""

import asyncio
from pathlib import Path

import pytest

from plan_adapter.execution.call_arguments import RetryPolicy
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.model.errors import StoreError, ToolError, UnknownOutcomeError
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.plan import Step
from plan_adapter.model.record import Attempt, Receipt
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.tools.tool import ToolContext, tool
from tests.execution.support import Execution, MemoryRecorder, flaky, plan_of


async def test_a_failing_step_is_tried_again_until_it_succeeds():
    plan = plan_of({"a": []})
    plan.step("a").max_retries = 3
    execution = Execution(plan, [flaky(2)])
    run = await execution.go()
    assert (run.step("a").status, run.step("a").result) == (StepStatus.COMPLETED, 3)
    assert (run.step("a").retry_count, run.step("a").attempts) == (2, 3)
    assert [(r.number, r.outcome, r.error) for r in execution.recorder.receipts] == [
        (1, Outcome.FAILED, "try 1 failed"),
        (2, Outcome.FAILED, "try 2 failed"),
        (3, Outcome.SUCCEEDED, None),
    ]
    assert execution.kinds("a") == ["step_started", "attempt_failed", "attempt_failed", "step_completed"]


async def test_a_failing_step_is_tried_again_until_its_retries_are_spent():
    plan = plan_of({"a": []})
    plan.step("a").max_retries = 2
    execution = Execution(plan, [flaky(9)])
    run = await execution.go()
    assert (run.status, run.step("a").error) == (PlanStatus.FAILED, "try 3 failed")
    assert len(execution.recorder.attempts) == 3


async def test_every_attempt_has_an_intent_before_it_and_the_same_key():
    seen: list[tuple[int, int, str]] = []

    @tool(effect="idempotent_write")
    def work(name: str, context: ToolContext) -> None:
        """Record the attempt."""
        seen.append((len(execution.recorder.attempts), context.attempt, context.idempotency_key))
        if context.attempt < 3:
            raise ToolError("again")

    plan = plan_of({"a": []})
    plan.step("a").max_retries = 5
    execution = Execution(plan, [work])
    await execution.go()
    assert [row[:2] for row in seen] == [(1, 1), (2, 2), (3, 3)]
    assert len({row[2] for row in seen}) == 1
    assert {attempt.idempotency_key for attempt in execution.recorder.attempts} == {seen[0][2]}


def test_retry_delays_grow_by_the_backoff_and_vary_only_by_the_jitter():
    step = Step(tool_name="x", max_retries=3, retry_delay_ms=100, retry_backoff=2.0, retry_jitter=0.5)
    policy, failed = RetryPolicy.of(step), AttemptEnd("failed", 1)
    assert policy.planned_delays() == [0.1, 0.2, 0.4]
    for tries, planned in ((1, 0.1), (2, 0.2), (3, 0.4)):
        for _ in range(50):
            delay = policy.delay_after(failed, tries)
            assert delay is not None
            assert planned * 0.5 <= delay <= planned * 1.5
    assert policy.delay_after(failed, 4) is None
    for outcome in ("succeeded", "unknown", "cancelled", "timed_out"):
        assert policy.delay_after(AttemptEnd(outcome, 1), 1) is None


async def test_a_step_that_waits_for_its_retry_holds_no_slot():
    order: list[str] = []

    @tool(effect="read")
    def work(name: str) -> None:
        """Fail once as `a`."""
        order.append(name)
        if order == ["a"]:
            raise ToolError("once")

    plan = plan_of({"a": [], "b": []})
    plan.step("a").max_retries, plan.step("a").retry_delay_ms = 1, 100
    await Execution(plan, [work]).go()
    assert order == ["a", "b", "a"]


async def test_a_false_done_when_fails_the_attempt_and_a_true_one_ends_it():
    plan = plan_of({"a": []})
    plan.step("a").done_when, plan.step("a").max_retries = "${{ result >= 3 }}", 5
    execution = Execution(plan, [flaky(0)])
    run = await execution.go()
    assert run.step("a").result == 3
    assert execution.recorder.receipts[0].error == "done_when is not met: ${{ result >= 3 }}; result is 1"


@pytest.mark.parametrize(
    ("done_when", "shown"),
    [
        ("${{ result.rows.all(row, row.bad == 0) }}", '; result.rows is [{"bad": 2}]'),
        ("${{ result.name == 'ana' && result.name.size() == 3 }}", '; result.name is "王小明"'),
        ("${{ result['rows'][0].bad == 0 }}", "; result.rows[0].bad is 2"),
        ("${{ result.long == '' }}", f'; result.long is "{"x" * 299}…'),
        ("${{ 1 == 2 }}", ""),
    ],
)
async def test_a_false_done_when_shows_the_parts_of_the_result_that_it_uses(done_when: str, shown: str):
    @tool(effect="read")
    def work(name: str) -> dict[str, object]:
        """Look."""
        return {"rows": [{"bad": 2}], "name": "王小明", "long": "x" * 5000}

    plan = plan_of({"a": []})
    plan.step("a").done_when = done_when
    run = await Execution(plan, [work]).go()
    assert run.step("a").error == f"done_when is not met: {done_when}{shown}"


async def test_a_large_result_goes_to_a_file_that_the_receipt_names(tmp_path: Path):
    @tool(effect="read")
    def work(name: str) -> str:
        """Return a large text."""
        return "长" * 5000

    execution = Execution(plan_of({"a": []}), [work], limit_bytes=4096, folder=tmp_path)
    result = (await execution.go()).step("a").result
    assert isinstance(result, dict)
    assert set(result) == {"path", "size", "digest"}
    assert Path(str(result["path"])).read_text(encoding="utf-8") == '"' + "长" * 5000 + '"'
    assert execution.recorder.receipts[0].result == result


async def test_hooks_see_every_event_and_a_failing_hook_changes_nothing(caplog: pytest.LogCaptureFixture):
    calls: list[str] = []

    async def on_start(run, step):
        await asyncio.sleep(0)
        calls.append(f"start {step.id}")

    def on_complete(run, step):
        calls.append(f"complete {step.id} {step.result}")
        raise RuntimeError("the hook is broken")

    def on_failed(run, step, error):
        calls.append(f"failed {step.id} {error}")

    plan = plan_of({"a": [], "b": []})
    plan.step("b").tool_name = "broken"

    @tool(effect="read")
    def broken(name: str) -> None:
        """Fail."""
        raise ToolError("no")

    hooks = Hooks(on_step_start=on_start, on_step_complete=on_complete, on_step_failed=on_failed)
    run = await Execution(plan, [flaky(0), broken], hooks=hooks).go()
    assert calls == ["start a", "complete a 1", "start b", "failed b no"]
    assert run.step("a").status is StepStatus.COMPLETED
    assert "the hook is broken" in caplog.text


async def test_a_write_cancelled_midway_has_an_unknown_outcome_and_no_receipt():
    begun = asyncio.Event()

    @tool(effect="write")
    async def work(name: str) -> None:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()

    execution = Execution(plan_of({"a": []}), [work])
    running = asyncio.create_task(execution.go())
    await begun.wait()
    execution.scope.stop.set("cancelled", "enough")
    run = await running
    assert run.step("a").outcome is Outcome.UNKNOWN
    assert (len(execution.recorder.attempts), execution.recorder.receipts) == (1, [])


async def test_a_call_is_not_made_if_its_intent_cannot_be_written():
    called: list[str] = []

    @tool(effect="write")
    def work(name: str) -> None:
        """Note the call."""
        called.append(name)

    execution = Execution(plan_of({"a": [], "b": ["a"], "c": ["b"]}), [work], recorder=MemoryRecorder(fail_at=2))
    with pytest.raises(StoreError, match="the disk is full"):
        await execution.go()
    assert called == ["a"]


async def test_a_resumed_run_carries_succeeded_steps_and_repeats_only_repeatable_ones():
    called: list[tuple[str, int]] = []

    @tool(effect="read")
    def work(name: str, context: ToolContext) -> str:
        """Note the call."""
        called.append((name, context.attempt))
        return name

    @tool(effect="write")
    def push(name: str) -> None:
        """Note the call."""
        called.append((name, 0))

    plan = plan_of({"done": [], "half": ["done"], "new": ["half"]}, continue_on_error=True)
    plan.add_step("push", "pushed", {"name": "pushed"}, id="pushed")
    first = Execution(plan, [work, push])
    history = RunHistory.of(
        attempts=[_attempt("1", "done", "read"), _attempt("2", "half", "read"), _attempt("3", "pushed", "write")],
        receipts=[Receipt("1", "r", "done", None, 1, Outcome.SUCCEEDED, "from before", None, first.recorder.now(), 1)],
    )
    run = await Execution(plan, [work, push], history=history).go()
    assert called == [("half", 2), ("new", 1)]
    assert (run.step("done").carried, run.step("done").result) == (True, "from before")
    assert run.step("pushed").outcome is Outcome.UNKNOWN
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.UNKNOWN)


def _attempt(attempt_id: str, step_id: str, effect: str) -> Attempt:
    return Attempt(attempt_id, "r", step_id, None, 1, "work", effect, {}, "key", MemoryRecorder().now())


@pytest.mark.parametrize(("effect", "outcome", "receipts"), [("write", Outcome.UNKNOWN, 0), ("read", Outcome.FAILED, 1)])
async def test_a_tool_can_report_an_unknown_outcome(effect: str, outcome: Outcome, receipts: int):
    @tool(effect=effect)
    def work(name: str) -> None:
        """Lose the connection."""
        raise UnknownOutcomeError("the connection broke after the request was sent")

    execution = Execution(plan_of({"a": []}), [work])
    run = await execution.go()
    assert run.step("a").outcome is outcome
    assert len(execution.recorder.receipts) == receipts


async def test_log_lines_of_a_tool_are_shown_with_their_step():
    @tool(effect="read")
    def work(name: str, context: ToolContext) -> None:
        """Log."""
        context.logger.info("第 %d 行", 1)

    execution = Execution(plan_of({"a": []}), [work])
    await execution.go()
    assert [(event.step.id, event.message) for event in execution.events if event.kind == "log" and event.step] == [("a", "第 1 行")]
