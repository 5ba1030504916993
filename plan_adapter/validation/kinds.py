"""Checks what kind a step is: the fields that it cannot have, and the fields of a question or a goal."""

from collections.abc import Mapping
from typing import Any, get_args

from plan_adapter.local.settings import Settings
from plan_adapter.model.options import Question
from plan_adapter.model.plan import Step, StepKind, fields_of, step_fields
from plan_adapter.model.readable import is_secret_name, visible
from plan_adapter.model.values import join
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.inputs import check_definitions

FORM_FIELDS = ("decision", "approver", "code", "signature", "note", "digest")
"""The fields of every gate's form, whose names the fields of a question cannot have."""

KINDS: tuple[StepKind, ...] = get_args(StepKind)

_ELSEWHERE = "write it under `approval` of the plan, or remove it"
_BELONGS: Mapping[str, tuple[str, str, str]] = {
    "approvers": ("bad-question", "`approvers` belongs to a question, and the step has no `ask`", _ELSEWHERE),
    "expires": ("bad-question", "`expires` belongs to a question, and the step has no `ask`", _ELSEWHERE),
    "tools": ("bad-goal", "`tools` belongs to a goal, and the step has no `goal`", "remove it"),
    "max_rounds": ("bad-goal", "`max_rounds` belongs to a goal, and the step has no `goal`", "remove it"),
    "batch": ("bad-group", "only a group has `batch`, and this step has no `steps`", "remove it"),
    "max_failures": ("bad-group", "only a group has `max_failures`, and this step has no `steps`", "remove it"),
    "inputs": ("bad-sub-plan", "`inputs` are for a plan that the step runs, and it has no `plan`", "remove it, or write `plan`"),
}
"""The code, message and hint for a field of another kind in a call or a goal."""

_NOT_IN_GOALS: Mapping[str, str] = {
    "tool_name": "a goal calls its `tools`",
    "for_each": "a goal is pursued once",
    "label": "a goal is pursued once",
    "effect": "its effect is that of its `tools`",
    "runner": "its tools are called in the process of the run",
    "rollback": "what the model writes is not undone",
    "rollback_failed": "what the model writes is not undone",
}
"""Why a goal has no such field. The model chooses the arguments of its calls."""

_DECIDES: Mapping[str, StepKind] = {"plan": "plan", "pinned": "plan", "steps": "group", "ask": "question", "goal": "goal"}
"""The kind that a field gives a step."""


def check_fields_of_kind(step: Step, kind: StepKind, at: str, findings: Findings) -> None:
    """Add a problem for each field that a step of `kind` cannot have."""
    defaults, before = fields_of(Step), KINDS[: KINDS.index(kind)]
    for name, field in step_fields().items():
        if kind in field.kinds or getattr(step, name) == defaults[name][1]:
            continue
        if _DECIDES.get(name) not in before:  # otherwise the check of what is possible here has refused that kind
            code, message, hint = _misplaced(name, kind)
            findings.add(code, f"{at}.{name}", message, hint)


def _misplaced(field: str, kind: StepKind) -> tuple[str, str, str]:
    """Return the code, message and hint for a field that a step of `kind` cannot have."""
    match kind:
        case "plan":
            return "bad-sub-plan", f"a step that runs a plan has no `{field}`", "write it in the steps of that plan"
        case "group":
            return "bad-group", f"a group calls no tool, so it has no `{field}`", "write it in the group's steps"
        case "question":
            return "bad-question", f"a question has no `{field}`: it calls no tool", "remove it, or `ask`"
        case "goal" if field not in _BELONGS:
            why = _NOT_IN_GOALS.get(field, "the model chooses the arguments")
            return "bad-goal", f"a goal has no `{field}`: {why}", "remove it, or `goal`"
        case _:
            return _BELONGS[field]


def check_question(step: Step, question: Question, at: str, findings: Findings) -> None:
    """Add the problems of a step that asks `question`."""
    _check_fields(question, f"{at}.ask", findings)
    _check_names(step.approvers, f"{at}.approvers", findings)
    if step.expires == "default" and (required := [name for name, field in question.fields.items() if field.is_required]):
        message = f"the defaults cannot be the answer: there is no default for {', '.join(f'`{name}`' for name in required)}"
        findings.add("bad-question", f"{at}.expires", message, "write a `default` for each field, or another `expires`")


def _check_fields(question: Question, at: str, findings: Findings) -> None:
    if not question.question.strip():
        findings.add("bad-question", f"{at}.question", "the question is empty", "write what a person should answer")
    if not question.fields:
        findings.add("bad-question", f"{at}.fields", "the question has no fields, so nobody could answer it", "write at least one")
    check_definitions(question.fields, findings, place=f"{at}.fields", what="a field")
    for name in question.fields:
        place = join(f"{at}.fields", name)
        if name in FORM_FIELDS:
            findings.add("bad-name", place, f"every form has a field `{name}` of its own", f"use another name, such as `{name}_`")
        elif is_secret_name(name):
            message = f"`{name}` is the name of a secret, and answers are recorded and shown"
            findings.add("bad-question", place, message, "use `${{ secrets.… }}` where the secret is needed, or another name")


def _check_names(names: list[str], at: str, findings: Findings) -> None:
    for index, name in enumerate(names):
        if not name.strip() or name != name.strip() or visible(name) != name or not name.isprintable():
            hint = "write a name or a group, without spaces around it and without invisible characters"
            findings.add("bad-approver", f"{at}[{index}]", f"{name[:80]!r} cannot be a name", hint)


_SENDING_TOOLS = ("http_get",)
"""Built-in tools that only read, but can still send text from their caller to any address."""


def check_goal(step: Step, at: str, tools: ToolRegistry, findings: Findings) -> tuple[Tool[..., Any], ...]:
    """Add the problems of a step with a goal, and return the tools that its model may use."""
    if step.group is not None:
        findings.add("not-yet", f"{at}.goal", "a step of a group cannot have a goal yet", "move it out of the group")
    if not (step.goal or "").strip():
        findings.add("bad-goal", f"{at}.goal", "the goal is empty", "describe in words what the model should achieve")
    if not step.tools:
        findings.add("bad-goal", f"{at}.tools", "the goal has no tools, so nothing could be done", "name at least one tool")
    if not Settings().model:
        message = "no model is configured here, so the goal would not be pursued"
        findings.warn("no-model", f"{at}.goal", message, "set PLAN_ADAPTER_MODEL where the plan runs")
    for index, name in enumerate(step.tools):
        if name in step.tools[:index]:
            findings.warn("duplicate-entry", f"{at}.tools[{index}]", f"`{name}` is written twice", "remove one of them")
        elif name in _SENDING_TOOLS and name in tools and not step.requires_approval:
            message = f"with `{name}` the model can send what it knows to any address, and nobody is asked"
            hint = "name a tool of your own for the addresses that it needs, or write `requires_approval: true`"
            findings.warn("open-read", f"{at}.tools[{index}]", message, hint)
    return tuple(tool for name in dict.fromkeys(step.tools) if (tool := tools.get(name)) is not None)
