"""Tests of converting AWS Systems Manager Automation documents: what is kept, changed and left out, and the notes about it."""

from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry
from plan_adapter.importers.conversion import NotConvertibleError
from plan_adapter.runs import arun_plan
from tests.importers.builders import FIXTURES, automation, calls, convert, noted, only


def test_a_document_keeps_its_parameters_calls_branches_and_gate() -> None:
    plan, notes = convert((FIXTURES / "restart.yaml").read_text(), "restart.yaml")
    inputs = {
        name: (definition.type, definition.default, definition.pattern or definition.enum or definition.items)
        for name, definition in plan.inputs.items()
    }
    assert inputs == {
        "InstanceId": ("string", None, "^i-[0-9a-f]+$"),
        "Mode": ("string", "soft", ["soft", "hard"]),
        "Tags": ("array", [], "object"),
    }
    steps = {step.id: step for step in plan.steps}
    assert {name: step.depends_on for name, step in steps.items()} == {
        "Describe": [],
        "Stop": ["Describe"],
        "Stop_wait": ["Stop"],
        "Force": ["Describe"],
        "Start": ["Stop_wait", "Describe"],
        "Wait": ["Start"],
        "Tag": ["Wait"],
    }
    assert calls(plan)["Describe"][1:6] == ["ec2", "describe-instances", "--instance-ids", "${{ inputs.InstanceId }}", "--query"]
    state = "(steps.Describe.result.stdout.split('\\n')[0].split('\\t')[0])"
    assert steps["Stop"].when == f"${{{{ ({state} == 'running') && (inputs.Mode == 'soft') }}}}"
    assert steps["Force"].when == f"${{{{ (!(({state} == 'running') && (inputs.Mode == 'soft'))) && ({state} == 'running') }}}}"
    assert (steps["Start"].when, steps["Stop"].requires_approval, steps["Start"].requires_approval) == (None, True, False)
    assert (steps["Stop"].max_retries, steps["Stop"].timeout_ms) == (2, 600_000)
    assert (steps["Wait"].done_when, steps["Wait"].max_retries, steps["Wait"].effect) == (
        "${{ result.stdout.trim() in ['ok'] }}",
        4,
        "read",
    )
    assert (steps["Force"].on_error, calls(plan)["Force"][0]) == ("continue", "aws")
    assert calls(plan)["Tag"][3:] == ["id", "${{ inputs.InstanceId }}", "tags:json", " ${{ inputs.Tags }}"]
    assert list(plan.outputs) == ["Tag_Count", "Describe_State"]
    for parts in (
        ("kept", "7 of 7 steps, and 3 inputs"),
        ("changed", "Approve", "`Stop`", "name yours under `approval`"),
        ("changed", "Force", "onFailure: Continue"),
        ("changed", "Wait", "every 15 seconds, 5 times"),
        ("left out", "`assumeRole`"),
        ("left out", "AutomationAssumeRole", "only `assumeRole` uses"),
        ("left out", "Approvers", "only an approval uses"),
        ("left out", "Approve", "`NotificationArn`"),
        ("left out", "Stop", "onFailure: step:Repair"),
        ("left out", "Repair", "only after a failure"),
        ("left out", "`Repair.Output`"),
    ):
        assert noted(notes, *parts), parts


@pytest.mark.parametrize(
    ("definition", "expected", "word"),
    [
        ("{type: Boolean, default: 'true'}", {"type": "boolean", "default": True}, ""),
        ("{type: Integer, default: '3', allowedValues: [3, 4]}", {"type": "integer", "default": 3, "enum": [3, 4]}, ""),
        ("{type: StringList, default: [a]}", {"type": "array", "items": "string", "default": ["a"]}, ""),
        ("{type: StringMap, default: '{\"a\": 1}'}", {"type": "object", "default": {"a": 1}}, ""),
        ("{type: 'AWS::EC2::Instance::Id', minChars: 3}", {"min_length": 3}, ""),
        ("{type: 'List<AWS::EC2::Instance::Id>'}", {"type": "array", "items": "string"}, ""),
        ("{type: String, allowedPattern: '(?=x)'}", {}, "allowedPattern"),
        ("{type: String, default: z, allowedValues: [a]}", {"enum": ["a"]}, "its default"),
        ("{type: String, default: '{{ssm:/x}}'}", {}, "its default"),
        ("{type: Boolean, default: perhaps}", {"type": "boolean"}, "its default"),
    ],
)
def test_a_parameter_becomes_an_input(definition: str, expected: dict[str, Any], word: str) -> None:
    plan, notes = automation(
        "- {name: a, action: 'aws:executeAwsApi', inputs: {Service: s3, Api: ListBuckets, X: '{{ P }}'}}", f"{{P: {definition}}}"
    )
    found = plan.inputs["P"].model_dump(exclude_none=True, exclude_defaults=True)
    assert found == {key: value for key, value in expected.items() if value != "string" or key == "items"}
    assert noted(notes, "left out", "parameter P", word) is bool(word)


