"""Converts an Automation document of AWS Systems Manager to a plan."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plan_adapter.expressions import matches
from plan_adapter.importers.conversion import (
    Document,
    NotConvertibleError,
    Report,
    as_expression,
    check_steps,
    conjunction,
    ignore_failure,
    in_milliseconds,
    input_name,
    is_placeholder,
    mapping,
    members,
    negation,
    placeholder_step,
    prose,
    step_id,
)
from plan_adapter.importers.ssm_actions import FIRST_OUTPUT, Action, Calls, convert_action
from plan_adapter.importers.ssm_flow import BRANCH, StepOrder, choices_of, order_of
from plan_adapter.importers.ssm_values import Names, condition_of, kind_of, read_outputs, references
from plan_adapter.model.errors import ExpressionError

SCHEMA_VERSION = "0.3"
_GATES = frozenset({"aws:approve", "aws:pause"})
_FIELDS = frozenset({"schemaVersion", "description", "assumeRole", "parameters", "mainSteps", "outputs", "files", "variables"})
_STEP_FIELDS = frozenset(
    {"name", "action", "inputs", "description", "outputs", "nextStep", "isEnd", "onFailure", "isCritical", "maxAttempts", "timeoutSeconds"}
)
_PARAMETER_FIELDS = frozenset(
    {"type", "description", "default", "allowedValues", "allowedPattern", "minChars", "maxChars", "minItems", "maxItems", "displayType"}
)
_DEFAULTS = {"onFailure": ("Abort",), "maxAttempts": ("1",), "isCritical": ("True", "true")}
_LIMITS = {"minChars": "min_length", "maxChars": "max_length", "minItems": "min_length", "maxItems": "max_length"}


def is_automation(document: Mapping[str, Any]) -> bool:
    """Return whether a document is one of AWS Systems Manager, of any schema version."""
    return "schemaVersion" in document and isinstance(document.get("mainSteps"), list)


def convert_automation(document: Mapping[str, Any], report: Report, *, source: str) -> Document:
    """Return the plan document of an Automation document that was read from `source`, and add to `report` what became of each part.

    Raises NotConvertibleError if it is a document of another kind, or has no steps.
    """
    if str(document["schemaVersion"]) != SCHEMA_VERSION:
        version = document["schemaVersion"]
        raise NotConvertibleError(f"its schemaVersion is {version}, and only Automation documents ({SCHEMA_VERSION}) can be imported")
    named = [mapping(step) for step in members(document["mainSteps"]) if mapping(step).get("name")]
    steps = [{**step, "name": str(step["name"]), "action": str(step.get("action"))} for step in named]
    if not steps:
        raise NotConvertibleError("it has no steps")
    names = Names(report, frozenset(step["name"] for step in steps))
    _add_parameters(document, steps, names)
    for key in document.keys() - _FIELDS | document.keys() & {"files", "variables"}:
        report.add("left out", f"`{key}`, which plans do not have")
    conversion = _Conversion({step["name"]: step for step in steps}, order_of(steps, report), names)
    for name in conversion.order.order:
        conversion.add(name)
    report.add("changed", "calls of AWS use its command line, `aws`, with the credentials and the region of the worker")
    name = re.sub(r"\.(ya?ml|json)$", "", source)
    words = " ".join(str(document.get("description") or name).split())
    plan: Document = {"name": name[:80], "description": prose(words), "inputs": names.inputs, "steps": conversion.steps}
    if outputs := _convert_outputs(document.get("outputs"), names):
        plan["outputs"] = outputs
    names.stand_ins.drop_unused(plan, report)
    check_steps(conversion.steps, names.inputs, report)
    return plan


def _convert_outputs(outputs: Any, names: Names) -> Document:
    found = Document()
    for output in members(outputs):
        if str(output) in names.values:
            found[re.sub(r"\W+", "_", str(output))] = as_expression(names.values[str(output)].code)
        else:
            names.report.add("left out", f"the output `{output}`, which no converted step has")
    return found


# The parameters.


def _add_parameters(document: Mapping[str, Any], steps: list[Document], names: Names) -> None:
    report, role = names.report, document.get("assumeRole")
    if role is not None:
        report.add("left out", "`assumeRole`: steps use the credentials of the worker")
    used = references([[step for step in steps if step["action"] not in _GATES], document.get("outputs")])
    gates = references([step for step in steps if step["action"] in _GATES])
    for aws_name, definition in mapping(document.get("parameters")).items():
        if aws_name in references(role) - used:
            report.add("left out", "the parameter, which only `assumeRole` uses", aws_name)
        elif aws_name in gates - used:
            report.add("left out", "the parameter, which only an approval uses", aws_name)
        else:
            names.add_parameter(aws_name, _convert_parameter(aws_name, mapping(definition), report))


def _convert_parameter(aws_name: str, definition: Document, report: Report) -> Document:
    at, aws_type = f"parameter {aws_name}", str(definition.get("type", "String"))
    kind = kind_of(aws_type)
    found: Document = {"type": kind}
    if aws_type in ("StringList", "MapList") or aws_type.startswith("List<"):
        found["items"] = "object" if aws_type == "MapList" else "string"
    if definition.get("description"):
        found["description"] = prose(definition["description"])
    for key in definition.keys() - _PARAMETER_FIELDS:
        report.add("left out", f"`{key}`, which inputs do not have", at)
    for key in definition.keys() & _LIMITS.keys():
        found[_LIMITS[key]] = definition[key]
    default = _convert_default(definition.get("default"), kind)
    if default is None and definition.get("default") is not None:
        report.add("left out", f"its default, which is not a valid {aws_type}, so a value is required", at)
    if references(default):
        report.add("left out", f"its default `{prose(default)}`, which AWS reads when a run starts, so a value is required", at)
        default = None
    allowed = definition.get("allowedValues")
    if members(allowed) and kind in ("string", "integer", "boolean"):
        found["enum"] = [_convert_default(value, kind) for value in members(allowed)]
        if default is not None and default not in found["enum"]:
            report.add("left out", "its default, which is not among the allowed values, so a value is required", at)
            default = None
    elif allowed is not None:
        report.add("left out", "`allowedValues`, which inputs have only for single values", at)
    pattern = definition.get("allowedPattern")
    if pattern is not None and kind == "string" and (fault := _find_pattern_fault(str(pattern), default)):
        report.add("left out", f"`allowedPattern: {pattern}`: {fault}", at)
    elif pattern is not None and kind == "string":
        found["pattern"] = str(pattern)
    elif pattern is not None:
        report.add("left out", f"`allowedPattern: {pattern}`, which inputs have only for texts", at)
    if default is not None:
        found["default"] = default
    return found


def _find_pattern_fault(pattern: str, default: Any) -> str:
    try:
        fits = matches(pattern, default if isinstance(default, str) else "")
        return "" if fits or not isinstance(default, str) else "the default does not match it"
    except ExpressionError as error:
        return str(error)


def _convert_default(value: Any, kind: str) -> Any:
    text = str(value).strip().lower()
    match kind:
        case "boolean":
            return text == "true" if text in ("true", "false") else None
        case "integer":
            return int(text) if re.fullmatch(r"-?\d+", text) else None
        case "string" if isinstance(value, bool):
            return text
        case "string":
            return None if value is None else str(value)
        case "array":
            found = _from_json(value)
            return (
                [str(member) if isinstance(member, int | float) else member for member in members(found)]
                if isinstance(found, list)
                else None
            )
        case _:
            found = _from_json(value)
            return mapping(found) if isinstance(found, dict) else None


def _from_json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


# The steps.


@dataclass(slots=True)
class _Conversion:
    """Collects the steps of a plan, in the order in which a run reaches them."""

    known: Mapping[str, Document]
    order: StepOrder
    names: Names
    steps: list[Document] = field(default_factory=list[Document])
    _last_steps: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # by document step: plan steps to wait for
    _gates: dict[str, str] = field(default_factory=dict[str, str])  # by step of the document: what people approve
    _choices: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # by branch: the condition of each way out

    def add(self, name: str) -> None:
        """Append what a step of the document becomes."""
        step = self.known[name]
        before = self.order.before(name)
        waits_for = list(dict.fromkeys(end for other in before for end in self._last_steps[other]))
        gate = next((self._gates[other] for other in before if self._gates.get(other)), "")
        action = step["action"]
        if action in _GATES or action == BRANCH:
            self._last_steps[name] = waits_for
            self._gates[name] = gate
            self._report_extra_fields(name, step)
            if action == BRANCH:
                self._add_branch(name, step, waits_for)
            else:
                self._gates[name] = self._convert_gate(name, step)
            return
        self._report_fields(name, step)
        self._last_steps[name] = self._append_steps(name, step, waits_for, gate)

    def _report_extra_fields(self, name: str, step: Document) -> None:
        """Report the fields of an approval or a branch other than its inputs. Neither is a step of the plan."""
        hints = {"timeoutSeconds": "; see `options.approval_timeout_ms`"} if step["action"] != BRANCH else {}
        for key in sorted(step.keys() - {"name", "action", "inputs", "description", "nextStep", "isEnd"}):
            is_reported = key == "onFailure" and str(step[key]).lower().startswith("step:")
            if not is_reported and str(step[key]) not in _DEFAULTS.get(key, ()):
                self.names.report.add("left out", f"`{key}: {prose(step[key])}`{hints.get(key, '')}", name)
        if step["action"] == BRANCH:
            self.names.report.add("changed", "the branch is the `when` of the steps that it leads to", name)

    def _convert_gate(self, name: str, step: Document) -> str:
        inputs = mapping(step.get("inputs"))
        following = ", ".join(f"`{other}`" for other in self.order.after(name))
        approvers = inputs.get("Approvers")
        who = f"; its approvers were {prose(approvers)}: name yours under `approval`" if approvers else ""
        if following:
            self.names.report.add("changed", f"the approval is a gate of the next step now ({following}){who}", name)
        else:
            self.names.report.add("left out", f"the approval, because no step follows it{who}", name)
        for key in inputs.keys() - {"Approvers", "Message"}:
            self.names.report.add("left out", f"`{key}` of the approval", name)
        return prose(inputs.get("Message") or step.get("description") or name)

    def _add_branch(self, name: str, step: Document, waits_for: list[str]) -> None:
        """Note the condition of each way out of a branch. A person is asked about choices that cannot be translated."""
        own = step_id(name, {str(step["id"]) for step in self.steps})
        conditions, fields = list[str](), dict[str, Document]()
        for choice in choices_of(step):
            try:
                conditions.append(condition_of(choice, self.names, name))
            except NotConvertibleError as error:
                target = str(choice.get("NextStep"))
                field_name = input_name(f"go to {target}", fields)
                fields[field_name] = {"type": "boolean", "description": prose(f"Go to {target}? In the document: {json.dumps(choice)}")}
                self.names.report.add("changed", f"a person is asked whether to go to `{target}`, because {error}", name)
                conditions.append(f"steps.{own}.result.{field_name}")
        refused = [negation(condition) for condition in conditions]
        # The last way out is taken if no choice is true.
        self._choices[name] = [conjunction(*refused[:index], condition) for index, condition in enumerate([*conditions, ""])]
        if fields:
            asked = prose(step.get("description") or f"Which way from {name}?")
            question: Document = {"id": own, "ask": {"question": asked, "fields": fields}}
            self.steps.append(question | _place(self._when_condition(name), waits_for))
            self._last_steps[name] = [own]

    def _when_condition(self, name: str) -> str:
        ways = [
            conjunction(*(self._choices[branch][choice] for branch, choice in self._sort_choices(way))) for way in self.order.ways(name)
        ]
        return "" if "" in ways else " || ".join(sorted(ways) if len(ways) == 1 else [f"({way})" for way in sorted(ways)])

    def _sort_choices(self, way: frozenset[tuple[str, int]]) -> list[tuple[str, int]]:
        return sorted(way, key=lambda choice: (self.order.order.index(choice[0]), choice[1]))

    def _append_steps(self, name: str, step: Document, waits_for: list[str], gate: str) -> list[str]:
        report, inputs = self.names.report, mapping(step.get("inputs"))
        timeout = in_milliseconds(step.get("timeoutSeconds"), 1000)
        attempts = str(step.get("maxAttempts", 1))
        action = Action(name, inputs, _declared_outputs(step), self.names, timeout, int(attempts) if attempts.isdigit() else 1)
        try:
            calls = convert_action(step["action"], action)
        except NotConvertibleError as error:
            report.add("left out", f"`{step.get('action')}`: {error}; a placeholder step replaces it", name)
            calls = Calls({"": placeholder_step(f"write what `{step.get('action')}` did in {name}: {error}", step)})
        for note in action.notes:
            report.add("changed", note, name)
        for key in action.left_out:
            report.add("left out", f"`{key}` of `{step.get('action')}`", name)
        when, taken = self._when_condition(name), {str(step["id"]) for step in self.steps}
        first = step_id(name, taken)
        ends, before = list[Document](), waits_for
        for ending, call in calls.steps.items():
            own = first if not ending else step_id(first + ending, taken)
            fields: Document = {"id": own, "description": prose(step.get("description") or name), **call, **_place(when, waits_for)}
            fields["parameters"] = _insert_first_output(call["parameters"], first)
            if gate and not ending:
                fields["requires_approval"] = True
                fields["description"] = prose(f"{fields['description']} (approval: {gate})")
            if not is_placeholder(fields):
                self._add_limits(step, fields, action, is_first=not ending)
                ends.append(fields)
            self.steps.append(fields)
            waits_for = [own]
        if attempts != "1" and not attempts.isdigit():
            report.add("left out", f"`maxAttempts: {prose(attempts)}`: write `max_retries`", name)
        elif action.attempts > 1 and len(ends) > 1:
            report.add("changed", f"`maxAttempts: {attempts}` repeats a call that failed, not one whose wait failed", name)
        result = f"steps.{first}.result.stdout"
        found = read_outputs(calls.outputs, result, separator=calls.separator, is_sure=not when)
        self.names.values |= {f"{name}.{output}": value for output, value in found.items()}
        continues = str(step.get("onFailure", "")).lower() == "continue"
        return waits_for if not ends or not continues else self._go_on_after_failure(name, step, ends, before, waits_for)

    def _go_on_after_failure(self, name: str, step: Document, calls: list[Document], before: list[str], after: list[str]) -> list[str]:
        """Let the next steps run although one of `calls` fails. Return the ids that they wait for."""
        report = self.names.report
        is_plain = len(calls) == 1 and not calls[0].keys() & {"max_retries", "timeout_ms", "done_when"}
        if is_plain and not _is_critical(step) and self.order.after(name):
            ignore_failure(calls[0])
            report.add("changed", "`onFailure: Continue`: the command itself ignores its failure, so that the next steps run", name)
            return after
        for fields in calls:
            fields["on_error"] = "continue"
        also = "" if _is_critical(step) else ", although `isCritical` is false"
        report.add("changed", f"`onFailure: Continue`: after a failure the next steps run, and the run ends as partial{also}", name)
        return before

    @staticmethod
    def _add_limits(step: Document, fields: Document, action: Action, *, is_first: bool) -> None:
        has_limit = bool(fields.keys() & {"max_retries", "timeout_ms"})
        if action.timeout_ms is not None and not has_limit:
            fields["timeout_ms"] = action.timeout_ms
        if is_first and "maxAttempts" in step:
            fields.setdefault("max_retries", max(0, action.attempts - 1))

    def _report_fields(self, name: str, step: Document) -> None:
        report = self.names.report
        for key in step.keys() - _STEP_FIELDS:
            report.add("left out", f"`{key}`, which steps do not have", name)
        if not _is_critical(step) and str(step.get("onFailure", "")).lower() != "continue":
            report.add("left out", "`isCritical: false`: a failure of the step also fails the run", name)


def _place(when: str, waits_for: list[str]) -> Document:
    """Return the fields that say when a step runs."""
    return ({"when": as_expression(when)} if when else {}) | ({"depends_on": waits_for} if waits_for else {})


def _is_critical(step: Document) -> bool:
    return str(step.get("isCritical", "true")).lower() != "false"


def _declared_outputs(step: Document) -> list[tuple[str, str, str]]:
    """Return name, selector and type of each output that a step declares."""
    outputs = [mapping(output) for output in members(step.get("outputs"))]
    return [
        (str(output.get("Name")), str(output.get("Selector", "$")), str(output.get("Type", "String")))
        for output in outputs
        if output.get("Name")
    ]


def _insert_first_output(parameters: Document, first: str) -> Document:
    """Return the parameters with what the first step of an action printed."""
    printed = as_expression(f"steps.{first}.result.stdout.trim()")
    found = dict(parameters)
    if "argv" in parameters:
        found["argv"] = [printed if part == FIRST_OUTPUT else part for part in parameters["argv"]]
    if "env" in parameters:
        found["env"] = {name: printed if part == FIRST_OUTPUT else part for name, part in parameters["env"].items()}
    return found
