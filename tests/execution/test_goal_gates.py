"""Tests of gates in goals: which writes and questions of the model open one, and what each answer does."""

import asyncio
import datetime
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel

from plan_adapter.execution.ports import GateRefusal, RecordedResolution, UnknownOutcome
from plan_adapter.model.approvals import Resolution
from plan_adapter.model.errors import UnknownOutcomeError
from plan_adapter.model.goals import ToolCallIntent
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import Step
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.tools.tool import tool
from tests.execution.pursuing import Board, ScriptedGates, ScriptedModel, ends, goal_plan, reads, says, writes
from tests.execution.support import Execution

REJECTED = GateRefusal(RunReason.REJECTED, "bo rejected it: say it politely")


def goal_execution(model: ScriptedModel, board: Board, gates: ScriptedGates, **fields) -> Execution:
    return Execution(goal_plan(**fields), board.tools, goal_model=model, gates=gates)


async def test_a_write_waits_for_a_confirmation_of_exactly_this_call():
    board, gates = Board(), ScriptedGates()
    model = ScriptedModel([writes(note="hello"), ends()])
    execution = goal_execution(model, board, gates)
    run = await execution.go()
    (call,) = gates.asked
    asks = "A model asks for this call: 好\n\nbecause"
    assert (run.status, board.notes) == (PlanStatus.COMPLETED, ["hello"])
    assert (call.name, call.item, call.effect) == ("report[round 1: post(note=hello)]", 0, "write")
    assert (call.parameters, call.step.tool_name, call.step.description) == ({"note": "hello"}, "post", asks)
    (intent,) = [attempt for attempt in execution.recorder.attempts if attempt.tool_name == "post"]
    assert (intent.kind, intent.item, intent.approval_digest) == ("step", 0, call.approval_digest)
    assert model.seen[1].evidence[0].source == "write_receipt"


async def test_the_model_gets_the_rejection_reason_and_cannot_repeat_the_same_call():
    board, gates = Board(), ScriptedGates([REJECTED])
    model = ScriptedModel([writes(note="hello"), writes(note="hello"), writes(note="hello, please"), ends("E1")])
    run = await goal_execution(model, board, gates).go()
    assert (run.status, board.notes, len(gates.asked)) == (PlanStatus.COMPLETED, ["hello, please"], 2)
    first, again = (goal.rounds[-1].refusal for goal in model.seen[1:3])
    assert first == "bo rejected it: say it politely"
    assert again == (
        "a person refused this call before: bo rejected it: say it politely; change it, ask the person with `ask_user`, or use `abort`"
    )


async def test_a_model_that_repeats_a_rejected_call_fails_without_a_second_gate():
    board, gates = Board(), ScriptedGates([REJECTED])
    run = await goal_execution(ScriptedModel([writes(note="hello")]), board, gates).go()
    assert (run.reason, board.notes, len(gates.asked)) == (RunReason.STEP_FAILED, [], 1)
    assert "3 decisions in a row could not be carried out" in (run.step("report").error or "")


SAME_CALLS = {
    "a default written out": {"path": "a", "n": 1},
    "a number as text": {"path": "a", "n": "1"},
    "a whole number with a point": {"path": "a", "n": 1.0},
    "an empty list that is the default": {"path": "a", "tags": []},
    "a truth value as text": {"path": "a", "force": "false"},
    "a default of a part": {"path": "a", "at": {"zone": "eu"}},
}


