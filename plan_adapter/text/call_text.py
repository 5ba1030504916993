"""The texts of step gates and outcome gates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from plan_adapter.model.options import Effect, Question
from plan_adapter.model.plan import Step, flattened
from plan_adapter.model.readable import as_text, call_name, code, counted, duration, listed, moment, prose, words
from plan_adapter.model.record import Attempt, GroupItem, StartedCommand
from plan_adapter.model.rounds import RoundRecord
from plan_adapter.model.status import StepStatus
from plan_adapter.text.commands import resolve_command
from plan_adapter.text.gate_text import (
    EFFECTS_SHOWN,
    HEIGHT,
    MIN_CALL_HEIGHT,
    ValueMask,
    description_section,
    digests_section,
    expiry_sentence,
    first_values,
    gate_document,
    heading_lines,
    height_of,
    notice_lines,
    plan_title,
    quote_lines,
    redaction_note,
    retry_summary,
    secrets_lines,
    short_description,
    undo_sentence,
    value_lines,
)
from plan_adapter.text.listing import field_line, label_of, labelled_facts, rollback_facts
from plan_adapter.text.preview import Predictions, RollbackPreview, facts_of, preview_rollback
from plan_adapter.validation import BoundPlan, ValidatedPlan

SHOWN_ITEMS = 8
"""How many of a group's ended items a gate names."""

SHOWN_ROUNDS = 5
"""How many rounds the gate of a goal's next call shows, the newest ones."""


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
    nobody: str | None = None,
    results: Mapping[str, JsonValue] | None = None,
    ends: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
    rounds: Sequence[RoundRecord] = (),
    ended_items: Sequence[GroupItem] = (),
) -> str:
    """Return the text of a step gate: the parameters as the tool will receive them, or the question, and what led to it.

    `results` are those of the steps that it depends on, and `ends` is how they ended (`completed`, `skipped`). `item` counts from 0. A
    call or a question of a model belongs to a round of the step's goal, and `rounds` are those before it. `ended_items` are the items of a
    group that ended before this one. `nobody` says why nobody may answer, if nobody may.
    """
    validated = bound.validated
    waits = expiry_sentence(validated.plan, expires_ms, step, nobody=nobody)
    if step.inner:
        name = call_name(step.id, item, label)
        return _outer_gate_text(bound, step, parameters, name, approval_digest, waits, notices, ended_items)
    before = _dependencies_section(validated.dependencies[step.id], results or {}, ends or {}, ValueMask(bound.inputs, expressions=False))
    what = "A step" if step.ask is None else f"Asked by the step {code(step.id)}"
    goal = _predicted_goal(bound, step)
    if goal:
        short, is_whole = short_description(str(goal["goal"]))
        goal = {name: value for name, value in goal.items() if name != "goal" or not is_whole}
        what = f"Round {(item or 0) + 1} of the goal “{words(short)}{'' if is_whole else ' …'}”, a step"
        before = [*_goal_section(goal, rounds, ValueMask.of(bound, expressions=False)), *before]
    closing = [f"{what} of {plan_title(validated.plan)}. {waits}", ""]
    digests = digests_section(validated.digest, approval_digest=approval_digest)
    if step.ask is not None:
        mask = ValueMask.of(bound, expressions=False)
        asked = _question_lines(step, step.ask, mask.redact("question", parameters["question"]))
        first = [*notice_lines(notices), *asked, *closing]
        return gate_document(first, [*description_section(step.description), *redaction_note(mask), *before, *digests])
    secrets = sorted(validated.parameters[step.id].secrets)
    # In this call, everything except secrets is resolved. In its rollback, only expressions that use inputs alone are.
    mask, undo_mask = ValueMask.of(bound, expressions=bool(secrets)), ValueMask.of(bound)
    undo = preview_rollback(step.id, validated, Predictions(validated, bound.inputs).of(step))
    first = [*notice_lines(notices), *heading_lines(f"Approve {words(call_name(step.id, item, label))}?", step.description)]
    group = validated.plan.find_step(step.group)
    alone = group is not None and validated.plan.rolls_back_failed_items(group)
    asked = [_call_introduction(step, effect, undo, with_item=alone), ""]
    arguments = mask.redact_parameters(step.tool_name or "", parameters)
    shown, is_whole = first_values(arguments, height=max(HEIGHT - height_of([*first, *asked, *closing]), MIN_CALL_HEIGHT))
    first += [*asked, *(shown or ["- no parameters"]), "", *closing]
    rest = [] if is_whole else ["### Parameters", "", *(line for name, value in arguments for line in value_lines(code(name), value)), ""]
    rest += ["### The call", "", f"- {_attempt_limits(step, validated.plan.timeout_ms_of(step))}"]
    rest += secrets_lines(secrets, validated.created_secrets.creators)
    rest += [*_labelled_lines(step), ""]
    rest += [*description_section(step.description), *_rollback_section(undo, undo_mask, "its item or the run" if alone else "the run")]
    mask.has_redacted = mask.has_redacted or undo_mask.has_redacted
    rest += redaction_note(mask)
    return gate_document(first, [*rest, *before, *digests])


