"""Checks the questions of a plan: their fields, who may answer, and the fields of a step that a question does not have."""

from typing import Any

from plan_adapter.local.settings import Settings
from plan_adapter.model.options import Question
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import is_secret_name, visible
from plan_adapter.model.values import join
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.inputs import check_definitions

FORM_FIELDS = ("decision", "approver", "code", "signature", "note", "digest")
"""The fields of every gate's form, whose names the fields of a question cannot have."""

_CALL_FIELDS = (
    *("tool_name", "parameters", "input", "goal", "tools", "max_rounds", "for_each", "label", "done_when", "effect", "isolation"),
    *("max_retries", "retry_delay_ms", "retry_backoff", "retry_jitter", "timeout_ms", "requires_approval", "rollback", "rollback_failed"),
    *("runner", "steps", "batch", "max_failures", "creates_secrets"),
)
"""The fields of a step that concern a call. A question makes no call."""


def check_question(step: Step, at: str, findings: Findings) -> None:
    """Add the problems of a step that asks a question, or that has a field only a question has."""
    if step.ask is None:
        for field in ("approvers", "expires"):
            if getattr(step, field):
                message = f"`{field}` belongs to a question, and the step has no `ask`"
                findings.add("bad-question", f"{at}.{field}", message, "write it under `approval` of the plan, or remove it")
        return
    for field in _CALL_FIELDS:
        if getattr(step, field) != type(step).model_fields[field].get_default(call_default_factory=True):
            findings.add("bad-question", f"{at}.{field}", f"a question has no `{field}`: it calls no tool", "remove it, or `ask`")
    _check_fields(step.ask, f"{at}.ask", findings)
    _check_names(step.approvers, f"{at}.approvers", findings)
    if step.expires == "default" and (required := [name for name, field in step.ask.fields.items() if field.is_required]):
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


_NOT_IN_GOALS = {
    "tool_name": "a goal calls its `tools`",
    "parameters": "the model chooses the arguments",
    "input": "the model chooses the arguments",
    "for_each": "a goal is pursued once",
    "steps": "a goal has no steps",
    "effect": "its effect is that of its `tools`",
    "runner": "its tools are called in the process of the run",
    "rollback": "what the model writes is not undone",
}


_SENDING_TOOLS = ("http_get",)
"""Built-in tools that only read, but can still send text from their caller to any address."""


def check_goal(step: Step, at: str, tools: ToolRegistry, findings: Findings) -> tuple[Tool[..., Any], ...]:
    """Add the problems of a step with a goal, and return the tools that its model may use."""
    for field, why in _NOT_IN_GOALS.items():
        if getattr(step, field) != Step.model_fields[field].get_default(call_default_factory=True):
            findings.add("bad-goal", f"{at}.{field}", f"a goal has no `{field}`: {why}", "remove it, or `goal`")
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


def check_no_goal(step: Step, at: str, findings: Findings) -> None:
    """Add the problems of a step without a goal that has a field only a goal has."""
    for field in ("tools", "max_rounds"):
        if getattr(step, field):
            findings.add("bad-goal", f"{at}.{field}", f"`{field}` belongs to a goal, and the step has no `goal`", "remove it")