@pytest.mark.parametrize("again", SAME_CALLS.values(), ids=[*SAME_CALLS])
async def test_a_rejected_call_cannot_be_repeated_in_other_words(again):
    class Place(BaseModel):
        zone: str = "eu"
        row: int = 0

    put_calls = []

    @tool(effect="write")
    def put(path: str, n: int = 1, tags: list[str] = [], force: bool = False, at: Place = Place()) -> int:  # noqa: B006, B008
        """Put."""
        put_calls.append((path, n, tags, force, at))
        return 1

    gates = ScriptedGates([REJECTED])
    model = ScriptedModel([writes("put", path="a"), writes("put", **again), writes("put", path="b"), ends("E1")])
    run = await Execution(goal_plan(tools=("put",)), [put], goal_model=model, gates=gates).go()
    assert (run.status, [call[0] for call in put_calls], len(gates.asked)) == (PlanStatus.COMPLETED, ["b"], 2)
    everything = {"n": 1, "tags": [], "force": False, "at": {"zone": "eu", "row": 0}}
    assert [call.parameters for call in gates.asked] == [{"path": "a", **everything}, {"path": "b", **everything}]
    assert gates.asked[0].name == "report[round 1: put(path=a)]"


async def test_a_gate_of_a_goal_shows_the_value_that_the_tool_gets():
    got = []

    @tool(effect="write")
    def put(n: int, at: datetime.date) -> int:
        """Put."""
        got.append((n, at))
        return 1

    gates = ScriptedGates()
    execution = Execution(
        goal_plan(tools=("put",)), [put], goal_model=ScriptedModel([writes("put", n="7", at="2026-11-25"), ends()]), gates=gates
    )
    await execution.go()
    assert (gates.asked[0].parameters, got) == ({"n": 7, "at": "2026-11-25"}, [(7, datetime.date(2026, 11, 25))])
    (intent,) = [attempt for attempt in execution.recorder.attempts if attempt.tool_name == "put"]
    assert intent.parameters == {"n": 7, "at": "2026-11-25"}


async def test_a_call_that_does_not_fit_fails_as_the_model_wrote_it():
    @tool(effect="write")
    def put(n: int) -> int:
        """Put."""
        return n

    gates, model = ScriptedGates(), ScriptedModel([writes("put", n="seven"), ends()])
    await Execution(goal_plan(tools=("put",)), [put], goal_model=model, gates=gates).go()
    assert "`n` should be an integer" in model.seen[1].evidence[0].summary
    assert gates.asked == []


async def test_a_person_answers_a_question_of_the_model():
    board, gates = Board(), ScriptedGates([{"answer": "三点"}])
    model = ScriptedModel([says("ask_user", speak="When?"), ends()])
    run = await goal_execution(model, board, gates).go()
    assert run.status is PlanStatus.COMPLETED
    (call,) = gates.asked
    assert call.parameters == {"question": "When?"}
    assert call.step.ask is not None
    assert list(call.step.ask.fields) == ["answer"]
    (evidence,) = model.seen[1].evidence
    assert (evidence.source, evidence.name, evidence.summary) == ("user_reply", "ask_user", '{"answer":"三点"}')
    assert model.seen[1].rounds[0].observation == {"answer": "三点"}


async def test_the_model_learns_that_its_question_was_rejected():
    gates = ScriptedGates([REJECTED])
    model = ScriptedModel([says("ask_user", speak="When?"), reads(), ends()])
    run = await goal_execution(model, Board(), gates).go()
    assert run.status is PlanStatus.COMPLETED
    assert model.seen[1].rounds[0].refusal == REJECTED.message


async def test_an_expired_gate_ends_the_run():
    expired = GateRefusal(RunReason.EXPIRED, "nobody answered within 5 min")
    board = Board()
    run = await goal_execution(ScriptedModel([writes(note="x")]), board, ScriptedGates([expired])).go()
    assert (run.status, run.reason, run.message) == (PlanStatus.CANCELLED, RunReason.EXPIRED, expired.message)
    assert board.notes == []


async def test_the_model_learns_that_an_expired_gate_was_skipped():
    skipped = GateRefusal(RunReason.EXPIRED, "nobody answered within 5 min", ends_run=False)
    model = ScriptedModel([writes(note="x"), reads(), ends()])
    run = await goal_execution(model, Board(), ScriptedGates([skipped])).go()
    assert run.status is PlanStatus.COMPLETED
    assert model.seen[1].rounds[0].refusal == "nobody answered within 5 min"


