"""Tests of `format_plan`: plans and runs as Markdown."""

from dataclasses import replace

from plan_adapter import ExecutionPlan
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.plans import format_plan
from tests.cli.builders import NOW, a_run, a_step


def test_a_plan_is_shown_with_its_options_and_every_dependency() -> None:
    plan = ExecutionPlan(description="Restart one node\nwithout dropping requests", name="restart *now*")
    check = plan.add_step(
        "http_get", "检查", {"url": "http://127.0.0.1/"}, max_retries=3, retry_delay_ms=2000, retry_backoff=2.0, timeout_ms=5000
    )
    plan.add_step("bash", "Two lines", {"command": "echo one\necho ```two"}, depends_on=[check.id])
    plan.add_step("run_command", "", {"argv": ["x", "${{ steps.step_1.result.status }}"]}, when="${{ steps.step_2.status == 'completed' }}")
    plan.options.total_timeout_ms = 90_000
    assert format_plan(plan) == (
        "# restart *now*\n"
        "\n"
        "Restart one node without dropping requests\n"
        "\n"
        "- approval: required\n"
        "- steps at once: 1\n"
        "- when a step fails: stop\n"
        "- total timeout: 1 min 30 s\n"
        "\n"
        "## Steps\n"
        "\n"
        "1. **step_1** `http_get`: 检查\n"
        "   - `url`: `http://127.0.0.1/`\n"
        "   - timeout 5 s per attempt, up to 3 retries after 2 s, each wait 2 times the previous one\n"
        "2. **step_2** `bash`: Two lines\n"
        "   - after `step_1`\n"
        "   - `command`:\n"
        "     ````\n"
        "     echo one\n"
        "     echo ```two\n"
        "     ````\n"
        "3. **step_3** `run_command`\n"
        "   - after `step_1` (by reference), `step_2` (by reference)\n"
        "   - when: `${{ steps.step_2.status == 'completed' }}`\n"
        '   - `argv`: `["x", "${{ steps.step_1.result.status }}"]`\n'
    )


def test_a_plan_is_shown_with_its_run_name_and_all_tags() -> None:
    plan = ExecutionPlan(description="Restart one node", tags=["web", "生产"], run_name="restart ${{ inputs.host }}")
    plan.add_step("http_get", "Look", {"url": "http://127.0.0.1/"}, tags=["db limit"])
    text = format_plan(plan)
    assert "- name of a run: `restart ${{ inputs.host }}`\n- tags: `web`, `生产`\n" in text
    assert "   - tags: `db limit`\n" in text


def test_a_run_is_shown_with_the_status_and_reason_of_each_step() -> None:
    done = a_step(
        "a", status=StepStatus.COMPLETED, attempts=2, retry_count=1, started_at=NOW, completed_at=NOW, duration_ms=1200, result={"n": 1}
    )
    failed = a_step("b", status=StepStatus.FAILED, outcome=Outcome.UNKNOWN, error="no answer\x1b", reason="unknown")
    skipped = a_step("c", status=StepStatus.SKIPPED, reason="`b` failed")
    run = a_run(
        done,
        failed,
        skipped,
        status=PlanStatus.PARTIAL,
        reason=RunReason.UNKNOWN,
        message="it is unknown",
        approved_by="ana",
        approved_at=NOW,
    )
    text = format_plan(replace(run, started_at=NOW, completed_at=NOW, total_duration_ms=1500))
    assert text.startswith("# 发布流程: UnknownOutcome\n\nRelease\n\n- run: `0192f0c4-0000-7000-8000-000000000001`\n- it is unknown\n")
    assert "- progress: 1 of 3 steps done, 1 with an unknown outcome, 1 skipped (33.3 %)\n" in text
    assert "- approved by ana at 2026-11-" in text
    assert text.endswith(
        "1. **a** `run_command`: completed in 1.2 s, 1 retry\n"
        '   - result: `{"n": 1}`\n'
        "2. **b** `run_command`: failed, outcome unknown\n"
        "   - error: `no answer\\x1b`\n"
        "3. **c** `run_command`: skipped\n"
        "   - `b` failed\n"
    )


def test_a_long_result_is_cut_between_characters() -> None:
    text = format_plan(a_run(a_step("a", status=StepStatus.COMPLETED, result="字" * 5000)))
    assert "字" * 400 + "…" in text
    assert "字" * 401 not in text
