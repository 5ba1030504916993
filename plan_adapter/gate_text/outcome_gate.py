"""`outcome_text`: what a person is asked who knows how an interrupted write ended."""

from plan_adapter.gate_text.first_screen import FEWEST, HEIGHT, first_values, height_of, opening
from plan_adapter.gate_text.sections import description_section, digests_section, document, masked_note
from plan_adapter.gate_text.values import Values, value_lines
from plan_adapter.plan import Step
from plan_adapter.readable import call_name, code, moment, words
from plan_adapter.record import Attempt
from plan_adapter.validation import BoundPlan

_ENDS_THE_RUN = "the run ends here, as cancelled. Whether it was done stays unknown, so a rollback does not undo it"
_ENDS_THE_ROLLBACK = (
    "nothing further is undone. Whether it was done stays unknown, and it is not called again until its outcome is recorded"
)


def outcome_text(bound: BoundPlan, step: Step, lost: Attempt, *, why: str, made_by: str | None, run_id: str) -> str:
    """Return the question how the attempt `lost` ended: what it called, since when, and what each answer does.

    `made_by` is the start of the run, and its process, that made the attempt; `why` says why nobody knows how it ended.
    """
    validated, undoes = bound.validated, lost.step_id != step.id
    template = validated.rollbacks[step.id].parameters if undoes else validated.parameters[step.id]
    values = Values.of(bound, expressions=bool(template.secrets))
    description = f"Undo: {step.description}" if undoes and step.description else step.description
    first = opening(f"How did {words(call_name(lost.step_id, lost.item, lost.label))} end?", description)
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
