"""Tests of goals round by round: what the model sees, which calls are made, and how the step ends."""

import pytest

from plan_adapter.model.goals import ToolCallIntent, Verdict
from plan_adapter.model.plan import Step
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.tools.tool import ToolContext, tool
from tests.execution.pursuing import BROKEN, Board, ScriptedGates, ScriptedModel, ends, gives_up, goal_plan, reads, says, writes
from tests.execution.support import Execution


def goal_execution(model: ScriptedModel, board: Board | None = None, gates: ScriptedGates | None = None, **fields) -> Execution:
    return Execution(goal_plan(**fields), (board or Board()).tools, goal_model=model, gates=gates or ScriptedGates())


async def test_a_goal_reads_and_ends_with_its_evidence():
    board = Board()
    board.notes.append("hello")
    model = ScriptedModel([reads(), ends("E1 shows the note")])
    execution = goal_execution(model, board)
    run = await execution.go()
    step = run.step("report")
    assert (run.status, step.status, step.outcome) == (PlanStatus.COMPLETED, StepStatus.COMPLETED, Outcome.SUCCEEDED)
    assert step.result["summary"] == "好"
    assert (step.result["rounds"], step.result["results"]) == (2, {"look": ["hello"]})
    (evidence,) = step.result["evidence"]
    assert (evidence["id"], evidence["source"], evidence["name"], evidence["success"]) == ("E1", "tool_observation", "look", True)
    assert evidence["summary"] == '["hello"]'
    assert [(attempt.kind, attempt.item, attempt.tool_name) for attempt in execution.recorder.attempts] == [
        ("decision", 0, "decide"), ("step", 0, "look"), ("decision", 1, "decide"), ("check", 1, "check"), ("step", None, "goal"),
    ]  # fmt: skip
    assert len(execution.recorder.receipts) == 5


async def test_the_model_sees_the_goal_its_tools_the_plan_and_earlier_results():
    board = Board()
    model = ScriptedModel([reads(), ends()])
    plan = goal_plan()
    plan.steps.insert(0, Step(id="first", tool_name="look", parameters={}))
    plan.steps[1].goal = "Tell of ${{ steps.first.result }}"
    board.notes.append("an old note")
    await Execution(plan, board.tools, goal_model=model, gates=ScriptedGates()).go()
    goal = model.seen[0]
    assert (goal.goal, goal.step_id, goal.step_index, goal.is_last) == ('Tell of ["an old note"]', "report", 1, True)
    assert [(tool["name"], tool["description"]) for tool in goal.tools] == [("look", "Read the notes."), ("post", "Post a note.")]
    assert goal.effects == {"look": "read", "post": "write"}
    assert goal.plan == ("first: completed", "report: running")
    assert goal.context == {"steps": {"first": ["an old note"]}}
    assert [goal_round.number for goal_round in model.seen[1].rounds] == [1]


async def test_arguments_from_the_model_are_never_evaluated_as_expressions():
    model = ScriptedModel([reads(at="${{ inputs.nothing }} ${{ secrets.token }}"), ends()])
    execution = goal_execution(model)
    assert (await execution.go()).status is PlanStatus.COMPLETED
    (call,) = [attempt for attempt in execution.recorder.attempts if attempt.tool_name == "look"]
    assert call.parameters == {"at": "${{ inputs.nothing }} ${{ secrets.token }}"}


async def test_a_failed_call_is_evidence_that_the_model_sees():
    model = ScriptedModel([reads(wrong=1), reads(), ends("E2")])
    run = await goal_execution(model).go()
    failed, found = model.seen[2].evidence
    assert (failed.success, found.success) == (False, True)
    assert "wrong" in failed.summary
    assert run.status is PlanStatus.COMPLETED


async def test_a_goal_without_a_condition_needs_a_successful_call_as_evidence():
    model = ScriptedModel([reads(wrong=1), ends("E1 shows it"), reads(), ends("E1, E2")])
    run = await goal_execution(model).go()
    assert "cites only calls that failed" in model.seen[2].rounds[-1].refusal
    assert (run.status, run.step("report").result["rounds"]) == (PlanStatus.COMPLETED, 4)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (BROKEN, "the answer is not JSON"),
        (reads("drop"), "this step has no tool `drop`: use one of `look`, `post`"),
        (reads("post", note="x"), "`post` does more than read: use `confirm` with the same `tool_call`"),
        (ends("E1"), "evidence: there is no evidence yet: call a tool first, with `continue` for a read and `confirm` for a write"),
        (says("confirm"), "`confirm` without `tool_call`: write the call that a person should confirm"),
        (says("ask_user", speak=""), "`ask_user` without a question: write it in `speak`"),
    ],
)
async def test_three_invalid_decisions_in_a_row_fail_the_step(answer, fault):
    board, model = Board(), ScriptedModel([answer])
    run = await goal_execution(model, board).go()
    step = run.step("report")
    assert (run.status, run.reason, step.reason) == (PlanStatus.FAILED, RunReason.STEP_FAILED, "failed")
    assert step.error == f"3 decisions in a row could not be carried out; the last one: {fault}"
    assert (len(model.seen), board.notes) == (3, [])