def call_summary(bound: BoundPlan, step: Step, *, effect: Effect, parameters: Mapping[str, JsonValue]) -> str:
    """Return what the gate of a call would show first: its description, what it can change, and its parameters."""
    arguments = ValueMask.of(bound, expressions=False).redact_parameters(step.tool_name or "", parameters)
    shown = [line for name, value in arguments for line in value_lines(code(name), value)]
    return "\n".join([step.description, _call_introduction(step, effect, None, with_item=False), *(shown or ["- no parameters"])])


def _call_introduction(step: Step, effect: Effect, undo: RollbackPreview | None, *, with_item: bool) -> str:
    """Return the introduction of a call. `with_item`: it is undone as soon as its item of a group has failed."""
    sentence = _effect_sentence(effect, undo, undone_on_failure=step.rollback_failed, with_item=with_item)
    return f"{sentence} It calls {code(step.tool_name or '')} with:"


def _predicted_goal(bound: BoundPlan, step: Step) -> dict[str, JsonValue]:
    """Return the goal of a step, and when it is met, as far as the inputs of the run determine them. Empty for a step without a goal."""
    validated = bound.validated
    original = validated.steps[step.id]
    goal = Predictions(validated, bound.inputs).of(original).of(validated.parameters[step.id]) if original.goal is not None else None
    done_when: dict[str, JsonValue] = {} if original.done_when is None else {"done_when": original.done_when}
    return done_when | goal if isinstance(goal, dict) else {}


def _goal_section(goal: Mapping[str, JsonValue], rounds: Sequence[RoundRecord], mask: ValueMask) -> list[str]:
    """Return the section on a goal and the outcomes of its newest rounds."""
    lines = ["### The goal", ""]
    lines += [line for name, value in sorted(goal.items(), reverse=True) for line in value_lines(code(name), mask.redact(name, value))]
    shown = [record for record in rounds if record.call is not None or record.replies][-SHOWN_ROUNDS:]
    for record in shown:
        call = None if record.call is None else replace(record.call, result=mask.redact("result", record.call.result))
        lines += [f"- round {record.round}: {fact}" for fact in (*record.replies, call) if fact is not None]
    return [*lines, ""] if goal or shown else []


def _question_lines(step: Step, question: Question, asked: JsonValue) -> list[str]:
    """Return a question as it is asked: its first line in the heading, which even a small form shows; then the rest and the fields."""
    text = asked if isinstance(asked, str) else as_text(asked)
    first, _, more = text.strip().partition("\n")
    shown, is_short = short_description(first)
    is_whole = is_short and not more
    rest = [] if is_whole else quote_lines(text)
    heading = heading_lines(f"{words(shown)}{'' if is_whole else ' …'}", step.description)
    return [*heading, *rest, *map(field_line, question.fields, question.fields.values()), ""]


