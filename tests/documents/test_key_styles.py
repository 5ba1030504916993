"""Tests of the seeds' JSON: three spellings of each key, Go's empty values, and execution fields that are only history."""

import json
from collections.abc import Callable

import pytest

from plan_adapter.documents import dump_plan, load_plan, read_document
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import ExecutionPlan

GO = {
    "ID": "plan-1",
    "TaskID": "task-9",
    "Name": "部署",
    "Description": "部署应用到生产环境",
    "Steps": [
        {
            "ID": "step-1",
            "Index": 0,
            "ToolName": "bash",
            "Description": "运行测试",
            "Input": "",
            "Parameters": {"command": "npm test", "ToolName": "kept", "DependsOn": None},
            "Status": "completed",
            "Result": {"ExitCode": 0},
            "Error": "",
            "StartedAt": "2025-01-02T03:04:05Z",
            "CompletedAt": "0001-01-01T00:00:00Z",
            "DurationMs": 1200,
            "DependsOn": None,
            "RetryCount": 1,
            "MaxRetries": 3,
            "RetryDelayMs": 1000,
        },
        {
            "ID": "step-2",
            "Index": 1,
            "ToolName": "deploy",
            "Description": "部署",
            "Parameters": None,
            "Status": "pending",
            "DependsOn": ["step-1"],
        },
    ],
    "UserApproved": True,
    "ApprovedAt": "0001-01-01T00:00:00Z",
    "ApprovedBy": "user@example.com",
    "RejectionNote": "",
    "Status": "approved",
    "CurrentStep": 1,
    "CreatedAt": "2025-01-02T03:04:05Z",
    "UpdatedAt": "0001-01-01T00:00:00Z",
    "StartedAt": None,
    "CompletedAt": None,
    "TotalDurationMs": 0,
    "AgentID": "agent-123",
    "OrgID": "org",
    "TenantID": "tenant",
    "Metadata": {"AgentID": "kept"},
    "Options": {
        "AllowParallel": True,
        "MaxParallelSteps": 5,
        "StopOnError": True,
        "ContinueOnError": False,
        "StepTimeoutMs": 30000,
        "TotalTimeoutMs": 300000,
        "RequireApproval": True,
        "AutoApprove": False,
        "ApprovalTimeoutMs": 60000,
    },
}

SNAKE = """\
id: plan-1
name: 部署
description: 部署应用到生产环境
options: {allow_parallel: true, max_parallel_steps: 5, step_timeout_ms: 30000, total_timeout_ms: 300000, approval_timeout_ms: 60000}
steps:
- id: step-1
  tool_name: bash
  description: 运行测试
  parameters: {command: npm test, ToolName: kept, DependsOn: null}
  max_retries: 3
  retry_delay_ms: 1000
- {id: step-2, tool_name: deploy, description: 部署, depends_on: [step-1]}
metadata: {AgentID: kept}
"""


def camel(value: object, free: bool = False) -> object:
    """`value` with Go's keys in camelCase, except in the author's own fields."""
    if isinstance(value, list):
        return [camel(member) for member in value]
    if not isinstance(value, dict) or free:
        return value
    spelled = {"ID": "id", "TaskID": "taskId", "AgentID": "agentID", "OrgID": "orgId", "TenantID": "tenantID"}
    return {
        spelled.get(key, key[0].lower() + key[1:]): camel(part, key in ("Parameters", "Metadata", "Result")) for key, part in value.items()
    }


@pytest.mark.parametrize("document", [GO, camel(GO)], ids=["PascalCase", "camelCase"])
def test_the_seeds_json_is_the_same_plan_in_every_style(document: object) -> None:
    plan = load_plan(json.dumps(document))
    assert plan == load_plan(SNAKE)
    assert plan_digest(plan) == plan_digest(load_plan(SNAKE))


POLICY = {
    "Approvers": ["sre", "小明"],
    "Operators": ["deployers"],
    "SelfApproval": False,
    "KnownBy": ["ssh_signature", "totp"],
    "Effects": ["write"],
    "Expires": "skip",
    "RemindAfterMs": 600000,
    "Release": True,
}


