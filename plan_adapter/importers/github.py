"""Converts a workflow of GitHub Actions to a plan."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from plan_adapter.importers.conversion import (
    Document,
    NotConvertibleError,
    Report,
    check_steps,
    input_name,
    is_placeholder,
    mapping,
    members,
    prose,
)
from plan_adapter.importers.github_jobs import Jobs
from plan_adapter.importers.github_scope import Scope, WorkflowContext
from plan_adapter.model.graph import topological_order

_TYPES = {"string": "string", "boolean": "boolean", "number": "number", "choice": "string", "environment": "string"}
_WITHOUT_DEFAULT: Mapping[str, Any] = {"string": "", "boolean": False, "number": 0}
_FIELDS = frozenset({"name", "on", "jobs", "env", "defaults", "run-name", "permissions", "concurrency"})
_LEFT_OUT = {
    "run-name": "a run is named after its plan",
    "permissions": "steps have the permissions of the worker",
    "concurrency": "write `concurrency: {key, when_busy}` if runs must exclude each other",
}


def is_workflow(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a workflow of GitHub Actions."""
    return "on" in document and isinstance(document.get("jobs"), dict)


def convert_workflow(document: Mapping[str, Any], report: Report, *, source: str) -> Document:
    """Return the plan document of a workflow that was read from `source`, and add to `report` what became of each part.

    Raises NotConvertibleError if it has no steps.
    """
    events = _read_events(document["on"])
    name = prose(document.get("name") or re.sub(r"\.ya?ml$", "", source))
    manual = [event for event in ("workflow_dispatch", "workflow_call") if event in events]
    workflow = WorkflowContext(report, tuple(dict.fromkeys([*manual, *events])) or ("workflow_dispatch",))
    _add_inputs(workflow, events)
    _report_events(events, report)
    for key in document.keys() - _FIELDS:
        report.add("left out", f"`{key}`, which plans do not have")
    for key in document.keys() & _LEFT_OUT.keys():
        report.add("left out", f"`{key}`: {_LEFT_OUT[key]}")
    steps = _convert_jobs(document, workflow)
    plan: Document = {
        "name": name[:80],
        "description": f"{name} (from a workflow of GitHub Actions)",
        "inputs": workflow.inputs,
        "steps": steps,
    }
    if outputs := _convert_outputs(events, workflow):
        plan["outputs"] = outputs
    workflow.stand_ins.drop_unused(plan, report)
    check_steps(steps, workflow.inputs, report)
    if any(step["tool_name"] == "bash" and not is_placeholder(step) for step in steps):
        report.add("changed", "scripts also stop at a failure inside a pipeline (`pipefail`)")
        report.add(
            "left out", "variables such as `GITHUB_SHA` and `CI` in the programs that scripts start; those that scripts name are set"
        )
    return plan


def _read_events(on: Any) -> dict[str, Any]:
    if isinstance(on, dict):
        return mapping(on)
    return dict.fromkeys([on] if isinstance(on, str) else [str(event) for event in members(on)])


def _add_inputs(workflow: WorkflowContext, events: Mapping[str, Any]) -> None:
    for event in ("workflow_dispatch", "workflow_call"):
        for github_name, definition in mapping(mapping(events.get(event)).get("inputs")).items():
            if github_name not in workflow.names:
                name = input_name(github_name, workflow.inputs)
                if name != github_name:
                    workflow.report.add("changed", f"the input `{github_name}` is called `{name}`")
                workflow.names[github_name] = name
                workflow.inputs[name] = _convert_input(mapping(definition), name, workflow.report)


def _convert_input(definition: Document, name: str, report: Report) -> Document:
    github_type = str(definition.get("type", "string"))
    kind = _TYPES.get(github_type, "string")
    found: Document = {"type": kind}
    if definition.get("description"):
        found["description"] = prose(definition["description"])
    options = definition.get("options")
    if github_type == "choice" and members(options):
        found["enum"] = [str(option) for option in members(options)]
    elif github_type == "environment":
        report.add("changed", "its type `environment` is a text: add an `enum` of the names that are allowed", f"input {name}")
    default = _convert_default(definition.get("default"), kind)
    if default is None and definition.get("required") is not True:
        default = found["enum"][0] if "enum" in found else _WITHOUT_DEFAULT[kind]
    if isinstance(default, str) and ("${{" in default or default not in found.get("enum", [default])):
        report.add("left out", f"the default `{prose(default)}`, so a value is required", f"input {name}")
        default = None
    if default is not None:
        found["default"] = default
    return found


def _convert_default(value: Any, kind: str) -> Any:
    match kind:
        case "boolean" if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        case "number" if re.fullmatch(r"-?\d+(\.\d+)?", str(value)):
            return float(value)
        case "string" if isinstance(value, bool):
            return str(value).lower()
        case "string" if value is not None:
            return str(value)
        case _:
            return None


def _report_events(events: Mapping[str, Any], report: Report) -> None:
    for event, settings in events.items():
        if event == "schedule":
            for entry in members(settings):
                cron = mapping(entry).get("cron")
                report.add("left out", f'`schedule`: type `plan deploy FILE --cron "{cron}" --time-zone UTC`')
        elif event not in ("workflow_dispatch", "workflow_call"):
            report.add("left out", f"`on: {event}`: a plan starts with `plan run` or as a deployment")


def _convert_jobs(document: Mapping[str, Any], workflow: WorkflowContext) -> list[Document]:
    jobs = {name: mapping(job) for name, job in mapping(document["jobs"]).items()}
    needs = {name: list(_needed_jobs(job)) for name, job in jobs.items()}
    found = Jobs(
        workflow,
        mapping(document.get("defaults")),
        is_only_job=len(jobs) == 1,
        needed=frozenset(need for names in needs.values() for need in names),
    )
    outer = Scope(workflow, "", "workflow").within("workflow", document.get("env"))
    order = topological_order(needs)
    for name in order:
        found.add(name, jobs[name], outer)
    for name in jobs.keys() - set(order):
        workflow.report.add("left out", "the job, because it waits for itself", name)
    return found.steps


def _needed_jobs(job: Mapping[str, Any]) -> Iterator[str]:
    needs = job.get("needs")
    yield from [needs] if isinstance(needs, str) else map(str, members(needs))


def _convert_outputs(events: Mapping[str, Any], workflow: WorkflowContext) -> Document:
    outputs = mapping(mapping(events.get("workflow_call")).get("outputs"))
    scope = Scope(workflow, "", "outputs")
    found: Document = {}
    for name, output in outputs.items():
        try:
            found[name] = scope.text(mapping(output).get("value", ""))
        except NotConvertibleError as error:
            workflow.report.add("left out", f"an output of the workflow: {error}", name)
    for name in [name for name, text in found.items() if "secrets." in text]:
        del found[name]
        workflow.report.add("left out", "an output of the workflow that contains a secret", name)
    return found
