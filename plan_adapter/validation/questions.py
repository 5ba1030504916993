"""Checks the questions of a plan: their fields, who may answer, and the fields of a step that a question does not have."""

from plan_adapter.options import Question
from plan_adapter.plan import Step
from plan_adapter.readable import is_secret_name, visible
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.inputs import check_definitions
from plan_adapter.values import join

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