_API = "{name: a, action: 'aws:executeAwsApi', inputs: {Service: %s, Api: %s, %s}}"
_PARAMETERS = "{Id: {type: String}, Ids: {type: StringList}, On: {type: Boolean}, Tag: {type: String}}"


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("DBInstanceIdentifier: '{{ Id }}'", ["--db-instance-identifier", "${{ inputs.Id }}"]),
        ("Ids: ['{{ Id }}', b]", ["--ids", "${{ inputs.Id }}", "b"]),
        ("Ids: '{{ Ids }}'", ["--ids=${{ inputs.Ids }}"]),
        ("Ids: ['{{ Ids }}']", ["--ids=${{ inputs.Ids }}"]),
        ("Force: true", ["--force"]),
        ("NoReboot: false", ["--reboot"]),
        ("Force: '{{ On }}'", ["${{ (inputs.On) ? '--force' : '--no-force' }}"]),
        ("Config: {enabled: '{{ On }}', ids: '{{ Ids }}'}", ['--config={"enabled": ${{ inputs.On }}, "ids": ${{ inputs.Ids }}}']),
        (
            "Tags: [{Key: k, Value: 'v-{{ Tag }}'}]",
            [
                '--tags=[{"Key": "k", "Value": "v-${{ (inputs.Tag).replace(\'\\\\\', \'\\\\\\\\\').replace(\'"\', \'\\\\"\')'
                ".replace('\\n', '\\\\n') }}\"}]"
            ],
        ),
    ],
)
def test_the_inputs_of_an_api_call_become_options(inputs: str, expected: list[str]) -> None:
    plan, _ = automation(f"- {_API % ('rds', 'ModifyDBInstance', inputs)}", _PARAMETERS)
    assert calls(plan)["a"] == ["aws", "rds", "modify-db-instance", *expected, "--output", "json"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("Variable: '{{ Id }}', StringEquals: x", "inputs.Id == 'x'"),
        ("Not: {Variable: '{{ Id }}', StartsWith: x}", "!(inputs.Id.startsWith('x'))"),
        ("Or: [{Variable: '{{ Id }}', StringEquals: x}, {Variable: '{{ On }}', BooleanEquals: true}]", "(inputs.Id == 'x') || (inputs.On)"),
        ("Variable: '{{ Id }}', NumericGreater: 5", "double(inputs.Id) > 5.0"),
        ("Variable: 'a{{ Id }}', StringEquals: x", "steps.c.result.go_to_b"),
    ],
)
def test_a_choice_becomes_a_condition(choice: str, expected: str) -> None:
    steps = f"- {{name: c, action: 'aws:branch', isEnd: true, inputs: {{Choices: [{{NextStep: b, {choice}}}]}}}}\n"
    steps += "- {name: b, action: 'aws:sleep', inputs: {Duration: PT1M30S}}"
    plan, _ = automation(steps, _PARAMETERS)
    assert (plan.steps[-1].when, calls(plan)["b"]) == (f"${{{{ {expected} }}}}", ["sleep", "90"])


def test_a_step_after_all_choices_has_no_condition_and_waits_for_each_choice() -> None:
    sleep = "action: 'aws:sleep', inputs: {Duration: PT1S}"
    plan, _ = automation(
        "- {name: c, action: 'aws:branch', inputs: {Choices: [{NextStep: x, Variable: '{{ Id }}', StringEquals: x}], Default: y}}\n"
        f"- {{name: x, nextStep: z, {sleep}}}\n- {{name: y, {sleep}}}\n- {{name: z, {sleep}}}",
        _PARAMETERS,
    )
    assert {step.id: (step.when is None, step.depends_on) for step in plan.steps} == {
        "x": (False, []),
        "y": (False, []),
        "z": (True, ["x", "y"]),
    }


