"""Tests of running cases: each is a real run, with prepared answers in place of tools and people."""

import time

import pytest

from plan_adapter import ToolRegistry, tool
from plan_adapter.errors import InvalidPlanError
from plan_adapter.store import StepStatus
from plan_adapter.testing import CaseRunner, Mismatch, run_case
from plan_adapter.tools import ToolContext
from tests.testing.conftest import RESTART, SHARED, RunCase, WriteCases


def test_a_case_without_expectations_expects_the_run_to_complete(run: RunCase) -> None:
    result = run("{}")
    assert result.passed
    assert result.run.outputs == {"status": 200}
    assert result.run.requested_by == "plan test"


def test_order_gates_effects_calls_results_and_outputs_are_asserted(run: RunCase) -> None:
    result = run("""\
expect:
  status: completed
  order: [drain, restart, verify, tell]
  gates: [plan, restart]
  skipped: []
  failed: []
  rolled_back: []
  effects: {read: [verify], idempotent_write: [], write: [tell, drain, restart]}
  attempts: {verify: 1}
  called_with:
    drain: {argv: [lbctl, drain, web-1]}
    verify: {url: "https://web-1/health", headers: {authorization: "Bearer ${{ secrets.token }}"}}
    tell: {argv: [notify, completed]}
  results: {verify: {status: 200}, drain: null}
  outputs: {status: 200}
""")
    assert result.passed, result.report()


def test_each_wrong_expectation_is_reported_as_a_separate_mismatch(run: RunCase) -> None:
    result = run("""\
expect:
  status: failed
  reason: rejected
  message: 没有
  order: [drain, [verify, restart]]
  gates: [plan]
  skipped: [tell]
  failed: {drain: no}
  rolled_back: [drain]
  effects: {write: []}
  attempts: {verify: 2}
  called_with: {drain: {argv: [lbctl, drain, web-2], cwd: /}, restart: [{argv: []}, {argv: []}]}
  results: {verify: {status: true}}
  outputs: {status: 404, other: 1}
""")
    assert [mismatch.at for mismatch in result.mismatches] == [
        "status", "reason", "message", "order", "gates", "skipped", "failed", "rolled_back", "effects.write", "attempts.verify",
        "called_with.drain.argv[2]", "called_with.drain.cwd", "called_with.restart", "results.verify.status", "outputs.status",
        "outputs.other",
    ]  # fmt: skip
    assert Mismatch("order", ["drain", ["verify", "restart"]], ["drain", ["verify", "restart"], "tell"]) in result.mismatches
    assert Mismatch("called_with.drain.argv[2]", "web-2", "web-1") in result.mismatches


def test_a_report_shows_expected_and_actual_values_and_the_steps(run: RunCase) -> None:
    plan = RESTART.replace("description: Restart it\n", "description: Restart it\n    effect: read\n")
    result = run("steps: {verify: {failure: 连接被拒绝}}\nexpect: {rolled_back: []}", plan=plan)
    assert result.report().splitlines()[0].endswith("restart.test.yaml:5: it works")
    assert (
        "\n".join(result.report().splitlines()[1:])
        == """\
  status
    expected: "completed"
    actual:   "partial"
  rolled_back
    expected: []
    actual:   ["drain"]
  the run: partial (step_failed): `verify` failed: 连接被拒绝; rolled back: drain
    drain    completed (rolled back)
    restart  completed
    verify   failed (3 attempts): 连接被拒绝
    tell     completed"""
    )


def test_attempts_get_their_answers_in_turn_without_retry_delays(run: RunCase) -> None:
    started = time.monotonic()
    result = run("""\
steps:
  verify: [{failure: refused}, {result: {status: 503}}, {result: {status: 200}}]
expect: {attempts: {verify: 3}}
""")
    assert result.passed, result.report()
    assert time.monotonic() - started < 3600  # the delay of one retry
    assert result.run.step("verify").retry_count == 2


