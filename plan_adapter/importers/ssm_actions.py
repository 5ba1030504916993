"""Converts the actions of an Automation document to calls of tools."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plan_adapter.importers.conversion import Document, NotConvertibleError, as_expression, literal, mapping, members
from plan_adapter.importers.ssm_values import Names, code_problem, is_mapping_type, is_selector, kebab, kind_of, query_of, references

FIRST_OUTPUT = "<the output of the first step>"
"""Stands in the command of a second step for what the first one printed."""

_SERVICES = {"s3": "s3api", "config": "configservice", "codedeploy": "deploy", "states": "stepfunctions"}
_READS = ("describe-", "get-", "list-")
_FLAGS = frozenset({"--no-reboot", "--encrypted", "--force", "--dry-run", "--skip-final-snapshot", "--apply-immediately", "--multi-az"})
"""Options without a value, which a parameter of type String may set."""

_POLL_MS = 15_000
_WAIT_MS = 3_600_000  # how long AWS waits by default
_WAITER_MS = 600_000  # how long most waiters of the command line wait; those for stacks wait for an hour

_SCRIPT_ENDING = """

import contextlib, json, sys
_events = {{
    name.removesuffix(":json"): json.loads(value) if name.endswith(":json") else value
    for name, value in zip(sys.argv[1::2], sys.argv[2::2])
}}
with contextlib.redirect_stdout(sys.stderr):
    _result = {handler}(_events, {{}})
for _path in {paths}:
    _value = {{"Payload": _result}}
    for _key in _path:
        _value = _value[_key]
    if isinstance(_value, list) and all(isinstance(_member, str) for _member in _value):
        _value = ",".join(_value)
    print(_value if isinstance(_value, str) and "\\n" not in _value else json.dumps(_value))
"""
"""Calls the handler as Automation does: with the input payload, and with its outputs selected from what it returns."""

_INVOKE = """\
answer=$(mktemp)
error=$(aws lambda invoke --function-name "$FUNCTION_NAME" --invocation-type "$INVOCATION_TYPE" --payload "$PAYLOAD" \\
  --cli-binary-format raw-in-base64-out --query FunctionError --output text "$answer")
cat "$answer"
[ "$error" = None ]
"""

_AWAIT = """\
while true; do
  status=$({query} --output text)
  case $status in
    {succeeded}) exit 0 ;;
    {running}) sleep 15 ;;
    *) echo "{what} ended as $status" >&2; exit 1 ;;
  esac