async def test_a_run_that_does_not_wait_for_gates_leaves_the_goal_open():
    class LeftOpen(ScriptedGates):
        async def ask(self, call):
            self.asked.append(call)
            call.waiting.set_result(None)
            await call.left

    board, gates = Board(), LeftOpen(waits=False)
    execution = goal_execution(ScriptedModel([writes(note="x")]), board, gates)
    await run_until_ended_or_left(execution)
    assert execution.scope.is_left
    assert not execution.run.step("report").status.has_ended
    assert board.notes == []


async def run_until_ended_or_left(execution: Execution) -> None:
    try:
        await execution.go()
    except ValueError:  # a run with an open step has no final status
        assert execution.scope.is_left


async def test_a_call_with_invalid_arguments_is_evidence_and_opens_no_gate():
    gates = ScriptedGates()
    model = ScriptedModel([writes(text="x"), reads(), ends("E2")])
    run = await goal_execution(model, Board(), gates).go()
    assert (run.status, gates.asked) == (PlanStatus.COMPLETED, [])
    assert not model.seen[1].evidence[0].success


async def test_an_always_executed_call_opens_no_gate_and_logs_the_gate_text():
    board, gates = Board(), ScriptedGates()
    execution = goal_execution(ScriptedModel([writes(note="*hello*"), ends()]), board, gates)
    execution.plan.approval = ApprovalPolicy(always_execute=["post"])
    run = await execution.go()
    assert (run.status, gates.asked, board.notes) == (PlanStatus.COMPLETED, [], ["*hello*"])
    (text,) = [text for text in execution.log if "nobody is asked" in text]
    assert text.splitlines() == [
        "nobody is asked, because the plan always executes `post`",
        "A model asks for this call: 好",
        "",
        "because",
        "**It writes and cannot be undone.** It calls `post` with:",
        "- `note`: `*hello*`",
    ]
    assert [attempt.tool_name for attempt in execution.recorder.attempts if attempt.allowed_by is not None] == ["post"]


async def test_model_messages_are_emitted_as_events_unless_a_gate_shows_them():
    gates = ScriptedGates([{"answer": "三点"}])
    answers = [reads(), says("ask_user", speak="When?"), writes(note="hello"), says("continue", speak="1. look\n2. end"), ends("E3")]
    execution = goal_execution(ScriptedModel(answers), Board(), gates)
    await execution.go()
    spoken = [(event.step.id, event.message) for event in execution.events if event.kind == "spoken"]
    assert spoken == [("report", "好"), ("report", "1. look\n2. end"), ("report", "好")]


async def test_model_messages_before_an_always_executed_call_are_emitted_as_events():
    execution = goal_execution(ScriptedModel([writes(note="x"), ends()]), Board(), ScriptedGates())
    execution.plan.approval = ApprovalPolicy(always_execute=["post"])
    await execution.go()
    assert [event.message for event in execution.events if event.kind == "spoken"] == ["好", "好"]


async def test_a_goal_that_requires_approval_has_gates_for_its_reads_too():
    gates = ScriptedGates()
    run = await goal_execution(ScriptedModel([reads(), ends()]), Board(), gates, requires_approval=True).go()
    assert (run.status, [call.name for call in gates.asked]) == (PlanStatus.COMPLETED, ["report[round 1: look()]"])


async def test_a_confirm_decision_makes_no_write_without_a_gate():
    board = Board()
    call = ToolCallIntent(name="post", arguments={"note": "x"})
    run = await Execution(goal_plan(), board.tools, goal_model=ScriptedModel([says("confirm", tool_call=call)]), gates=None).go()
    assert (run.step("report").status, board.notes) == (StepStatus.FAILED, [])


@pytest.mark.parametrize("number", [1, 2])
async def test_stopping_the_run_ends_the_goal_between_two_rounds(number):
    board, gates = Board(), ScriptedGates()
    model = ScriptedModel([reads()])
    execution = goal_execution(model, board, gates)
    decide = model.decide

    async def stop_and_decide(goal):
        if len(model.seen) == number:
            execution.scope.stop.set("cancelled", "ana cancelled it")
        return await decide(goal)

    model.decide = stop_and_decide
    run = await execution.go()
    assert (run.status, run.reason, run.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, "ana cancelled it")
    assert run.step("report").status is StepStatus.FAILED