def test_a_jump_back_is_left_out_and_reported() -> None:
    sleep = "action: 'aws:sleep', inputs: {Duration: PT1S}"
    plan, notes = automation(f"- {{name: a, {sleep}}}\n- {{name: b, {sleep}, nextStep: a}}")
    assert [step.depends_on for step in plan.steps] == [[], ["a"]]
    assert noted(notes, "left out", "b", "jump back to `a`")


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("action: 'aws:loop', inputs: {Iterators: x}", "`aws:loop` has no equivalent"),
        ("action: 'aws:sleep', inputs: {Timestamp: '2026-01-01T00:00:00Z'}", "not a fixed duration"),
        ("action: 'aws:executeScript', inputs: {Runtime: python3.8, Handler: f}", "attachment"),
        ("action: 'aws:executeScript', inputs: {Runtime: python3.8, Handler: f, Script: 'x = \"{{ Id }}\"'}", "read as code"),
        ("action: 'aws:assertAwsResourceProperty', inputs: {Service: s, Api: A, PropertySelector: '$..x'}", "selector"),
    ],
)
def test_a_step_without_an_equivalent_becomes_a_placeholder_step(step: str, reason: str) -> None:
    plan, notes = automation(f"- {{name: a, {step}}}\n- {{name: b, action: 'aws:sleep', inputs: {{Duration: PT1S}}}}", _PARAMETERS)
    assert "not_imported" in plan.steps[0].metadata
    assert plan.steps[1].depends_on == ["a"]
    assert noted(notes, "left out", "a:", reason)


def test_a_called_automation_is_started_and_waited_for() -> None:
    plan, _ = automation(
        "- name: a\n  action: aws:executeAutomation\n"
        "  inputs: {DocumentName: D, MaxErrors: '1', RuntimeParameters: {Id: '{{ Id }}', Ids: '{{ Ids }}'}}",
        _PARAMETERS,
    )
    escaped = ".replace('\\\\', '\\\\\\\\').replace('\"', '\\\\\"').replace('\\n', '\\\\n')"
    options = ["--document-name", "D", "--max-errors", "1"]
    options.append(f'--parameters={{"Id": ["${{{{ (inputs.Id){escaped} }}}}"], "Ids": ${{{{ inputs.Ids }}}}}}')
    assert calls(plan)["a"] == [
        "aws",
        "ssm",
        "start-automation-execution",
        *options,
        "--query",
        "AutomationExecutionId",
        "--output",
        "text",
    ]
    assert plan.steps[1].parameters["env"] == {"ID": "${{ steps.a.result.stdout.trim() }}"}


@pytest.mark.parametrize(
    ("first", "reference"),
    [
        ("action: 'aws:executeAwsApi', inputs: {Service: s, Api: A}, outputs: [{Name: o, Selector: '$..x'}]", "a.o"),
        ("action: 'aws:executeAutomation', inputs: {DocumentName: D}", "a.Output"),
        ("action: 'aws:runCommand', inputs: {DocumentName: D, InstanceIds: [i-1]}", "a.ResponseCode"),
        ("action: 'aws:unknown'", "a.anything.deeper"),
    ],
)
def test_an_output_of_another_step_is_never_an_input(first: str, reference: str) -> None:
    plan, notes = automation(
        f"- {{name: a, {first}}}\n- {{name: b, action: 'aws:executeAwsApi', inputs: {{Service: s, Api: B, Id: 'x-{{{{ {reference} }}}}'}}}}"
    )
    assert not plan.inputs
    assert "not_imported" in plan.steps[-1].metadata
    assert reference in plan.steps[-1].description
    assert noted(notes, "left out", "b", f"`{reference}`")


