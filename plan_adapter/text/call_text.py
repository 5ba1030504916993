"""The texts of step gates and outcome gates."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from plan_adapter.model import graph
from plan_adapter.model.goals import MODEL_ASKS
from plan_adapter.model.language import tr
from plan_adapter.model.options import Effect, Question
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import as_text, call_name, code, counted, duration, listed, moment, one_line, prose, words
from plan_adapter.model.record import Attempt, GroupItem, StartedCommand
from plan_adapter.model.rounds import RoundRecord
from plan_adapter.model.status import StepStatus
from plan_adapter.text.commands import resolutions_in_words, resolve_command
from plan_adapter.text.gate_text import (
    HEIGHT,
    MAX_LISTED,
    MIN_CALL_HEIGHT,
    NO_CONTEXT,
    QUOTE_COLUMNS,
    SHORT_COLUMNS,
    GateContext,
    ValueMask,
    asks_again,
    at_minute,
    description_section,
    digests_section,
    effect_shown,
    expiry_sentence,
    first_calls,
    first_values,
    gate_document,
    heading_lines,
    height_of,
    in_columns,
    inline_text,
    joined_lines,
    notice_lines,
    plan_title,
    quote_lines,
    quoted_description,
    redaction_note,
    retry_summary,
    secrets_lines,
    short_description,
    value_lines,
    worst_case_sentence,
)
from plan_adapter.text.listing import field_line, group_facts, label_of, labelled_facts, list_names
from plan_adapter.text.longest import attempt_ms, longest_call_ms
from plan_adapter.text.plan_text import LIMIT_BYTES, MOST_COUNTED, last_line, order_section, size_of, steps_list
from plan_adapter.text.preview import (
    Predictions,
    RollbackPreview,
    facts_of,
    hosts_facts,
    item_names_of,
    preview_inside,
    preview_rollback,
)
from plan_adapter.text.run_facts import short_result
from plan_adapter.validation import BoundPlan

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
    context: GateContext = NO_CONTEXT,
    nobody: str | None = None,
    quorum: int = 1,
    of_items: int | None = None,
    results: Mapping[str, JsonValue] | None = None,
    ends: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
    gated: Collection[str] = (),
    rounds: Sequence[RoundRecord] = (),
    ended_items: Sequence[tuple[GroupItem, str]] = (),
) -> str:
    """Return the text of a step gate: the parameters as the tool will receive them, or the question, and what led to it.

    `context` is the run that asks. `of_items` is how many items the step or its group has. `results` are those of the steps that it
    depends on, and `ends` is how they ended, in words (`completed`). `item` counts from 0. A call or a question of a model belongs to a
    round of the step's goal, and `rounds` are those before it. `ended_items` are the items of a group that ended before this one, each with
    its result or error. `gated` are the steps that ask before they run. `nobody` says why nobody may answer, if nobody may,
    and `quorum` how many people must approve.
    """
    validated = bound.validated
    waits = expiry_sentence(validated.plan, expires_ms, step, nobody=nobody, at=context.at, quorum=quorum)
    is_round = validated.steps[step.id].goal is not None
    named = step if step.ask is not None and not is_round else None  # a question has no name in its heading
    asks = _asking(bound, context, waits, step=named)
    heading = tr("Approve {name}?", name=_called_in_words(step.id, item, label, of_items))
    if step.inner:
        return _outer_gate_text(bound, step, parameters, heading, approval_digest, asks, notices, frozenset(gated) - {step.id}, ended_items)
    known = _known_before(validated.dependencies[step.id], results or {}, ends or {})
    before = _dependencies_section(validated.dependencies[step.id], results or {}, ends or {}, ValueMask.of(bound, expressions=False))
    goal = _predicted_goal(bound, step)
    if goal:
        short, is_whole = short_description(str(goal["goal"]))
        goal = {name: value for name, value in goal.items() if name != "goal" or not is_whole}
        goal_text = words(short) + ("" if is_whole else " …")
        asks = f"{tr('Round {number} of the goal “{goal}”.', number=(item or 0) + 1, goal=goal_text)} {asks}"
        before = [*_goal_section(goal, rounds, ValueMask.of(bound, expressions=False)), *before]
        known = _seen_by_model(rounds)
    digests = digests_section(validated.digest, approval_digest=approval_digest)
    if step.ask is not None:
        mask = ValueMask.of(bound, expressions=False)
        asked = _question_lines(step, step.ask, mask.redact("question", parameters["question"]))
        first = [*notice_lines(notices), *asked, " ".join([*_after_answer(bound, step, gated), *known, asks]), ""]
        facts = _labelled_lines(step)
        facts += [f"- {tr('may answer: {names}', names=list_names(step.approvers, MAX_LISTED))}"] if step.approvers else []
        about = [f"### {tr('The question')}", "", *facts, ""] if facts else []
        return gate_document(first, [*about, *description_section(step.description), *redaction_note(mask), *before, *digests])
    secrets = sorted(validated.parameters[step.id].secrets)
    # In this call, everything except secrets is resolved. In its rollback, only expressions that use inputs alone are.
    mask, undo_mask = ValueMask.of(bound, expressions=bool(secrets)), ValueMask.of(bound)
    undo = preview_rollback(step.id, validated, Predictions(validated, bound.inputs).of(step))
    if is_round:
        heading = tr("The model asks to call {tool}", tool=words(step.tool_name or ""))
    about = _reason_lines(step) if is_round else quoted_description(heading, step.description)
    head = [*notice_lines(notices), f"## {heading}", ""]
    group = validated.plan.find_step(step.group)
    alone = group is not None and validated.plan.rolls_back_failed_items(group)
    timeout_ms = attempt_ms(step, validated)
    lowered_from = None if is_round else validated.lowered_from(step.id)
    call = [_call_introduction(step, effect, undo, with_item=alone, lowered_from=lowered_from), ""]
    closing = [" ".join([*known, worst_case_sentence(longest_call_ms(step, timeout_ms)), asks]), ""]
    arguments = mask.redact_parameters(step.tool_name or "", parameters)
    left = HEIGHT - height_of([*head, *call, *closing])
    shown, is_whole = first_values(arguments, height=max(left - height_of(about), MIN_CALL_HEIGHT))
    if not is_whole and not is_round:  # the call is worth more than its description
        about = []
        shown, is_whole = first_values(arguments, height=max(left, MIN_CALL_HEIGHT))
    first = [*head, *about, *call, *(shown or [f"- {tr('no parameters')}"]), "", *closing]
    rest = [] if is_whole else _parameters_section(arguments)
    rest += [f"### {tr('The call')}", "", f"- {_attempt_limits(step, timeout_ms)}"]
    rest += secrets_lines(secrets, validated.created_secrets.creators)
    rest += [*_labelled_lines(step), ""]
    rest += description_section(step.description, is_shown=bool(about) and not is_round)
    rest += _rollback_section(undo, undo_mask, with_item=alone)
    mask.has_redacted = mask.has_redacted or undo_mask.has_redacted
    rest += redaction_note(mask)
    return gate_document(first, [*rest, *before, *digests])


def _asking(bound: BoundPlan, context: GateContext, waits: str, *, step: Step | None = None) -> str:
    """Return the sentences that say which run asks, who requested it, and until when it waits. `step` is named if it is given."""
    plan = plan_title(bound.validated.plan) + (f" ({words(context.run)})" if context.run else "")
    what = tr("A step of {plan}", plan=plan) if step is None else tr("The step {step} of {plan}", step=code(step.id), plan=plan)
    who = context.requested_by  # the time limit and the page say when
    asked = tr("{what}, asked by {who}.", what=what, who=words(who)) if who else tr("{what}.", what=what)
    return f"{asked} {waits}".rstrip()


def _parameters_section(arguments: Sequence[tuple[str, JsonValue]]) -> list[str]:
    """Return the section with all parameters of a call."""
    return [f"### {tr('Parameters')}", "", *(line for name, value in arguments for line in value_lines(code(name), value)), ""]


def _called_in_words(step_id: str, item: int | None, label: str | None, of_items: int | None) -> str:
    """Return what is called, as part of a heading: `restart`, or `restart for web-2 (2 of 3)`."""
    if item is None:
        return words(step_id)
    number = tr("{number} of {count}", number=item + 1, count=of_items) if of_items else tr("item {number}", number=item + 1)
    named = f"{words(label)} ({number})" if label else number
    return tr("{step} for {item}", step=words(step_id), item=named)


def _known_before(after: Sequence[str], results: Mapping[str, JsonValue], ends: Mapping[str, str]) -> list[str]:
    """Return the sentence that says how the steps before ended, and with what result in short."""
    known = list[str]()
    for step_id in after:
        result = _group_result(results.get(step_id)) or short_result(results.get(step_id))
        end = ends.get(step_id, tr("completed") if step_id in results else "")
        if end:
            known.append(f"{code(step_id)} {words(end)}{f': {code(in_columns(result, SHORT_COLUMNS))}' if result else ''}")
    return [tr("Before it: {ends}.", ends=joined_lines(known))] if known else []


def _group_result(result: JsonValue) -> str:
    """Return how the items of a group ended, in short, if `result` is that of a group."""
    items = [item for item in result if isinstance(item, dict) and "label" in item and "status" in item] if isinstance(result, list) else []
    if not items or not isinstance(result, list) or len(items) < len(result):
        return ""
    return listed([one_line(f"{item['label']} {tr(str(item['status']))}") for item in items], SHOWN_ITEMS)


def _seen_by_model(rounds: Sequence[RoundRecord]) -> list[str]:
    """Return the sentence that says which calls of the goal ended before, the newest first, and with what result in short."""
    calls = [record.call for record in reversed(rounds) if record.call is not None and record.call.outcome is not None]
    seen = [
        f"{code(call.tool)} {call.outcome}: {code(in_columns(call.error or short_result(call.result) or '-', SHORT_COLUMNS))}"
        for call in calls
    ]
    return [tr("The model has seen: {results}.", results=joined_lines(seen))] if seen else []


REASON_LINES = 4
"""How many lines of a model's reason for a call are on the first screen."""