def test_the_last_answer_is_used_for_all_later_attempts(run: RunCase) -> None:
    result = run(
        "steps: {verify: [{failure: one}, {failure: two}]}\nexpect: {status: partial, failed: {verify: two}, attempts: {verify: 3}}"
    )
    assert result.passed, result.report()


def test_a_write_that_times_out_has_an_unknown_outcome(run: RunCase) -> None:
    result = run("steps: {restart: {timeout: true}}\nexpect: {status: partial, reason: unknown, failed: {restart: within 60 s}}")
    assert result.passed, result.report()


def test_a_failed_rollback_is_answered_under_rollbacks(run: RunCase) -> None:
    result = run("""\
steps: {verify: {failure: refused}}
rollbacks: {drain: {failure: the balancer is gone}}
expect: {status: partial, message: the balancer is gone, rolled_back: []}
""")
    assert result.passed, result.report()


def test_a_rejected_plan_runs_no_step_not_even_finally(run: RunCase) -> None:
    result = run("gates: {plan: reject}\nexpect: {status: cancelled, reason: rejected, order: [], gates: [plan], effects: {write: []}}")
    assert result.passed, result.report()


def test_a_rejected_step_is_skipped_and_finally_still_runs(run: RunCase) -> None:
    result = run("""\
gates: {restart: reject}
expect:
  status: cancelled
  reason: rejected
  order: [drain, tell]
  gates: [plan, restart]
  skipped: {restart: rejected, verify: restart}
""")
    assert result.passed, result.report()


@pytest.mark.parametrize("gate", ["plan", "restart"])
def test_a_gate_can_expire(run: RunCase, gate: str) -> None:
    result = run(f"gates: {{{gate}: expire}}\nexpect: {{status: cancelled, reason: expired}}")
    assert result.passed, result.report()


def test_cases_ignore_who_may_approve_and_how(run: RunCase) -> None:
    strict = "description: D\napproval: {approvers: [ana], operators: [bo], known_by: [totp], self_approval: false, effects: [write]}\n"
    result = run(
        "expect: {gates: [plan, a]}", shared="", plan=f"{strict}steps: [{{id: a, tool_name: bash, parameters: {{command: exit}}}}]"
    )
    assert result.passed, result.report()


def test_the_environment_does_not_change_a_case(run: RunCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_APPROVERS", "nobody")
    monkeypatch.setenv("PLAN_ADAPTER_GATE_EFFECTS", "write")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "real-token")
    assert run("expect: {gates: [plan, restart]}").passed


ITEMS = """\
description: Check nodes
inputs: {nodes: {type: array}}
options: {require_approval: false, continue_on_error: true}
steps:
  - id: check
    tool_name: run_command
    description: Check one
    for_each: ${{ inputs.nodes }}
    label: ${{ item.name }}
    parameters: {argv: [check, "${{ item.name }}"]}
    max_retries: 1
    requires_approval: true
  - id: repair
    tool_name: run_command
    when: ${{ steps.check.result.exists(one, one.exit_code != 0) }}
    parameters: {argv: [repair]}
"""
NODES = "inputs: {nodes: [{name: web-1}, {name: 节点二}]}\n"


def test_items_get_their_own_answers_attempts_and_gates(run: RunCase) -> None:
    result = run(
        """\
steps:
  check:
    - {result: {exit_code: 0}}
    - [{failure: refused}, {result: {exit_code: 0}}]
expect:
  order: [check]
  gates: ["check[web-1]", "check[节点二]"]
  skipped: {repair: ""}
  attempts: {check: 3}
  called_with: {check: [{argv: [check, web-1]}, {argv: [check, 节点二]}]}
""",
        shared=NODES,
        plan=ITEMS,
    )
    assert result.passed, result.report()


def test_a_rejected_item_ends_the_run(run: RunCase) -> None:
    result = run(
        """\
steps: {check: {result: {exit_code: 1}}}
gates: {check: [approve, reject]}
expect: {status: cancelled, reason: rejected, attempts: {check: 1}}
""",
        shared=NODES,
        plan=ITEMS,
    )
    assert result.passed, result.report()


