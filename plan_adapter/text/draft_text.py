"""A draft as Markdown: the plan, how it keeps the constraints, what the model was asked, and the cost."""

from dataclasses import replace

from plan_adapter.model.drafts import ConstraintCheck, Draft, ModelCall
from plan_adapter.model.language import later, tr
from plan_adapter.model.readable import code, counted, fenced, moment, one_line, prose, words
from plan_adapter.text.formatting import format_plan

TASK_CHARACTERS = 500
"""How many characters of the task a gate shows."""

CONSTRAINTS_NOTE = later(
    "An order is checked as the model understood the constraint. Check whether it understood it correctly, and check the other constraints "
    "yourself."
)
_PLAN_CHANGED = later("the plan was changed")


def draft_line(draft: Draft) -> str:
    """Return a draft in one line: id, creation time, model and task."""
    return f"{draft.id}  {moment(draft.created_at)}  {one_line(draft.model)}  {one_line(draft.request.task)[:80]}"


def draft_text(draft: Draft, *, whole: bool = False) -> str:
    """Return a draft as Markdown. Text from models and people is escaped. `whole` adds every prompt and answer."""
    parts = [f"# {words(draft.request.task[:200])}", _outcome_text(draft)]
    if draft.constraints:
        parts.append("\n".join(["## Constraints", "", *(_constraint_line(kept) for kept in draft.constraints), "", tr(CONSTRAINTS_NOTE)]))
    if draft.notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {words(note)}" for note in draft.notes))
    if draft.problems:
        parts.append("## What was wrong with the last answer\n\n" + "\n".join(f"- {words(str(problem))}" for problem in draft.problems))
    if draft.plan is not None:
        parts.append(format_plan(draft.plan))
    parts.append("## Rounds\n\n" + ("\n".join(_call_line(call) for call in draft.calls) or "none"))
    if whole:
        parts += [f"### Round {call.number}: asked\n\n{fenced(call.prompt)}\n\nanswered\n\n{fenced(call.answer)}" for call in draft.calls]
    return "\n\n".join(parts) + "\n"


def origin_lines(draft: Draft, *, is_as_drafted: bool) -> list[str]:
    """Return the lines of a gate about the task, the model, and how the plan keeps each constraint.

    `is_as_drafted` says whether the plan is unchanged since it was drafted.
    """
    task = draft.request.task
    shown = words(task[:TASK_CHARACTERS]) + ("…" if len(task) > TASK_CHARACTERS else "")
    drafted = tr("drafted by: {model}, draft {id}", model=code(draft.model), id=code(draft.id))
    lines = [f"### {tr('Drafted by a model')}", "", f"- {tr('the task: {task}', task=shown)}"]
    lines += [f"- {drafted}", *(f"- ⚠️ {words(note)}" for note in draft.notes)]
    if not is_as_drafted:
        lines.append("- " + tr("⚠️ **changed since then**: no constraint was checked again"))
    if draft.constraints:
        constraints = (
            draft.constraints if is_as_drafted else [replace(kept, checked=False, how=tr(_PLAN_CHANGED)) for kept in draft.constraints]
        )
        lines += ["", tr("Constraints that were given:"), "", *map(_constraint_line, constraints), "", tr(CONSTRAINTS_NOTE)]
    return [*lines, ""]


def check_status(kept: ConstraintCheck) -> str:
    """Return in words whether a constraint was checked. Only an order can be checked."""
    return tr("order checked") if kept.checked else tr("not checked")


def cost_of(draft: Draft) -> str:
    """Return the cost of a draft in words: `2 rounds, 1 correction, 1,234 tokens, 3.2 s`."""
    seconds = sum(call.seconds for call in draft.calls)
    corrections = f", {counted(draft.repairs, 'correction')}" if draft.repairs else ""
    return f"{counted(len(draft.calls), 'round')}{corrections}, {draft.usage.total:,} tokens, {seconds:.1f} s"


def _outcome_text(draft: Draft) -> str:
    if draft.plan is None:
        return f"**No plan:** {prose(draft.failure or 'the draft has not ended')}"
    cost = f"By {code(draft.model)}: {cost_of(draft)}."
    return f"{prose(draft.speak)}\n\n{cost}" if draft.speak else cost


def _constraint_line(kept: ConstraintCheck) -> str:
    return f"- {check_status(kept) if kept.checked else f'**{check_status(kept)}**'}: {words(kept.text)}: {words(kept.how)}"


def _call_line(call: ModelCall) -> str:
    line = f"{call.number}. {call.phase}, {code(call.rung)}, {call.usage.total:,} tokens, {call.seconds:.1f} s"
    return "\n".join([line, *(f"    - {words(problem)}" for problem in call.problems)])