async def test_only_an_executed_round_resets_the_count_of_invalid_decisions():
    model = ScriptedModel([BROKEN, BROKEN, reads(), BROKEN, ends("nothing is cited"), says("continue"), BROKEN])
    run = await goal_execution(model).go()
    assert run.step("report").error == "3 decisions in a row could not be carried out; the last one: the answer is not JSON"
    assert len(model.seen) == 7
    assert model.seen[5].rounds[-1].refusal == "evidence: `goal_check` has to cite evidence by its id: `E1`"


async def test_done_is_refused_while_other_steps_remain_but_next_plan_is_accepted():
    board, model = Board(), ScriptedModel([reads(), ends(), ends(action="next_plan")])
    plan = goal_plan()
    plan.steps.append(Step(id="after", tool_name="look", depends_on=["report"]))
    run = await Execution(plan, board.tools, goal_model=model, gates=ScriptedGates()).go()
    assert run.status is PlanStatus.COMPLETED
    assert "use `next_plan`" in model.seen[2].rounds[-1].refusal


JUDGED = "not judged, because another check failed"


@pytest.mark.parametrize(
    ("end", "flow", "evidence"),
    [
        (ends(), "`done` ends the plan, and other steps of it are left: use `next_plan`", JUDGED),
        (ends("all is well"), "`done` ends the plan, and other", "`goal_check` has to cite evidence by its id: `E1`"),
        (ends("E1, E7", "next_plan"), "", "`goal_check` cites `E7`, which does not exist: the evidence is `E1`"),
        (says("next_plan", goal_check="E1", tool_call=ToolCallIntent(name="post")), "nobody confirmed `post`: make the call first", JUDGED),
    ],
)
async def test_ending_a_goal_checks_flow_evidence_and_safety_each_with_a_reason(end, flow, evidence):
    board, model = Board(), ScriptedModel([reads(), end, ends(action="next_plan")])
    plan = goal_plan(done_when="A note says hello")
    plan.steps.append(Step(id="after", tool_name="look", depends_on=["report"]))
    model.verdicts.append(Verdict(verdict="met", reason="E1 says hello"))
    execution = Execution(plan, board.tools, goal_model=model, gates=ScriptedGates())
    assert (await execution.go()).status is PlanStatus.COMPLETED
    refused, met = [receipt.result for receipt in execution.recorder.receipts if receipt.kind == "check"]
    assert (refused["verdict"], refused["flow"]["passed"], refused["evidence"]["passed"]) == ("not_met", not flow, False)
    assert flow in refused["flow"]["reason"]
    assert refused["evidence"]["reason"] == evidence
    assert refused["safety"] == {"passed": True, "reason": "nothing was written"}
    faults = {name: refused[name]["reason"] for name in ("flow", "evidence") if not refused[name]["passed"]}
    reasons = [f"{name}: {reason}" for name, reason in faults.items() if reason != JUDGED]
    assert model.seen[2].rounds[-1].refusal == "; ".join(reasons)
    assert met["evidence"] == {"passed": True, "reason": "E1 says hello"}
    assert [text for text in execution.log if text.startswith("met; ")] == [
        "met; flow passed: other steps of the plan are left; evidence passed: E1 says hello; safety passed: nothing was written"
    ]


async def test_the_verifier_is_not_asked_again_without_new_evidence():
    verdicts = [Verdict(verdict="not_met", reason="no note"), Verdict(verdict="met")]
    model = ScriptedModel([reads(), ends(), ends("E1, really"), reads(), ends("E2"), writes(note="hello"), ends("E3")], verdicts)
    run = await goal_execution(model, done_when="A note says hello").go()
    assert (run.status, len(model.judged)) == (PlanStatus.COMPLETED, 2)
    for number in (3, 5):  # the same read with the same result is no new evidence
        assert "safety: done_when was judged with this evidence, and is not met: find new" in model.seen[number].rounds[-1].refusal


async def test_a_goal_ends_only_if_the_guards_of_its_called_tools_pass():
    board = Board()

    def two_notes(context: ToolContext) -> str | None:
        """Want two notes."""
        if not board.notes:
            raise ValueError("nothing to guard")
        return None if len(board.notes) == 2 else f"{context.step_id} needs two notes"

    board.tools[1] = tool(effect="write", guard=two_notes)(board.tools[1].fn)
    model = ScriptedModel([writes(note="a"), ends(), writes(note="b"), ends("E2")])
    run = await goal_execution(model, board).go()
    assert run.status is PlanStatus.COMPLETED
    assert model.seen[2].rounds[-1].refusal == "safety: `two_notes`: report needs two notes"