def test_items_are_rolled_back_by_name(run: RunCase) -> None:
    rollback = "    rollback: {tool_name: run_command, parameters: {argv: [undo, '${{ item.name }}']}}\n"
    result = run(
        """\
steps: {check: [{result: {exit_code: 0}}, {failure: refused}]}
expect: {status: failed, rolled_back: ["check[web-1]"]}
""",
        shared=NODES,
        plan=ITEMS.replace("    max_retries: 1\n    requires_approval: true\n", rollback).replace(", continue_on_error: true", ""),
    )
    assert result.passed, result.report()


def test_a_case_fails_if_its_answers_end_before_the_last_item(run: RunCase) -> None:
    result = run("steps: {check: [{result: {exit_code: 0}}]}", shared=NODES, plan=ITEMS)
    assert result.unanswered == ("`check[节点二]` was called, and the list of answers ends before it: write one for each item",)
    assert not result.passed


def test_a_call_whose_result_is_used_needs_an_answer(run: RunCase) -> None:
    result = run("expect: {order: []}", shared="inputs: {host: web-1}\n")
    assert result.mismatches == ()
    assert result.unanswered == ("`verify` was called, and `result.status == 200` uses its result: write `steps: {verify: {result: …}}`",)
    assert "uses its result" in result.report()


def test_a_rollback_that_uses_other_steps_results_needs_no_answer_for_its_own_step(run: RunCase) -> None:
    plan = """\
description: D
options: {require_approval: false}
steps:
  - {id: a, tool_name: bash, parameters: {command: exit}}
  - id: b
    tool_name: bash
    parameters: {command: exit}
    depends_on: [a]
    done_when: ${{ size(steps.a.result.stdout) == 1 }}
    rollback: {tool_name: bash, parameters: {command: exit, env: {X: "${{ steps.a.result.stdout + '!' }}"}}}
"""
    result = run("steps: {a: {result: {stdout: x}}}", shared="", plan=plan)
    assert result.passed, result.report()


def test_tools_are_not_called_but_their_parameters_are_checked(run: RunCase) -> None:
    @tool(effect="write", isolation="process")
    def launch(count: int, context: ToolContext) -> None:
        """Launch."""
        raise AssertionError(f"launched {count} {context}")

    text = "description: D\noptions: {require_approval: false}\ninputs: {count: {type: string}}\n"
    steps = 'steps: [{id: go, tool_name: launch, parameters: {count: "${{ inputs.count }}"}}]\n'
    tools = ToolRegistry([launch])
    good = run("inputs: {count: '3'}\nexpect: {effects: {write: [go]}}", shared="", plan=text + steps, tools=tools)
    assert good.passed, good.report()
    bad = run("inputs: {count: many}", shared="", plan=text + steps, tools=tools)
    assert bad.run.step("go").status is StepStatus.FAILED
    assert "`count` should be an integer" in (bad.run.step("go").error or "")


def test_a_step_on_dask_gets_its_answer_without_a_cluster(run: RunCase) -> None:
    plan = (
        "description: D\noptions: {require_approval: false}\nsteps: [{id: a, tool_name: bash, parameters: {command: exit}, runner: dask}]\n"
    )
    result = run("steps: {a: {result: {stdout: x}}}\nexpect: {results: {a: {stdout: x}}}", shared="", plan=plan)
    assert result.passed, result.report()


def test_every_secret_has_a_placeholder_value_that_is_redacted(run: RunCase) -> None:
    plan = """\
description: D
options: {require_approval: false}
steps: [{id: a, tool_name: bash, parameters: {command: exit, env: {X: "${{ secrets.token }} ${{ secrets['secret/db'] }}"}}}]
"""
    result = run("steps: {a: {result: value of secret/db}}\nexpect: {results: {a: '***'}}", shared="", plan=plan)
    assert result.passed, result.report()