def _reason_lines(step: Step) -> list[str]:
    """Return why a model asks for a call, in its words, as a quote."""
    reason = one_line(step.description.removeprefix(MODEL_ASKS))
    shown = in_columns(reason, REASON_LINES * QUOTE_COLUMNS)
    more = "" if shown == reason else tr(" (continues below)")
    return [f"> {words(shown)}{more}", ""] if shown else []


def call_summary(bound: BoundPlan, step: Step, *, effect: Effect, parameters: Mapping[str, JsonValue]) -> str:
    """Return what the gate of a call would show first: its description, what it can change, and its parameters."""
    arguments = ValueMask.of(bound, expressions=False).redact_parameters(step.tool_name or "", parameters)
    shown = [line for name, value in arguments for line in value_lines(code(name), value)]
    return "\n".join([step.description, _call_introduction(step, effect, None), *(shown or [f"- {tr('no parameters')}"])])


def _call_introduction(
    step: Step, effect: Effect, undo: RollbackPreview | None, *, with_item: bool = False, lowered_from: Effect | None = None
) -> str:
    """Return the introduction of a call. `with_item`: it is undone as soon as its item of a group has failed.

    `lowered_from` is the effect of its tool, if the plan declares a lower one.
    """
    tool = code(step.tool_name or "")
    sentences = [_effect_sentence(effect, undo, undone_on_failure=step.rollback_failed, with_item=with_item)]
    sentences += [tr("The plan declares this; {tool} counts as {own}.", tool=tool, own=lowered_from)] if lowered_from is not None else []
    return " ".join([*sentences, tr("It calls {tool} with:", tool=tool)])