async def test_a_failing_guard_blocks_the_end_and_guards_of_uncalled_tools_do_not_run():
    def broken() -> None:
        """Fail."""
        raise ValueError("no week")

    board = Board()
    board.tools[1] = tool(effect="write", guard=broken)(board.tools[1].fn)
    run = await goal_execution(ScriptedModel([writes(note="a"), ends()]), board).go()
    assert "safety: `broken`: ValueError: no week" in (run.step("report").error or "")
    assert (await goal_execution(ScriptedModel([reads(), ends()]), board).go()).status is PlanStatus.COMPLETED


async def test_a_wrong_citation_can_be_corrected_without_new_evidence():
    model = ScriptedModel([reads(), ends("E9"), ends("E1")], [Verdict(verdict="met")])
    run = await goal_execution(model, done_when="A note says hello").go()
    assert (run.status, run.step("report").result["rounds"]) == (PlanStatus.COMPLETED, 3)


async def test_a_goal_that_is_not_met_within_its_rounds_is_exhausted():
    model = ScriptedModel([reads()])
    run = await goal_execution(model, max_rounds=5).go()
    step = run.step("report")
    assert (run.status, run.reason, step.reason) == (PlanStatus.FAILED, RunReason.EXHAUSTED, "exhausted")
    assert step.error == "the goal was not met within 5 rounds"
    assert len(model.seen) == 5


async def test_the_last_round_may_meet_the_goal():
    run = await goal_execution(ScriptedModel([reads(), ends()]), max_rounds=2).go()
    assert run.status is PlanStatus.COMPLETED


async def test_a_goal_that_used_up_its_tokens_is_exhausted():
    execution = goal_execution(ScriptedModel([reads()]))
    execution.goal_tokens = 250
    run = await execution.go()
    assert (run.reason, run.step("report").error) == (RunReason.EXHAUSTED, "the goal was not met with 300 tokens; the limit is 250")


async def test_rounds_without_new_evidence_fail_the_step():
    model = ScriptedModel([reads(), says("continue")])
    run = await goal_execution(model).go()
    assert (run.reason, run.step("report").error) == (RunReason.STEP_FAILED, "8 rounds in a row brought no new evidence")
    assert len(model.seen) == 9


async def test_a_model_that_gives_up_fails_the_step_with_its_message():
    run = await goal_execution(ScriptedModel([gives_up()])).go()
    step = run.step("report")
    assert (run.status, step.status, step.reason) == (PlanStatus.FAILED, StepStatus.FAILED, "aborted")
    assert step.error == "the model gave up (no_access): 打不开"


async def test_a_condition_expression_is_evaluated_on_the_result():
    board = Board()
    model = ScriptedModel([reads(), ends(), writes(note="hello"), reads(), ends("E3")])
    run = await goal_execution(model, board, done_when="${{ 'hello' in result.results.look }}").go()
    assert run.status is PlanStatus.COMPLETED
    assert model.seen[2].rounds[-1].refusal.startswith("evidence: done_when is not met: ${{ 'hello' in result.results.look }}")
    assert board.notes == ["hello"]


async def test_the_verifier_judges_a_condition_in_words():
    verdicts = [Verdict(verdict="not_met", reason="nothing was posted", tokens=7), Verdict(verdict="met")]
    model = ScriptedModel([reads(), ends(), writes(note="hello"), ends("E2")], verdicts)
    run = await goal_execution(model, done_when="A note says hello").go()
    assert run.status is PlanStatus.COMPLETED
    assert model.seen[2].rounds[-1].refusal == "evidence: nothing was posted"
    assert [goal.done_when for goal in model.judged] == ["A note says hello"] * 2


@pytest.mark.parametrize(("is_met", "rounds"), [(True, 2), (False, 4)])
async def test_a_person_decides_whether_a_goal_is_met_if_the_verifier_cannot_tell(is_met, rounds):
    verdicts = [Verdict(verdict="cannot_tell", reason="no time is given"), Verdict(verdict="met")]
    model = ScriptedModel([reads(), ends(), writes(note="new"), ends("E2")], verdicts)
    gates = ScriptedGates([{"met": is_met}])
    run = await goal_execution(model, gates=gates, done_when="The note is new").go()
    assert run.status is PlanStatus.COMPLETED
    why, done = "The model that judges it cannot tell: no time is given", "What was done:\n\n- E1 `look` succeeded: []"
    assert gates.asked[0].parameters == {"question": f"Is this met: The note is new\n\n{why}\n\n{done}"}
    assert run.step("report").result["rounds"] == rounds


async def test_a_goal_fails_without_a_model():
    execution = goal_execution(ScriptedModel([]))
    execution.goal_model = None
    run = await execution.go()
    assert run.step("report").error == "no model is configured to pursue the goal: set PLAN_ADAPTER_MODEL"