def _outer_gate_text(
    bound: BoundPlan,
    outer: Step,
    parameters: Mapping[str, JsonValue],
    name: str,
    approval_digest: str,
    waits: str,
    notices: Sequence[str],
    ended_items: Sequence[GroupItem],
) -> str:
    """Return the text of the gate of a group, of one item of it, or of a sub-plan: the steps that will run, and for what."""
    validated, mask, predictions = bound.validated, ValueMask.of(bound), Predictions(bound.validated, bound.inputs)
    steps = [step for step in flattened(outer.inner) if not step.inner]
    effects: dict[str, Effect] = {step.id: validated.effect_of(step.id) for step in steps}
    # As far as it is known before the first step.
    known = {step.id: predictions.of(step, item=parameters.get("item") if step.group is not None else None) for step in steps}
    undone = {step.id: preview_rollback(step.id, validated, known[step.id]) for step in steps}
    writing = [step_id for step_id, effect in effects.items() if effect != "read"]
    danger = undo_sentence([step_id for step_id in writing if undone[step_id] is None], writes=bool(writing), limit=len(writing))
    first = [*notice_lines(notices), *heading_lines(f"Approve {words(name)}?", outer.description)]
    asked = [line for key, value in parameters.items() for line in value_lines(key, mask.redact(key, value))]
    of_plan = "" if outer.plan is None else f" of the plan {code(outer.plan)}"
    first += [f"It runs {counted(len(effects), 'step')}{of_plan}, for:", "", *asked, ""]
    if facts := facts_of(outer, validated)[1:]:  # the first one counts the steps
        first += [*(f"- {fact}" for fact in facts), ""]
    if ended_items:  # the failed ones first
        ends = [
            f"{prose(item.label)} {item.in_words}" for item in sorted(ended_items, key=lambda item: item.status is not StepStatus.FAILED)
        ]
        first += [f"Before it: {listed(ends, SHOWN_ITEMS)}.", ""]
    first += [_inner_row(step, validated) for step in flattened(outer.inner) if step.plan is not None or not step.inner]
    first += ["", f"{danger} A part of {plan_title(validated.plan)}. {waits}", ""]
    rest = [
        "### The steps",
        "",
        *_labelled_lines(outer),
        *(f"- {fact}" for fact in rollback_facts(outer, validated.plan.on_error_of(outer))),
    ]
    for step in steps:
        rest += [f"- {code(step.id)}: {_attempt_limits(step, validated.plan.timeout_ms_of(step))}"]
        predicted = known[step.id].of(validated.parameters[step.id])
        arguments = mask.redact_parameters(step.tool_name or "", predicted if isinstance(predicted, dict) else {})
        rest += [line for key, value in arguments for line in value_lines(f"{code(step.id)} {code(key)}", value)]
        if (undo := undone[step.id]) is not None:
            rest.append(f"- {code(step.id)} is undone by {code(undo.tool_name)} ({EFFECTS_SHOWN[undo.effect]}), without another approval")
            arguments = mask.redact_parameters(undo.tool_name, undo.parameters)
            rest += [line for key, value in arguments for line in value_lines(f"{code(step.id)} undone with {code(key)}", value)]
    rest += ["", *description_section(outer.description), *redaction_note(mask)]
    return gate_document(first, [*rest, *digests_section(validated.digest, approval_digest=approval_digest)])


def _inner_row(step: Step, validated: ValidatedPlan) -> str:
    """Return the line about a step inside a group or a sub-plan: what it calls, or what a model or another plan may do."""
    facts = "; ".join(facts_of(step, validated))
    if step.plan is not None:
        return f"- **{words(step.id)}**: plan {code(step.plan)}, {facts}"
    return f"- **{words(step.id)}** ({EFFECTS_SHOWN[validated.effect_of(step.id)]}): {facts or code(step.called)}"


def _labelled_lines(step: Step) -> list[str]:
    """Return the lines of the fields with a label, without those that have decided by now that the gate opens, and for what."""
    facts = {name: text for name, text in labelled_facts(step).items() if name not in ("when", "for_each", "label")}
    return [line for name, text in facts.items() for line in value_lines(label_of(name), text)]


def _effect_sentence(effect: Effect, undo: RollbackPreview | None, *, undone_on_failure: bool, with_item: bool) -> str:
    """Return a sentence about what the call can change."""
    if undo is not None:
        what = "its item or the run" if with_item else "the run"
        when = f"if it fails, or {what} fails after it" if undone_on_failure else f"if {what} fails after it"
        return f"It {'reads' if effect == 'read' else '**writes**'}. It is undone {when}, as described below."
    if effect == "read":
        return "It reads and changes nothing."
    if effect == "idempotent_write":
        return "**It writes, can be repeated safely, and cannot be undone.**"
    return "**It writes and cannot be undone.**"


def _attempt_limits(step: Step, timeout_ms: int) -> str:
    timeout = f"at most {duration(timeout_ms)}" if timeout_ms else "no timeout"
    return f"{timeout} per attempt, {retry_summary(step)}" if step.max_retries else f"{timeout}, no retries"