def _predicted_goal(bound: BoundPlan, step: Step) -> dict[str, JsonValue]:
    """Return the goal of a step, and when it is met, as far as the inputs of the run determine them. Empty for a step without a goal."""
    validated = bound.validated
    original = validated.steps[step.id]
    goal = Predictions(validated, bound.inputs).of(original).of(validated.parameters[step.id]) if original.goal is not None else None
    done_when: dict[str, JsonValue] = {} if original.done_when is None else {"done_when": original.done_when}
    return done_when | goal if isinstance(goal, dict) else {}


def _goal_section(goal: Mapping[str, JsonValue], rounds: Sequence[RoundRecord], mask: ValueMask) -> list[str]:
    """Return the section on a goal and the outcomes of its newest rounds."""
    lines = [f"### {tr('The goal')}", ""]
    lines += [line for name, value in sorted(goal.items(), reverse=True) for line in value_lines(code(name), mask.redact(name, value))]
    shown = [record for record in rounds if record.call is not None or record.replies][-SHOWN_ROUNDS:]
    for record in shown:
        call = None if record.call is None else replace(record.call, result=mask.redact("result", record.call.result))
        lines += [
            f"- {tr('round {number}: {what}', number=record.round, what=fact)}" for fact in (*record.replies, call) if fact is not None
        ]
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


def _after_answer(bound: BoundPlan, step: Step, gates: Collection[str]) -> list[str]:
    """Return the sentence that says what the answer to a question sets off that cannot be undone and asks nobody again."""
    validated = bound.validated
    waits = {name: [*validated.outer.get(name, ()), *filter(None, [validated.steps[name].outer])] for name in validated.order}
    after = graph.reachable(graph.successors(waits), [step.id])
    final = [
        code(name)
        for name in validated.order
        if name in after and name in validated.tools and not asks_again(validated.steps[name], gates)
        if validated.effect_of(name) != "read" and name not in validated.rollbacks
    ]
    return [tr("**Runs after it without asking again, and cannot be undone: {steps}.**", steps=listed(final, SHOWN_ITEMS))] if final else []


