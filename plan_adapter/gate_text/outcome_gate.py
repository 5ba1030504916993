"""`outcome_text`: what a person is asked who is to say how a call ended."""

from plan_adapter.gate_text.sections import call_heading, digests_section, document, masked_note, parameters_section, quoted
from plan_adapter.gate_text.values import Values
from plan_adapter.plan import Step
from plan_adapter.readable import code, moment, words
from plan_adapter.record import Attempt
from plan_adapter.validation import BoundPlan

_ENDS_THE_RUN = "the run ends here, as cancelled. Whether it was done stays unknown, so a rollback does not undo it"
_ENDS_THE_ROLLBACK = "nothing further is undone. Whether it was done stays unknown, and it is not called again until somebody says more"


def outcome_text(bound: BoundPlan, step: Step, lost: Attempt, *, why: str, made_by: str | None, run_id: str) -> str:
    """Return what a person is asked who is to say how the attempt `lost` ended: what it was to do, since when, and what each answer does.

    `made_by` is the start of the run, and its process, that made the attempt; `why` says why nobody knows how it ended.
    """
    validated, undoes = bound.validated, lost.step_id != step.id
    template = validated.rollbacks[step.id].parameters if undoes else validated.parameters[step.id]
    values = Values.of(bound, expressions=bool(template.secrets))
    description = f"Undo: {step.description}" if undoes and step.description else step.description
    lines = [
        call_heading(lost.step_id, lost.item, validated.plan),
        "",
        *quoted(description),
        f"**Asked: how did attempt {lost.number} of {code(lost.step_id)} end?** It is a write, and nobody knows whether it was done.",
        "",
        f"- it called {code(lost.tool_name)} with the parameters below",
        f"- it began at {moment(lost.started_at)}" + (f", in {words(made_by)} of run {words(run_id)}" if made_by else ""),
        f"- why nobody knows: {words(why)}",
        "",
        "Look at what it was to change, and say what you found:",
        "",
        "- **done**: it was done. It is not made again; what you give as its result (JSON, empty for none) is what later steps are given",
        "- **again**: it was not done. It is made again" + (", once it is approved anew" if lost.approval_id is not None else ""),
        f"- **abort**: {_ENDS_THE_ROLLBACK if undoes else _ENDS_THE_RUN}",
        "",
        "Your answer is recorded as a receipt, with your name. It approves nothing.",
        "",
    ]
    lines += parameters_section(lost.tool_name, lost.parameters, values)
    return document([*lines, *masked_note(values), *digests_section(validated.digest)])