done
"""
_AWAIT_AUTOMATION = _AWAIT.format(
    query='aws ssm get-automation-execution --automation-execution-id "$ID" --query AutomationExecution.AutomationExecutionStatus',
    succeeded="Success | CompletedWithSuccess",
    running="Pending | InProgress | Waiting | Runbook* | Scheduled",
    what="the automation",
)
_AWAIT_COMMAND = _AWAIT.format(
    query='aws ssm list-commands --command-id "$ID" --query "Commands[0].Status"',
    succeeded="Success",
    running="Pending | InProgress | Cancelling | None",
    what="the command",
)


@dataclass(slots=True)
class Action:
    """One step of a document: its name, inputs, declared outputs and limits. `notes` and `left_out` collect what its conversion changes."""

    name: str
    inputs: Mapping[str, Any]
    declared: list[tuple[str, str, str]]  # name, selector, type
    names: Names
    timeout_ms: int | None = None
    attempts: int = 1
    notes: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])

    def text(self, value: Any) -> str:
        """Return an input as the text of a parameter."""
        return self.names.text(value, self.name)

    def require(self, key: str) -> Any:
        """Return an input. Raises NotConvertibleError if it is missing."""
        if self.inputs.get(key) in (None, ""):
            raise NotConvertibleError(f"it has no `{key}`")
        return self.inputs[key]

    def ignore_except(self, *keys: str) -> None:
        """Note the inputs other than `keys`, which the conversion leaves out."""
        self.left_out += sorted(self.inputs.keys() - {*keys})


@dataclass(frozen=True, slots=True)
class Calls:
    """The steps that an action becomes, by the suffix of their id. `outputs` are what the first one prints, split at `separator`."""

    steps: dict[str, Document]
    outputs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    separator: str = "\t"


def convert_action(action: str, step: Action) -> Calls:
    """Return the calls of an action. Raises NotConvertibleError if it has no equivalent."""
    convert = _ACTIONS.get(action)
    if convert is None:
        raise NotConvertibleError(f"the action `{action}` has no equivalent")
    return convert(step)


def _command(*argv: str, **fields: Any) -> Document:
    return {"tool_name": "run_command", "parameters": {"argv": [*argv]}, **fields}


def _aws_call(step: Action, service: str, operation: str, inputs: Mapping[str, Any], *, query: str | None = None) -> Document:
    """Return a call of an API through the AWS command line."""
    name = kebab(operation)
    if not re.fullmatch(r"[\w.-]+ [\w-]+", f"{service} {name}"):
        raise NotConvertibleError(f"the API `{service} {operation}` is not a fixed name")
    if problem := code_problem(inputs, step.names):
        raise NotConvertibleError(problem)
    argv = ["aws", _SERVICES.get(service.lower(), service.lower()), name]
    for key, value in inputs.items():
        argv += _option_arguments(step, f"--{kebab(key)}", value)
    argv += ["--query", query, "--output", "text"] if query else ["--output", "json"]
    return _command(*argv, **({"effect": "read"} if name.startswith(_READS) else {}))


def _option_arguments(step: Action, option: str, value: Any) -> list[str]:
    whole = step.names.single_reference(value, step.name)
    refused = f"--{option[5:]}" if option.startswith("--no-") else f"--no-{option[2:]}"
    if isinstance(value, bool) or str(value).lower() in ("true", "false"):
        return [option if str(value).lower() == "true" else refused]
    if whole is not None and (whole.kind == "boolean" or option in _FLAGS):
        is_true = whole.code if whole.kind == "boolean" else f"{whole.code}.lowerAscii() == 'true'"
        return [as_expression(f"({is_true}) ? {literal(option)} : {literal(refused)}")]
    if whole is not None and whole.kind in ("array", "object"):
        return [f"{option}={as_expression(whole.code)}"]
    if members(value) and all(isinstance(member, str) for member in members(value)):
        wholes = [step.names.single_reference(member, step.name) for member in members(value)]
        if len(wholes) == 1 and wholes[0] is not None and wholes[0].kind == "array":
            return [f"{option}={as_expression(wholes[0].code)}"]
        return [option, *map(step.text, members(value))]
    if isinstance(value, dict | list):
        return [f"{option}={step.names.as_json(value, step.name)}"]
    return [option, step.text(value)]


def _api_inputs(step: Action, *others: str) -> dict[str, Any]:
    """Return the inputs that are parameters of the API."""
    return {key: value for key, value in step.inputs.items() if key not in ("Service", "Api", *others)}


def _output_query(outputs: list[tuple[str, str, str]]) -> str | None:
    """Return the query for the outputs of a step."""
    queries = [_query_for(selector, aws_type) for _, selector, aws_type in outputs]
    return None if not queries else queries[0] if len(queries) == 1 else f"[{', '.join(queries)}]"


def _query_for(selector: str, aws_type: str) -> str:
    query = query_of(selector)
    if is_mapping_type(aws_type):
        return f"to_string({query})"
    return f"join(',', {query})" if kind_of(aws_type) == "array" else query


def _convert_api(step: Action) -> Calls:
    declared = [output for output in step.declared if is_selector(output[1])]
    step.left_out += [f"outputs.{name}" for name, selector, _ in step.declared if not is_selector(selector)]
    call = _aws_call(step, str(step.require("Service")), str(step.require("Api")), _api_inputs(step), query=_output_query(declared))
    return Calls({"": call}, [(name, aws_type) for name, _, aws_type in declared])


def _convert_assert(step: Action) -> Calls:
    query = query_of(str(step.require("PropertySelector")))
    call = _aws_call(
        step, str(step.require("Service")), str(step.require("Api")), _api_inputs(step, "PropertySelector", "DesiredValues"), query=query
    )
    desired = step.require("DesiredValues")
    values = members(desired) or [desired]
    codes = list(dict.fromkeys(code for value in values for code in _spellings(step, value)))
    text = "result.stdout.trim()"
    tested = f"{text}.split('\\t').all(value, value in [{', '.join(codes)}])" if "[]" in query else f"{text} in [{', '.join(codes)}]"
    return Calls({"": {**call, "effect": "read", "done_when": as_expression(tested)}})


def _spellings(step: Action, value: Any) -> list[str]:
    """Return the codes of a wanted value; the command line writes `True` for a boolean."""
    text = str(value).lower()
    if text in ("true", "false"):
        return [literal(text), literal(text.capitalize())]
    code = step.names.code(value if isinstance(value, str) else str(value), step.name)
    return [code]


def _convert_wait(step: Action) -> Calls:
    calls = _convert_assert(step)
    limit = step.timeout_ms or _WAIT_MS
    retries = max(1, limit // _POLL_MS)
    step.notes.append(f"asks every {_POLL_MS // 1000} seconds, {retries + 1} times at most")
    return Calls({"": {**calls.steps[""], "max_retries": retries, "retry_delay_ms": _POLL_MS}})


def _convert_script(step: Action) -> Calls:
    step.ignore_except("Runtime", "Handler", "Script", "InputPayload")
    runtime = str(step.inputs.get("Runtime", ""))
    script = step.inputs.get("Script")
    if not isinstance(script, str):
        raise NotConvertibleError("its script is an attachment")
    if "${{" in script or references(script) & step.names.values.keys():
        raise NotConvertibleError("its script contains `{{ }}`, and a value in a script would be read as code")
    if runtime.lower().startswith("powershell"):
        if step.inputs.get("InputPayload"):
            raise NotConvertibleError("it is a PowerShell script with an input payload")
        return Calls({"": _command("pwsh", "-Command", script)})
    if not str(step.require("Handler")).rpartition(".")[2].isidentifier():
        raise NotConvertibleError("its handler is not the name of a function")
    if not runtime.startswith("python"):
        raise NotConvertibleError(f"the runtime `{runtime}` is not known here")
    paths = [_selector_keys(selector) for _, selector, _ in step.declared] or [["Payload"]]
    # As in AWS, a step without a `Selector` has its whole answer as the output.
    ending = _SCRIPT_ENDING.format(handler=str(step.require("Handler")).rpartition(".")[2], paths=json.dumps(paths))
    payload = list[str]()
    for key, value in mapping(step.inputs.get("InputPayload")).items():
        whole = step.names.single_reference(value, step.name)
        is_text = isinstance(value, str) and (whole is None or whole.kind == "string")
        # The space makes the value of the expression a part of a text, which inserts it as JSON.
        payload += [key, step.text(value)] if is_text else [f"{key}:json", f" {step.names.as_json(value, step.name)}"]
    outputs = [(name, aws_type) for name, _, aws_type in step.declared] or [("Payload", "String")]
    step.notes.append("the Python script runs as `python3 -c …`; its own output goes to stderr")
    return Calls({"": _command("python3", "-c", script.rstrip() + ending, *payload)}, outputs, separator="\n")


def _selector_keys(selector: str) -> list[str | int]:
    query_of(selector)
    if "*" in selector:
        raise NotConvertibleError(f"the selector `{selector}` has no equivalent")
    found = re.findall(r"\.([\w-]+)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]", selector)
    return [int(number) if number else name or quoted for name, number, quoted in found]


def _convert_run_command(step: Action) -> Calls:
    sent = _aws_call(step, "ssm", "SendCommand", _api_inputs(step), query="Command.CommandId")
    return _started_and_awaited(step, sent, _AWAIT_COMMAND, "CommandId", limit_ms=_WAIT_MS)


def _started_and_awaited(step: Action, start: Document, wait: str, output: str, *, limit_ms: int | None = None) -> Calls:
    """Return a call that prints the id of what it starts, and the script that waits for its end.

    A step with several attempts starts it again after a failure, so one script does both.
    """
    if step.attempts > 1:
        step.notes.append("one script starts it and waits for it, so that each attempt starts it again")
        script = f'ID=$("$@") || exit\necho "$ID"\n{wait}'
        call = _command("bash", "-c", script, "bash", *start["parameters"]["argv"])
        return Calls({"": call | _limit(step, limit_ms)}, [(output, "String")])
    waiting = {"tool_name": "bash", "effect": "read", "parameters": {"command": wait, "env": {"ID": FIRST_OUTPUT}}}
    return Calls({"": start, "_wait": waiting | _limit(step, limit_ms)}, [(output, "String")])


def _limit(step: Action, limit_ms: int | None) -> Document:
    limit = step.timeout_ms or limit_ms
    return {} if limit is None else {"timeout_ms": limit}


def _waiter(step: Action, *argv: str, gives_up_after_ms: int = _WAITER_MS) -> Document:
    """Return a call of a waiter of the command line, repeated while it gives up before the step's own limit."""
    retries = -(-(step.timeout_ms or _WAIT_MS) // gives_up_after_ms) - 1
    return _command("aws", *argv, effect="read", **({"max_retries": retries} if retries else {}))


def _convert_change_state(step: Action) -> Calls:
    step.ignore_except("InstanceIds", "DesiredState", "CheckStateOnly", "Force")
    state = str(step.require("DesiredState"))
    verbs = {"running": "StartInstances", "stopped": "StopInstances", "terminated": "TerminateInstances"}
    if state not in verbs:
        raise NotConvertibleError(f"the state `{state}` depends on a value of the run")
    ids = {"InstanceIds": step.require("InstanceIds")}
    wait = _waiter(step, "ec2", "wait", f"instance-{state}", *_option_arguments(step, "--instance-ids", ids["InstanceIds"]))
    if str(step.inputs.get("CheckStateOnly", "")).lower() == "true":
        return Calls({"": wait})
    force = {"Force": True} if str(step.inputs.get("Force", "")).lower() == "true" and state == "stopped" else {}
    return Calls({"": _aws_call(step, "ec2", verbs[state], {**ids, **force}), "_wait": wait})


def _renaming_converter(
    operation: str, names: Mapping[str, str], *, query: str | None = None, output: str = "", waiter: tuple[str, ...] = ()
) -> Any:
    """Return a converter for an action that is one EC2 or CloudFormation call, followed by a wait if there is a `waiter`."""

    def convert(step: Action) -> Calls:
        service = "cloudformation" if operation.endswith("Stack") else "ec2"
        inputs = {names.get(key, key): value for key, value in step.inputs.items() if names.get(key, key)}
        call = _aws_call(step, service, operation, inputs, query=query)
        steps = {"": call}
        if waiter:
            is_image = waiter[1] == "--image-ids"
            value = FIRST_OUTPUT if is_image else step.text(step.require("StackName"))
            steps["_wait"] = _waiter(step, service, "wait", *waiter, value, gives_up_after_ms=_WAITER_MS if is_image else _WAIT_MS)
        return Calls(steps, [(output, "String")] if output else [])

    return convert


def _convert_create_tags(step: Action) -> Calls:
    step.ignore_except("ResourceType", "ResourceIds", "Tags")
    if str(step.inputs.get("ResourceType", "EC2")) != "EC2":
        raise NotConvertibleError("it tags something else than EC2 resources")
    return Calls({"": _aws_call(step, "ec2", "CreateTags", {"Resources": step.require("ResourceIds"), "Tags": step.require("Tags")})})


def _convert_invoke(step: Action) -> Calls:
    step.ignore_except("FunctionName", "InvocationType", "Payload", "InputPayload")
    payload = step.inputs.get("Payload", step.inputs.get("InputPayload", "{}"))
    env = {
        "FUNCTION_NAME": step.text(step.require("FunctionName")),
        "INVOCATION_TYPE": step.text(step.inputs.get("InvocationType", "RequestResponse")),
        "PAYLOAD": step.names.as_json(_parse_payload(payload), step.name),
    }
    return Calls({"": {"tool_name": "bash", "parameters": {"command": _INVOKE, "env": env}}}, [("Payload", "String")])


def _parse_payload(payload: Any) -> Any:
    """Return the JSON value of a payload, so that values of the run can be escaped where they are inserted."""
    try:
        return json.loads(payload) if isinstance(payload, str) else payload
    except ValueError:
        raise NotConvertibleError("its payload is not JSON before values are inserted") from None


def _as_list(step: Action, value: Any) -> Any:
    whole = step.names.single_reference(value, step.name)
    if isinstance(value, list):
        return members(value)
    return value if whole is not None and whole.kind == "array" else [value]


def _convert_automation(step: Action) -> Calls:
    inputs = {key: value for key, value in step.inputs.items() if key != "RuntimeParameters"}
    step.require("DocumentName")
    if given := mapping(step.inputs.get("RuntimeParameters")):
        inputs["Parameters"] = {key: _as_list(step, value) for key, value in given.items()}
    start = _aws_call(step, "ssm", "StartAutomationExecution", inputs, query="AutomationExecutionId")
    return _started_and_awaited(step, start, _AWAIT_AUTOMATION, "ExecutionId")


def _convert_sleep(step: Action) -> Calls:
    step.ignore_except("Duration")
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", str(step.inputs.get("Duration", "")))
    if found is None or not any(found.groups()):
        raise NotConvertibleError("it sleeps for a time that is not a fixed duration")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return Calls({"": _command("sleep", str(((days * 24 + hours) * 60 + minutes) * 60 + seconds), effect="read")})


_IMAGE = {"ImageName": "Name", "ImageDescription": "Description", "SourceImageId": "SourceImageId", "SourceRegion": "SourceRegion"}
_ACTIONS: Mapping[str, Callable[[Action], Calls]] = {
    "aws:executeAwsApi": _convert_api,
    "aws:assertAwsResourceProperty": _convert_assert,
    "aws:waitForAwsResourceProperty": _convert_wait,
    "aws:executeScript": _convert_script,
    "aws:runCommand": _convert_run_command,
    "aws:changeInstanceState": _convert_change_state,
    "aws:createTags": _convert_create_tags,
    "aws:invokeLambdaFunction": _convert_invoke,
    "aws:executeAutomation": _convert_automation,
    "aws:sleep": _convert_sleep,
    "aws:createImage": _renaming_converter(
        "CreateImage", _IMAGE, query="ImageId", output="ImageId", waiter=("image-available", "--image-ids")
    ),
    "aws:copyImage": _renaming_converter("CopyImage", _IMAGE, query="ImageId", output="ImageId", waiter=("image-available", "--image-ids")),
    "aws:deleteImage": _renaming_converter("DeregisterImage", {}),
    "aws:runInstances": _renaming_converter(
        "RunInstances",
        {"MinInstanceCount": "MinCount", "MaxInstanceCount": "MaxCount"},
        query="join(',', Instances[].InstanceId)",
        output="InstanceIds",
    ),
    "aws:createStack": _renaming_converter(
        "CreateStack", {}, query="StackId", output="StackId", waiter=("stack-create-complete", "--stack-name")
    ),
    "aws:deleteStack": _renaming_converter("DeleteStack", {}, waiter=("stack-delete-complete", "--stack-name")),
}