def _outer_gate_text(
    bound: BoundPlan,
    outer: Step,
    parameters: Mapping[str, JsonValue],
    heading: str,
    approval_digest: str,
    asks: str,
    notices: Sequence[str],
    gates: frozenset[str],
    ended_items: Sequence[tuple[GroupItem, str]],
) -> str:
    """Return the text of the gate of a group, of one item of it, or of a sub-plan: the steps that will run, and for what."""
    validated, mask = bound.validated, ValueMask.of(bound)
    item = parameters.get("item") if outer.is_group else None
    preview = preview_inside(outer, validated, bound.inputs, item=item)
    given = (
        [] if item is not None and inline_text(item) is not None else [(key, mask.redact(key, value)) for key, value in parameters.items()]
    )
    runs = tr("It runs {steps}", steps=counted(len(preview.steps), "step"))
    if outer.plan is not None:
        runs = tr("It runs {steps} of the plan {plan}", steps=counted(len(preview.steps), "step"), plan=code(outer.plan))
    first = [*notice_lines(notices), *heading_lines(heading, outer.description)]
    if given:
        first += [tr("{runs}, for:", runs=runs), "", *(line for key, value in given for line in value_lines(key, value)), ""]
    elif outer.plan is not None:
        first += [f"{runs}.", ""]
    if facts := facts_of(outer, validated)[1:]:  # the first one counts the steps
        first += [*(f"- {fact}" for fact in facts), ""]
    failed_first = sorted(ended_items, key=lambda ended: ended[0].status is not StepStatus.FAILED)
    ends = [_item_end(ended, detail) for ended, detail in failed_first]
    before = [tr("Before it: {ends}.", ends=joined_lines(ends[:SHOWN_ITEMS]))] if ends else []
    # The last line counts what is not shown above, so its height is reserved with all that it could count.
    closing = " ".join([*before, last_line(preview, gates, [MOST_COUNTED]), asks])
    calls, counts = first_calls(preview, gates, mask, height=max(HEIGHT - height_of([*first, closing]), MIN_CALL_HEIGHT))
    first += [*calls, " ".join([*before, last_line(preview, gates, counts), asks]), ""]
    items, on_error = parameters.get("items"), validated.plan.on_error_of(outer)
    count = len(items) if isinstance(items, list) else None
    about = [*group_facts(outer, count, validated.plan.items_at_once(outer), on_error), *hosts_facts(outer, item_names_of(items))]
    facts = [*_labelled_lines(outer), *(f"- {fact}" for fact in about)]
    rest = [f"### {tr('Steps')}", "", *([*facts, ""] if facts else [])]
    after = [
        *description_section(outer.description),
        *order_section(validated, preview, gates),
        *digests_section(validated.digest, approval_digest=approval_digest),
    ]
    steps = steps_list(preview, gates, mask, limit_bytes=LIMIT_BYTES - size_of([*first, *rest, *after]))
    return gate_document(first, [*rest, *steps, *redaction_note(mask), *after])


def _item_end(item: GroupItem, detail: str) -> str:
    """Return how an item ended. `detail` is what its last call gave, or why it failed."""
    return f"{prose(item.label)} {tr(item.in_words)}" + (f": {code(in_columns(detail, SHORT_COLUMNS))}" if detail else "")


def _labelled_lines(step: Step) -> list[str]:
    """Return the lines of the fields with a label, without those that have decided by now that the gate opens, and for what."""
    facts = {name: text for name, text in labelled_facts(step).items() if name not in ("when", "for_each", "label")}
    return [line for name, text in facts.items() for line in value_lines(label_of(name), text)]


def _effect_sentence(effect: Effect, undo: RollbackPreview | None, *, undone_on_failure: bool, with_item: bool) -> str:
    """Return a sentence about what the call can change."""
    if undo is not None:
        if undone_on_failure and with_item:
            when = tr("It is undone if it fails, or its item or the run fails after it, as described below.")
        elif undone_on_failure:
            when = tr("It is undone if it fails, or the run fails after it, as described below.")
        elif with_item:
            when = tr("It is undone if its item or the run fails after it, as described below.")
        else:
            when = tr("It is undone if the run fails after it, as described below.")
        return f"{tr('It reads.') if effect == 'read' else tr('It **writes**.')} {when}"
    if effect == "read":
        return tr("It reads and changes nothing.")
    if effect == "idempotent_write":
        return tr("**It writes and cannot be undone.** Running it twice has the same effect as once.")
    return tr("**It writes and cannot be undone.**")