def test_a_person_is_asked_about_a_choice_that_depends_on_an_unknown_output() -> None:
    branch = "inputs: {Choices: [{NextStep: x, Variable: '{{ a.Output }}', StringEquals: ok}], Default: y}"
    sleep = "action: 'aws:sleep', inputs: {Duration: PT1S}"
    plan, notes = automation(
        "- {name: a, action: 'aws:executeAutomation', inputs: {DocumentName: D}}\n"
        f"- {{name: c, action: 'aws:branch', {branch}}}\n- {{name: x, isEnd: true, {sleep}}}\n- {{name: y, {sleep}}}"
    )
    steps = {step.id: step for step in plan.steps}
    assert (list(steps), plan.inputs) == (["a", "a_wait", "c", "x", "y"], {})
    assert steps["c"].ask is not None
    assert steps["c"].depends_on == ["a_wait"]
    assert {name: (field.type, field.default) for name, field in steps["c"].ask.fields.items()} == {"go_to_x": ("boolean", None)}
    assert (steps["x"].when, steps["y"].when) == ("${{ steps.c.result.go_to_x }}", "${{ !(steps.c.result.go_to_x) }}")
    assert noted(notes, "changed", "c", "asked whether to go to `x`", "`a.Output`")


_REMOTE = [
    "action: 'aws:runCommand', inputs: {DocumentName: AWS-RunShellScript, InstanceIds: [i-1], Parameters: {commands: ['echo {{ Id }}']}}",
    "action: 'aws:runCommand', inputs: {DocumentName: AWS-RunPowerShellScript, InstanceIds: [i-1], Parameters: {commands: '{{ Ids }}'}}",
    "action: 'aws:runCommand', inputs: {DocumentName: AWS-RunRemoteScript, Targets: [], Parameters: {commandLine: 'x.sh {{ Id }}'}}",
    "action: 'aws:executeAwsApi', inputs: {Service: ssm, Api: SendCommand, Parameters: {commands: ['a', 'b {{ Id }}']}}",
    "action: 'aws:runInstances', inputs: {ImageId: i, UserData: '#!/bin/sh {{ Id }}'}",
]


@pytest.mark.parametrize("step", _REMOTE)
def test_a_value_in_code_for_another_machine_is_refused(step: str) -> None:
    plan, notes = automation(f"- {{name: a, {step}}}", _PARAMETERS)
    assert "not_imported" in only(plan).metadata
    assert noted(notes, "left out", "a", "would be read as code")


def test_a_value_that_cannot_be_code_may_stand_in_a_remote_command() -> None:
    parameters = "{Mode: {type: String, allowedValues: [soft, hard]}, Count: {type: Integer}, Any: {type: String, allowedValues: ['a;b']}}"
    command = "- {{name: a, action: 'aws:runCommand', inputs: {{DocumentName: D, InstanceIds: [i], Parameters: {{commands: ['{0}']}}}}}}"
    plan, _ = automation(command.format("run {{ Mode }} {{ Count }}"), parameters)
    assert [step.id for step in plan.steps] == ["a", "a_wait"]
    assert "inputs.Mode" in calls(plan)["a"][7]
    plan, _ = automation(command.format("run {{ Any }}"), parameters)
    assert "not_imported" in only(plan).metadata


@pytest.mark.parametrize(
    ("operation", "written"),
    [
        ("DescribeTargetGroups", "describe-target-groups"),
        ("ListWebACLs", "list-web-acls"),
        ("CreateCachediSCSIVolume", "create-cached-iscsi-volume"),
        ("DescribeDBInstances", "describe-db-instances"),
    ],
)
def test_names_are_written_as_the_command_line_writes_them(operation: str, written: str) -> None:
    inputs = f"{{Service: s, Api: {operation}, TargetGroupARNs: [a], LoadBalancerArns: [b]}}"
    plan, _ = automation(f"- {{name: a, action: 'aws:executeAwsApi', inputs: {inputs}}}")
    assert calls(plan)["a"][2:7] == [written, "--target-group-arns", "a", "--load-balancer-arns", "b"]


_FAKE_AWS = """\
#!/bin/bash
echo "$1 $2 $3" >>"$CALLS"
case "$*" in
  *list-commands*) echo Failed ;;
  *get-automation-execution*) [ "$(grep -c start-automation "$CALLS")" -lt 3 ] && echo Failed || echo Success ;;
  *stop-instances*) exit 254 ;;
  *) echo id-1 ;;
esac
"""


