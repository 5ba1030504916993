"""Tests of converting AWS Systems Manager Automation documents: what is kept, changed and left out, and the notes about it."""

from typing import Any

import pytest

from plan_adapter.runbooks.conversion import NotConvertibleError
from tests.runbooks.builders import FIXTURES, automation, calls, convert, noted, only


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
        "Start": ["Stop_wait", "Force", "Describe"],
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
    assert calls(plan)["Force"][:3] == ["bash", "-c", '"$@" || echo "exit code $? is ignored" >&2']
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
        ("Variable: 'a{{ Id }}', StringEquals: x", "inputs.go_to_b"),
    ],
)
def test_a_choice_becomes_a_condition(choice: str, expected: str) -> None:
    steps = f"- {{name: c, action: 'aws:branch', isEnd: true, inputs: {{Choices: [{{NextStep: b, {choice}}}]}}}}\n"
    steps += "- {name: b, action: 'aws:sleep', inputs: {Duration: PT1M30S}}"
    plan, _ = automation(steps, _PARAMETERS)
    assert (only(plan).when, calls(plan)["b"]) == (f"${{{{ {expected} }}}}", ["sleep", "90"])


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
    assert plan.steps[1].parameters["env"] == {"EXECUTION": "${{ steps.a.result.stdout.trim() }}"}


def test_an_output_that_cannot_be_selected_becomes_an_input() -> None:
    plan, notes = automation(
        "- {name: a, action: 'aws:executeAwsApi', inputs: {Service: s, Api: A}, outputs: [{Name: o, Selector: '$..x'}]}\n"
        "- {name: b, action: 'aws:executeAwsApi', inputs: {Service: s, Api: B, Id: '{{ a.o }}'}}"
    )
    assert calls(plan)["b"] == ["aws", "s", "b", "--id", "${{ inputs.a_o }}", "--output", "json"]
    assert noted(notes, "left out", "a", "`outputs.o`")
    assert noted(notes, "changed", "b", "`a.o`", "`a_o`")


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
