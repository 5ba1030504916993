"""The texts of step gates and outcome gates."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from plan_adapter.expressions import Prediction
from plan_adapter.gates.text import (
    EFFECTS_SHOWN,
    FEWEST,
    HEIGHT,
    Values,
    description_section,
    digests_section,
    document,
    expiry,
    first_values,
    height_of,
    masked_note,
    notice_lines,
    opening,
    retries,
    title,
    uses_secrets,
    value_lines,
)
from plan_adapter.plan import Effect, Step
from plan_adapter.preview import RollbackPreview, preview_rollback
from plan_adapter.readable import call_name, code, duration, moment, words
from plan_adapter.record import Attempt
from plan_adapter.validation import BoundPlan


def step_gate_text(
    bound: BoundPlan,
    step: Step,
    *,
    effect: Effect,
    parameters: Mapping[str, JsonValue],
    item: int | None,
    label: str | None = None,
    approval_digest: str,
    expires_ms: int,
    results: Mapping[str, JsonValue] | None = None,
    ends: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
) -> str:
    """Return the text of a step gate: the parameters as the tool will receive them, and what led to the call.

    `results` are those of the steps that it depends on, and `ends` is how they ended (`completed`, `skipped`). `item` counts from 0.
    """
    validated = bound.validated
    secrets = sorted(validated.parameters[step.id].secrets)
    # In this call, everything except secrets is resolved. In its rollback, only expressions that use inputs alone are.
    values, known = Values.of(bound, expressions=bool(secrets)), Values.of(bound)
    undo = preview_rollback(step.id, validated, Prediction(bound.inputs))
    first = [*notice_lines(notices), *opening(f"Approve {words(call_name(step.id, item, label))}?", step.description)]
    asked = [f"{_danger(effect, undo, or_fails=step.rollback_failed)} It calls {code(step.tool_name or '')} with:", ""]
    closing = [f"A step of {title(validated.plan)}. {expiry(validated.plan, expires_ms, step)}", ""]
    handed = values.parameters(validated.tools[step.id].name, parameters)
    shown, is_whole = first_values(handed, height=max(HEIGHT - height_of([*first, *asked, *closing]), FEWEST))
    first += [*asked, *(shown or ["- no parameters"]), "", *closing]
    rest = [] if is_whole else ["### Parameters", "", *(line for name, value in handed for line in value_lines(code(name), value)), ""]
    rest += ["### The call", "", f"- {_tries(step, validated.plan.timeout_ms_of(step))}", *uses_secrets(secrets), ""]
    rest += [*description_section(step.description), *_rollback_section(undo, known)]
    values.has_masked = values.has_masked or known.has_masked
    rest += masked_note(values)
    rest += _what_came_before(validated.dependencies[step.id], results or {}, ends or {}, Values(bound.inputs, expressions=False))
    return document(first, [*rest, *digests_section(validated.digest, approval_digest=approval_digest)])


def _danger(effect: Effect, undo: RollbackPreview | None, *, or_fails: bool) -> str:
    """Return a sentence about what the call can change."""
    if undo is not None:
        when = "if it fails, or the run fails after it" if or_fails else "if the run fails after it"
        return f"It {'reads' if effect == 'read' else '**writes**'}; {when}, it is undone as described below."
    if effect == "read":
        return "It reads, and changes nothing."
    return f"**It writes{', may be repeated safely,' if effect == 'idempotent_write' else ''} and cannot be undone.**"


def _tries(step: Step, timeout_ms: int) -> str:
    timeout = f"at most {duration(timeout_ms)}" if timeout_ms else "no timeout"
    return f"{timeout} an attempt, {retries(step)}" if step.max_retries else f"{timeout}, no retries"


def _rollback_section(undo: RollbackPreview | None, values: Values) -> list[str]:
    """Return the section on how a call is undone. Its rollback is approved with the plan, and nobody is asked again."""
    if undo is None:
        return []
    how = f"By {code(undo.tool_name)} ({EFFECTS_SHOWN[undo.effect]}), without asking again"
    lines = ["### How it is undone", "", f"{how}: if the run fails, or if who may approve asks for it:", ""]
    for name, value in values.parameters(undo.tool_name, undo.parameters):
        lines += value_lines(code(name), value)
    return [*lines, ""]


def _what_came_before(after: Sequence[str], results: Mapping[str, JsonValue], ends: Mapping[str, str], values: Values) -> list[str]:
    lines = ["### What it depends on", ""] if after else []
    for name in after:
        end = f" {words(ends[name])}" if name in ends else " completed" if name in results else " has no result"
        lines += value_lines(f"{code(name)}{end}", values.masked("result", results[name])) if name in results else [f"- {code(name)}{end}"]
    return [*lines, ""] if lines else []


_ENDS_THE_RUN = "the run ends here, as cancelled. Whether it was done stays unknown, so a rollback does not undo it"
_ENDS_THE_ROLLBACK = (
    "nothing further is undone. Whether it was done stays unknown, and it is not called again until its outcome is recorded"
)


def outcome_text(bound: BoundPlan, step: Step, lost: Attempt, *, why: str, made_by: str | None, run_id: str) -> str:
    """Return the question how the attempt `lost` ended: what it called, since when, and what each answer does.

    `made_by` is the start of the run, with its process, that made the attempt. `why` says why the outcome is unknown.
    """
    validated, undoes = bound.validated, lost.kind == "rollback"
    template = validated.rollbacks[step.id].parameters if undoes else validated.parameters[step.id]
    values = Values.of(bound, expressions=bool(template.secrets))
    description = f"Undo: {step.description}" if undoes and step.description else step.description
    first = opening(f"How did {words(call_name(lost.step_id, lost.item, lost.label, kind=lost.kind))} end?", description)
    asked = [f"Attempt {lost.number} is a write, and nobody knows whether it was done. It called {code(lost.tool_name)} with:", ""]
    answers = ["Look at what it was to change, then answer: **done**, **again** (it was not done) or **abort**.", ""]
    handed = values.parameters(lost.tool_name, lost.parameters)
    shown, is_whole = first_values(handed, height=max(HEIGHT - height_of([*first, *asked, *answers]), FEWEST))
    first += [*asked, *(shown or ["- no parameters"]), "", *answers]
    rest = [] if is_whole else ["### Parameters", "", *(line for name, value in handed for line in value_lines(code(name), value)), ""]
    rest += [
        "### The attempt",
        "",
        f"- it began at {moment(lost.started_at)}" + (f", in {words(made_by)} of run {words(run_id)}" if made_by else ""),
        f"- why nobody knows: {words(why)}",
        "",
        "### What each answer does",
        "",
        "- **done**: it is not made again. The result that you give (JSON, empty for none) is what later steps get",
        "- **again**: it is made again" + (", once it is approved anew" if lost.approval_id is not None else ""),
        f"- **abort**: {_ENDS_THE_ROLLBACK if undoes else _ENDS_THE_RUN}",
        "",
        "Your answer is recorded as a receipt, with your name. It approves nothing.",
        "",
    ]
    return document(first, [*rest, *description_section(description), *masked_note(values), *digests_section(validated.digest)])