async def test_cancelling_while_the_model_decides_leaves_no_unknown_outcome():
    board, model = Board(), ScriptedModel([reads()])
    execution = goal_execution(model, board, ScriptedGates())

    async def slow(goal):
        execution.scope.stop.set("cancelled", "ana cancelled it")
        await asyncio.Event().wait()

    model.decide = slow
    run = await execution.go()
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.CANCELLED)
    assert run.step("report").outcome is Outcome.FAILED


@dataclass
class ScriptedOutcomes:
    """Resolves every unknown outcome with `resolution`. Implements `ports.Outcomes`."""

    resolution: Resolution
    asked: list[UnknownOutcome] = field(default_factory=list)

    async def ask(self, unknown_outcome: UnknownOutcome) -> RecordedResolution:
        self.asked.append(unknown_outcome)
        return RecordedResolution(self.resolution, f"ana recorded `{self.resolution}`", result=7)


def lossy_board() -> Board:
    board = Board()

    @tool(effect="write")
    def post(note: str) -> int:
        """Post a note, and lose the first answer."""
        board.notes.append(note)
        if len(board.notes) == 1:
            raise UnknownOutcomeError("the connection was cut")
        return len(board.notes)

    board.tools[1] = post
    return board


async def test_an_unknown_outcome_ends_the_goal_if_nobody_can_resolve_it():
    board = lossy_board()
    run = await goal_execution(ScriptedModel([writes(note="x")]), board, ScriptedGates()).go()
    assert (run.status, run.reason, run.step("report").outcome) == (PlanStatus.FAILED, RunReason.UNKNOWN, Outcome.UNKNOWN)
    assert board.notes == ["x"]


@pytest.mark.parametrize(("resolution", "notes", "confirmations"), [("done", ["x"], 1), ("again", ["x", "x"], 2)])
async def test_a_person_resolves_the_unknown_outcome_of_a_goals_write(resolution, notes, confirmations):
    board, gates, outcomes = lossy_board(), ScriptedGates(), ScriptedOutcomes(resolution)
    model = ScriptedModel([writes(note="x"), ends()])
    execution = goal_execution(model, board, gates)
    execution.outcomes = outcomes
    run = await execution.go()
    assert (run.status, board.notes, len(gates.asked), len(outcomes.asked)) == (PlanStatus.COMPLETED, notes, confirmations, 1)
    assert outcomes.asked[0].attempt.label == "round 1: post(note=x)"
    assert model.seen[1].evidence[0].summary == ("7" if resolution == "done" else "2")


async def test_an_aborted_write_cancels_the_run():
    board = lossy_board()
    execution = goal_execution(ScriptedModel([writes(note="x")]), board, ScriptedGates())
    execution.outcomes = ScriptedOutcomes("abort")
    run = await execution.go()
    assert (run.status, run.reason, board.notes) == (PlanStatus.CANCELLED, RunReason.CANCELLED, ["x"])


async def test_a_failed_step_ends_a_parallel_goal_after_its_current_call():
    board = Board()
    failing = asyncio.Event()

    @tool(effect="read")
    async def fail() -> None:
        """Fail once the model has been asked."""
        await failing.wait()
        raise ValueError("broken")

    model = ScriptedModel([reads()])
    plan = goal_plan()
    plan.steps.append(Step(id="other", tool_name="fail"))
    plan.options.allow_parallel = True
    decide = model.decide

    async def decide_and_fail_other(goal):
        failing.set()
        return await decide(goal)

    model.decide = decide_and_fail_other
    run = await Execution(plan, [*board.tools, fail], goal_model=model, gates=ScriptedGates()).go()
    assert run.status is PlanStatus.FAILED
    assert run.step("report").error == "stopped because `other` failed"
    assert len(model.seen) < 5