def test_runs_are_independent_and_a_runner_leaves_no_files(write_cases: WriteCases) -> None:
    cases = write_cases(f"{SHARED}cases:\n  one: {{gates: {{plan: reject}}, expect: {{status: cancelled}}}}\n  two: {{}}\n  三: {{}}\n")
    with CaseRunner() as runner:
        results = [runner.run(case) for case in cases]
        folder = runner._settings.home  # pyright: ignore[reportPrivateUsage]
        assert folder.exists()
    assert [result.passed for result in results] == [True, True, True]
    assert len({result.run.id for result in results}) == 3
    assert not folder.exists()
    assert run_case(cases[2]).passed


ROLLING = """\
description: Restart the nodes if somebody says so
inputs: {nodes: {type: array, items: string, default: [a, b]}}
options: {require_approval: false, approval_timeout_ms: 60000}
steps:
  - id: decide
    ask: {question: Now?, fields: {choice: {type: string, enum: [restart, wait]}, by: {type: string, default: somebody}}}
    expires: skip
  - id: nodes
    for_each: ${{ inputs.nodes }}
    when: ${{ steps.decide.result.choice == 'restart' }}
    steps:
      - {id: drain, tool_name: run_command, parameters: {argv: [drain, "${{ item }}"]}}
      - {id: restart, tool_name: run_command, parameters: {argv: [restart, "${{ steps.drain.result.stdout }}"]}, depends_on: [drain]}
"""


def test_questions_are_answered_and_items_of_groups_get_their_own_answers(run: RunCase) -> None:
    case = """\
answers: {decide: {choice: restart}}
steps:
  drain: [{result: {stdout: one}}, {result: {stdout: two}}]
expect:
  gates: [decide]
  called_with: {restart: [{argv: [restart, one]}, {argv: [restart, two]}]}
  results: {decide: {choice: restart, by: somebody}}
"""
    result = run(case, shared="", plan=ROLLING)
    assert result.passed, result.report()
    assert run("answers: {decide: {choice: wait}}\nexpect: {skipped: [nodes, drain, restart]}", shared="", plan=ROLLING).passed


def test_a_failed_item_of_a_group_can_be_expected(run: RunCase) -> None:
    case = """\
answers: {decide: {choice: restart}}
steps:
  drain: [{result: {stdout: one}}, {failure: stuck}]
expect: {status: partial, failed: {nodes: stuck, drain: stuck}, attempts: {drain: 2, restart: 1}}
"""
    result = run(case, shared="", plan=ROLLING)
    assert result.passed, result.report()


def test_a_question_without_an_answer_fails_the_case(run: RunCase) -> None:
    result = run("expect: {}", shared="", plan=ROLLING)
    assert result.unanswered == ("`decide` asks a question: write `answers: {decide: {choice: …}}`",)
    assert run("gates: {decide: reject}\nexpect: {status: cancelled, reason: rejected}", shared="", plan=ROLLING).passed


def test_an_answer_that_does_not_fit_its_question_is_a_problem_of_the_file(run: RunCase) -> None:
    with pytest.raises(InvalidPlanError) as raised:
        run("answers: {decide: {choice: never, who: me}, drain: {a: 1}}\nsteps: {decide: {result: 1}}", shared="", plan=ROLLING)
    assert {problem.at for problem in raised.value.problems} == {
        "cases.it works.answers.decide.choice",
        "cases.it works.answers.decide.who",
        "cases.it works.answers.drain",
        "cases.it works.steps.decide",
    }


def test_a_goal_is_one_call_that_the_case_answers(write_cases: WriteCases, runner: CaseRunner) -> None:
    plan = """\
description: Report
steps:
  - {id: report, goal: Say how the page is, tools: [http_get, run_command], done_when: "${{ result.rounds < 5 }}"}
outputs: {said: "${{ steps.report.result.summary }}"}
"""
    cases = """\
cases:
  met: {steps: {report: {result: {summary: 好, rounds: 2}}}, expect: {outputs: {said: 好}, gates: [plan]}}
  too long: {steps: {report: {result: {summary: 好, rounds: 5}}}, expect: {status: failed, failed: {report: done_when}}}
"""
    assert [runner.run(case).report() for case in write_cases(cases, plan=plan) if not runner.run(case).passed] == []