def _attempt_limits(step: Step, timeout_ms: int) -> str:
    timeout = tr("at most {limit}", limit=duration(timeout_ms)) if timeout_ms else tr("no timeout")
    if not step.max_retries:
        return tr("{timeout}, no retries", timeout=timeout)
    return tr("{timeout} per attempt, {retries}", timeout=timeout, retries=retry_summary(step))


def _rollback_section(undo: RollbackPreview | None, mask: ValueMask, *, with_item: bool) -> list[str]:
    """Return the section on how a call is undone. Its rollback is approved with the plan, and nobody is asked again.

    `with_item`: it is undone as soon as its item of a group has failed.
    """
    if undo is None:
        return []
    how = tr("By {tool} ({effect}), without another approval", tool=code(undo.tool_name), effect=effect_shown(undo.effect))
    when = tr("{how}, if the run fails or an approver requests it:", how=how)
    if with_item:
        when = tr("{how}, if its item or the run fails or an approver requests it:", how=how)
    lines = [f"### {tr('How it is undone')}", "", when, ""]
    for name, value in mask.redact_parameters(undo.tool_name, undo.parameters):
        lines += value_lines(code(name), value)
    return [*lines, ""]


def _dependencies_section(after: Sequence[str], results: Mapping[str, JsonValue], ends: Mapping[str, str], mask: ValueMask) -> list[str]:
    lines = [f"### {tr('What it depends on')}", ""] if after else []
    for name in after:
        end = ends.get(name) or (tr("completed") if name in results else tr("has no result"))
        label = f"{code(name)} {words(end)}"
        lines += value_lines(label, mask.redact("result", results[name])) if name in results else [f"- {label}"]
    return [*lines, ""] if lines else []


def outcome_text(
    bound: BoundPlan,
    step: Step,
    attempt: Attempt,
    *,
    why: str,
    made_by: str | None,
    run_id: str,
    context: GateContext = NO_CONTEXT,
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
    description = tr("Undo: {what}", what=step.description) if is_rollback and step.description else step.description
    called = call_name(attempt.step_id, attempt.item, attempt.label, kind=attempt.kind)
    first = [*notice_lines(notices), *heading_lines(tr("Did {call} take effect?", call=words(called)), description)]
    started = at_minute(attempt.started_at, since=context.at)
    asked = [
        " ".join(
            [
                tr("It started {when} and was interrupted; its outcome was not recorded.", when=started),
                *(tr("Its command **{state}**.", state=words(command.in_words)) for command in commands),
                tr("It called {tool} with:", tool=code(attempt.tool_name)),
            ]
        ),
        "",
    ]
    answers = [
        tr("Check whether the change was made, then answer:"),
        "",
        *(f"- **{answer}**: {text}" for answer, text in resolutions_in_words(is_rollback=is_rollback).items()),
        "",
        _asking(bound, context, ""),
        "",
    ]
    again = list[str]()
    if attempt.approval_id is not None:
        again += [tr("**again** needs another approval before the call is repeated")]
    if any(command.state == "running" for command in commands):
        end = resolve_command(run_id, (attempt.step_id, attempt.item), "again", label=attempt.label, kind=attempt.kind)
        again += [tr("**again** is refused while its command runs: {command} ends the command first", command=code(f"{end} --end"))]
    if not is_rollback and validated.uses_result_of(step.id):
        again += [tr("with **done**, other steps get the result that you enter (JSON, empty for none)")]
    arguments = mask.redact_parameters(attempt.tool_name, attempt.parameters)
    shown, is_whole = first_values(arguments, height=max(HEIGHT - height_of([*first, *asked, *answers]), MIN_CALL_HEIGHT))
    first += [*asked, *(shown or [f"- {tr('no parameters')}"]), "", *answers]
    rest = [] if is_whole else _parameters_section(arguments)
    by = tr(" by {process} of run {run}", process=words(made_by), run=words(run_id)) if made_by else ""
    rest += [
        f"### {tr('The attempt')}",
        "",
        f"- {tr('attempt {number}, started at {when}', number=attempt.number, when=moment(attempt.started_at))}{by}",
        f"- {tr('why the outcome is unknown: {why}', why=words(why))}",
        "",
        f"### {tr('More about the answers')}",
        "",
        f"- {tr('the run waits until somebody answers')}",
        f"- {tr('with **abort**, the outcome stays unknown, and no rollback undoes this call')}",
        *(f"- {text}" for text in again),
        f"- {tr('it is recorded as a receipt with your name, and approves nothing')}",
        "",
    ]
    return gate_document(first, [*rest, *description_section(description), *redaction_note(mask), *digests_section(validated.digest)])
