"""A draft in Markdown: the plan, how it keeps the constraints, what was asked and what it cost."""

from plan_adapter.drafts import Draft, KeptConstraint, ModelCall
from plan_adapter.formatting import format_plan
from plan_adapter.readable import code, counted, fenced, moment, one_line, prose, words


def draft_line(draft: Draft) -> str:
    """Return a draft in one line: its id, when it was made, by which model, and its task."""
    return f"{draft.id}  {moment(draft.created_at)}  {one_line(draft.model)}  {one_line(draft.request.task)[:80]}"


def draft_text(draft: Draft, *, whole: bool = False) -> str:
    """Return a draft; texts of models and people are shown as text, whatever stands in them. `whole`: with every question and answer."""
    parts = [f"# {words(draft.request.task[:200])}", _standing(draft)]
    if draft.constraints:
        parts.append("## Constraints\n\n" + "\n".join(_constraint(kept) for kept in draft.constraints))
    if draft.notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {words(note)}" for note in draft.notes))
    if draft.problems:
        parts.append("## What was wrong with the last answer\n\n" + "\n".join(f"- {words(str(problem))}" for problem in draft.problems))
    if draft.plan is not None:
        parts.append(format_plan(draft.plan))
    parts.append("## Rounds\n\n" + ("\n".join(_call(call) for call in draft.calls) or "none"))
    if whole:
        parts += [f"### Round {call.number}: asked\n\n{fenced(call.prompt)}\n\nanswered\n\n{fenced(call.answer)}" for call in draft.calls]
    return "\n\n".join(parts) + "\n"


def cost_of(draft: Draft) -> str:
    """Return in words what a draft cost: `2 rounds, 1 correction, 1,234 tokens, 3.2 s`."""
    seconds = sum(call.seconds for call in draft.calls)
    corrections = f", {counted(draft.repairs, 'correction')}" if draft.repairs else ""
    return f"{counted(len(draft.calls), 'round')}{corrections}, {draft.usage.total:,} tokens, {seconds:.1f} s"


def _standing(draft: Draft) -> str:
    if draft.plan is None:
        return f"**No plan:** {prose(draft.failure or 'the draft has not ended')}"
    return (
        f"{prose(draft.speak)}\n\nBy {code(draft.model)}: {cost_of(draft)}."
        if draft.speak
        else f"By {code(draft.model)}: {cost_of(draft)}."
    )


def _constraint(kept: KeptConstraint) -> str:
    return f"- {'checked' if kept.checked else '**not checked**'}: {words(kept.text)}: {words(kept.how)}"


def _call(call: ModelCall) -> str:
    line = f"{call.number}. {call.phase}, {code(call.rung)}, {call.usage.total:,} tokens, {call.seconds:.1f} s"
    return "\n".join([line, *(f"    - {words(problem)}" for problem in call.problems)])