async def run_with_fake_aws(folder: Path, monkeypatch: pytest.MonkeyPatch, plan: ExecutionPlan) -> tuple[PlanRun, list[str]]:
    """Run a converted plan with a program `aws` that answers as `_FAKE_AWS` does. Return the run and the calls."""
    program, log = folder / "bin" / "aws", folder / "calls"
    program.parent.mkdir()
    program.write_text(_FAKE_AWS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    # Commands get the variables of the plan and no others.
    for step in plan.steps:
        step.parameters["env"] = {**step.parameters.get("env", {}), "CALLS": str(log)}
    plan.options.require_approval = False
    store = PlanStore(f"sqlite:///{folder}/plans.db")
    run = await arun_plan(plan, inputs=dict.fromkeys(plan.inputs, "x"), tools=ToolRegistry.with_builtins(), store=store, offline=True)
    await store.close()
    return run, [" ".join(line.split()[:2]) for line in log.read_text().splitlines()]


async def test_after_a_failed_step_that_continues_the_next_steps_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, notes = automation(
        "- {name: stop, action: 'aws:executeAwsApi', onFailure: Continue, inputs: {Service: ec2, Api: StopInstances}}\n"
        "- {name: patch, action: 'aws:runCommand', onFailure: Continue, inputs: {DocumentName: D, InstanceIds: [i-1]}}\n"
        "- {name: tell, action: 'aws:executeAwsApi', inputs: {Service: sns, Api: Publish}}"
    )
    assert noted(notes, "changed", "stop, patch", "the run ends as partial")
    run, called = await run_with_fake_aws(tmp_path, monkeypatch, plan)
    assert called == ["ec2 stop-instances", "ssm send-command", "ssm list-commands", "sns publish"]
    assert run.status == "partial"


async def test_a_failure_that_is_not_critical_does_not_change_how_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = automation(
        "- {name: stop, action: 'aws:executeAwsApi', onFailure: Continue, isCritical: false, inputs: {Service: ec2, Api: StopInstances}}\n"
        "- {name: tell, action: 'aws:executeAwsApi', inputs: {Service: sns, Api: Publish}}"
    )
    run, called = await run_with_fake_aws(tmp_path, monkeypatch, plan)
    assert (run.status, called) == ("completed", ["ec2 stop-instances", "sns publish"])


async def test_each_attempt_starts_a_called_automation_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, notes = automation("- {name: a, action: 'aws:executeAutomation', maxAttempts: 3, inputs: {DocumentName: D}}")
    assert noted(notes, "changed", "a", "each attempt starts it again")
    run, called = await run_with_fake_aws(tmp_path, monkeypatch, plan)
    assert (run.status, called) == ("completed", ["ssm start-automation-execution", "ssm get-automation-execution"] * 3)


@pytest.mark.parametrize(("seconds", "retries", "timeout_ms"), [(300, 0, 300_000), (1500, 2, None)])
def test_a_waiter_is_repeated_until_the_limit_of_the_step(seconds: int, retries: int, timeout_ms: int | None) -> None:
    plan, _ = automation(
        f"- {{name: a, action: 'aws:changeInstanceState', timeoutSeconds: {seconds}, onFailure: Continue, "
        "inputs: {InstanceIds: [i-1], DesiredState: stopped, CheckStateOnly: true}}\n"
        "- {name: b, action: 'aws:sleep', inputs: {Duration: PT1S}}"
    )
    waiter = plan.steps[0]
    assert (waiter.max_retries, waiter.timeout_ms, waiter.on_error, calls(plan)["a"][0]) == (retries, timeout_ms, "continue", "aws")


def test_an_approval_before_a_branch_becomes_a_gate_of_each_choice() -> None:
    sleep = "action: 'aws:sleep', inputs: {Duration: PT1S}"
    plan, _ = automation(
        "- {name: p, action: 'aws:pause', inputs: {}}\n"
        "- {name: c, action: 'aws:branch', inputs: {Choices: [{NextStep: x, Variable: '{{ Id }}', StringEquals: x}], Default: y}}\n"
        f"- {{name: x, isEnd: true, {sleep}}}\n- {{name: y, {sleep}}}\n- {{name: z, {sleep}}}",
        _PARAMETERS,
    )
    assert [step.requires_approval for step in plan.steps] == [True, True, False]


def test_a_document_that_is_not_an_automation_is_refused() -> None:
    with pytest.raises(NotConvertibleError, match=r"schemaVersion is 2\.2"):
        convert("schemaVersion: '2.2'\nmainSteps: [{name: a, action: 'aws:runShellScript'}]")