@pytest.mark.parametrize("spelled", [lambda key: key, lambda key: key[0].lower() + key[1:]], ids=["PascalCase", "camelCase"])
def test_the_gate_policy_is_read_in_every_style(spelled: Callable[[str], str]) -> None:
    document = {
        spelled("Description"): "d",
        spelled("Steps"): [{spelled("ToolName"): "t", spelled("RequiresApproval"): True}],
        spelled("Approval"): {spelled(key): value for key, value in POLICY.items()},
    }
    plan = load_plan(json.dumps(document))
    assert plan.steps[0].requires_approval
    assert plan.approval == ApprovalPolicy(
        approvers=["sre", "小明"],
        operators=["deployers"],
        self_approval=False,
        known_by=["ssh_signature", "totp"],
        effects=["write"],
        expires="skip",
        remind_after_ms=600_000,
        release=True,
    )
    assert "approval:\n" in dump_plan(plan)
    assert load_plan(dump_plan(plan)) == plan


def test_the_authors_own_keys_are_unchanged() -> None:
    plan = load_plan(json.dumps(GO))
    assert plan.steps[0].parameters == {"command": "npm test", "ToolName": "kept", "DependsOn": None}
    assert plan.metadata == {"AgentID": "kept"}


def test_execution_fields_of_the_seeds_become_history_of_the_plan_and_its_steps() -> None:
    assert load_plan(json.dumps(GO)).history == {
        "task_id": "task-9",
        "user_approved": True,
        "approved_by": "user@example.com",
        "status": "approved",
        "current_step": 1,
        "created_at": "2025-01-02T03:04:05Z",
        "total_duration_ms": 0,
        "agent_id": "agent-123",
        "org_id": "org",
        "tenant_id": "tenant",
        "steps": {
            "step-1": {
                "index": 0,
                "status": "completed",
                "result": {"ExitCode": 0},
                "started_at": "2025-01-02T03:04:05Z",
                "duration_ms": 1200,
                "retry_count": 1,
            },
            "step-2": {"index": 1, "status": "pending"},
        },
    }


def test_history_of_a_step_without_an_id_is_under_the_generated_id() -> None:
    plan = load_plan('{"Description": "d", "Steps": [{"ToolName": "t", "Status": "failed"}]}')
    assert plan.history == {"steps": {"step_1": {"status": "failed"}}}


def test_history_is_ignored_by_execution_and_not_written() -> None:
    plan = load_plan(json.dumps(GO))
    assert plan.options.require_approval
    assert "approved" not in dump_plan(plan)
    assert load_plan(dump_plan(plan)).history == {}


@pytest.mark.parametrize("options", [None, {}])
def test_a_go_nil_is_read_as_missing(options: object) -> None:
    plan = load_plan(
        json.dumps(
            {"ID": "", "Name": "", "Description": "d", "Steps": [{"ID": "", "ToolName": "t", "Parameters": None}], "Options": options}
        )
    )
    expected = ExecutionPlan(description="d")
    expected.add_step("t", "")
    assert plan == expected
    assert plan.id


def test_two_spellings_of_one_key_are_a_duplicate_at_each_level() -> None:
    document = {
        "description": "d",
        "Description": "e",
        "steps": [{"tool_name": "t", "toolName": "u", "rollback": {"ToolName": "a", "tool_name": "b"}}],
        "inputs": {"x": {"minLength": 1, "min_length": 2}},
        "options": {"AllowParallel": True, "allowParallel": True},
    }
    _, problems = read_document(json.dumps(document))
    assert {(problem.code, problem.at) for problem in problems} == {
        ("duplicate-key", "Description"),
        ("duplicate-key", "steps[0].toolName"),
        ("duplicate-key", "steps[0].rollback.tool_name"),
        ("duplicate-key", "inputs.x.min_length"),
        ("duplicate-key", "options.allowParallel"),
    }


@pytest.mark.parametrize("key", ["Tool_Name", "TOOLNAME", "toolname", "tool-name", "ToolNam"])
def test_other_spellings_are_refused(key: str) -> None:
    _, problems = read_document(json.dumps({"description": "d", "steps": [{key: "t"}]}))
    assert [(problem.code, problem.hint) for problem in problems] == [("unknown-field", "did you mean `tool_name`?")]


def test_a_document_is_never_written_in_the_other_styles() -> None:
    text = dump_plan(load_plan(json.dumps(GO)))
    assert "tool_name: bash" in text
    assert "ToolName: kept" in text
    assert "DependsOn: null" in text
    assert "MaxRetries" not in text