def _rollback_section(undo: RollbackPreview | None, mask: ValueMask, what: str) -> list[str]:
    """Return the section on how a call is undone, once `what` fails. Its rollback is approved with the plan, and nobody is asked again."""
    if undo is None:
        return []
    how = f"By {code(undo.tool_name)} ({EFFECTS_SHOWN[undo.effect]}), without another approval"
    lines = ["### How it is undone", "", f"{how}, if {what} fails or an approver requests it:", ""]
    for name, value in mask.redact_parameters(undo.tool_name, undo.parameters):
        lines += value_lines(code(name), value)
    return [*lines, ""]


def _dependencies_section(after: Sequence[str], results: Mapping[str, JsonValue], ends: Mapping[str, str], mask: ValueMask) -> list[str]:
    lines = ["### What it depends on", ""] if after else []
    for name in after:
        end = f" {words(ends[name])}" if name in ends else " completed" if name in results else " has no result"
        label = f"{code(name)}{end}"
        lines += value_lines(label, mask.redact("result", results[name])) if name in results else [f"- {label}"]
    return [*lines, ""] if lines else []


_ABORT_ENDS_RUN = "the run ends here, as cancelled. The outcome stays unknown, so a rollback does not undo this call"
_ABORT_ENDS_ROLLBACK = "nothing else is undone. The outcome stays unknown, and this call is not repeated until somebody records its outcome"


def outcome_text(
    bound: BoundPlan,
    step: Step,
    attempt: Attempt,
    *,
    why: str,
    made_by: str | None,
    run_id: str,
    commands: Sequence[StartedCommand] = (),
    notices: Sequence[str] = (),
) -> str:
    """Return the text that asks how `attempt` ended: what it called, when it started, and what each answer does.

    `made_by` names the start of the run that made the attempt, and its process. `why` says why the outcome is unknown. `commands` are those
    that the attempt started.
    """
    validated, is_rollback = bound.validated, attempt.kind == "rollback"
    template = validated.rollbacks[step.id].parameters if is_rollback else validated.parameters[step.id]
    mask = ValueMask.of(bound, expressions=bool(template.secrets))
    description = f"Undo: {step.description}" if is_rollback and step.description else step.description
    called = call_name(attempt.step_id, attempt.item, attempt.label, kind=attempt.kind)
    first = [*notice_lines(notices), *heading_lines(f"How did {words(called)} end?", description)]
    asked = [
        f"Attempt {attempt.number} of this write was interrupted, and its outcome was not recorded. "
        + "".join(f"Its command **{words(command.in_words)}**. " for command in commands)
        + f"It called {code(attempt.tool_name)} with:",
        "",
    ]
    running = any(command.state == "running" for command in commands)
    end = resolve_command(run_id, (attempt.step_id, attempt.item), "again", label=attempt.label, kind=attempt.kind)
    refused = f"; refused while its command runs: {code(f'{end} --end')} ends the command first" if running else ""
    answers = ["Check whether the change was made, then answer: **done**, **again** (it was not done) or **abort**.", ""]
    arguments = mask.redact_parameters(attempt.tool_name, attempt.parameters)
    shown, is_whole = first_values(arguments, height=max(HEIGHT - height_of([*first, *asked, *answers]), MIN_CALL_HEIGHT))
    first += [*asked, *(shown or ["- no parameters"]), "", *answers]
    rest = [] if is_whole else ["### Parameters", "", *(line for name, value in arguments for line in value_lines(code(name), value)), ""]
    rest += [
        "### The attempt",
        "",
        f"- started at {moment(attempt.started_at)}" + (f" by {words(made_by)} of run {words(run_id)}" if made_by else ""),
        f"- why the outcome is unknown: {words(why)}",
        "",
        "### What each answer does",
        "",
        "- **done**: the call is not repeated. Later steps get the result that you enter (JSON, empty for none)",
        "- **again**: the call is repeated" + (", after another approval" if attempt.approval_id is not None else "") + refused,
        f"- **abort**: {_ABORT_ENDS_ROLLBACK if is_rollback else _ABORT_ENDS_RUN}",
        "",
        "Your answer is recorded as a receipt with your name. It approves nothing.",
        "",
    ]
    return gate_document(first, [*rest, *description_section(description), *redaction_note(mask), *digests_section(validated.digest)])
