"""`plan_gate_text`: what an approval of a plan covers."""

from collections.abc import Collection, Mapping, Sequence

from pydantic import JsonValue

from plan_adapter.gate_text.changes import changes_section
from plan_adapter.gate_text.phrases import NAMED, expiry, named, uses_secrets
from plan_adapter.gate_text.sections import ORDER, STEPS, digests_section, document, masked_note, notice_lines, quoted, title
from plan_adapter.gate_text.steps_table import size_of, steps_table
from plan_adapter.gate_text.values import Values, value_lines
from plan_adapter.listing import REPLAN_FACT, operators_fact
from plan_adapter.pictures import mermaid
from plan_adapter.plan import Effect, ExecutionPlan
from plan_adapter.preview import Preview, preview_plan
from plan_adapter.readable import code, counted, duration, fenced
from plan_adapter.validation import BoundPlan

LIMIT_BYTES = 200_000
"""How large the text of a gate may be before steps of the plan are left out of it."""

FIRST_CHARACTERS, FIRST_LINES = 500, 10
"""How long a description may be to stand before what is asked."""

_DOES: dict[Effect, str] = {"read": "read", "idempotent_write": "repeatable write", "write": "write"}
_LEGEND = "Blue reads; yellow writes, and may be repeated safely; **red writes**; a hexagon asks again before it runs."


def plan_gate_text(
    bound: BoundPlan,
    *,
    gated: Collection[str],
    approval_digest: str,
    expires_ms: int,
    earlier: ExecutionPlan | None = None,
    notices: Sequence[str] = (),
    kept: Collection[str] = (),
    tools: Sequence[str] = (),
    origin: Sequence[str] = (),
    limit_bytes: int = LIMIT_BYTES,
) -> str:
    """Return what an approval of a plan covers: what it does, what changed since `earlier`, every call, what cannot be undone, digests.

    `gated` are the steps that ask again before they run, `kept` those whose approvals stay valid; `expires_ms` 0 is no limit; `tools` is
    the section that says which tools changed, `origin` the one that says what a model was asked for.
    Above `limit_bytes` steps at the end of the table are left out, and the text says so; nothing else is.
    """
    validated, gates = bound.validated, frozenset(gated)
    preview = preview_plan(validated, inputs=bound.inputs, approval_digest=approval_digest, requires_approval=True)
    values = Values.of(bound)
    head = [*notice_lines(notices), f"## {title(preview.plan)}", "", *_about(preview, gates, expires_ms), *_inputs(bound.inputs, values)]
    head += origin
    if earlier is not None:
        head += changes_section(earlier, preview, kept=kept, schemas=values.schemas)
    head += [*tools, *_order(bound, preview, gates), STEPS, ""]
    tail = [*_irreversible(preview), *digests_section(validated.digest, approval_digest=approval_digest)]
    steps = steps_table(preview, gates, values, limit_bytes=limit_bytes - size_of([*head, *tail]))
    return document([*head, *steps, *masked_note(values), *tail])


def _about(preview: Preview, gates: frozenset[str], expires_ms: int) -> list[str]:
    description = preview.plan.description
    glance, why = _at_a_glance(preview, gates, expires_ms), quoted(description)
    # Nobody must scroll past a long description to see what is dangerous.
    return [*why, *glance] if len(description) <= FIRST_CHARACTERS and len(why) <= FIRST_LINES else [*glance, *why]


def _at_a_glance(preview: Preview, gates: frozenset[str], expires_ms: int) -> list[str]:
    plan = preview.plan
    counts = ", ".join(counted(count, _DOES[effect]) for effect, count in preview.effects.items())
    writes, asks = [step.step.id for step in preview.irreversible], [step.step.id for step in preview.steps if step.step.id in gates]
    undone = [step.step.id for step in preview.steps if step.rollback is not None]
    or_asked = ", or if somebody who may approve it asks for that" if gates else ""
    longest = "no limit" if preview.worst_case_ms is None else duration(preview.worst_case_ms)
    return [
        "**Asked: may exactly this plan run?**",
        "",
        f"- {counted(len(preview.steps), 'step')}: {counts}",
        f"- **cannot be undone: {named(writes)}**" if writes else "- nothing in it that could not be undone",
        *([f"- undone if the run fails{or_asked}: {named(undone)}"] if undone else []),
        *([f"- asks again before {named(asks)}"] if asks else []),
        *uses_secrets(preview.secrets),
        *([f"- {REPLAN_FACT}"] if plan.on_failure == "replan" else []),
        *([f"- {operators_fact(plan.approval)}"] if plan.approval is not None and plan.approval.operators else []),
        f"- takes at most: {longest}" + (", waiting for answers apart" if asks else ""),
        expiry(plan, expires_ms, None),
        "",
    ]


def _inputs(inputs: Mapping[str, JsonValue], values: Values) -> list[str]:
    lines = ["### Inputs", ""] if inputs else []
    for name, value in inputs.items():
        lines += value_lines(code(name), values.masked(name, value))
    return [*lines, ""] if lines else []


def _order(bound: BoundPlan, preview: Preview, gates: frozenset[str]) -> list[str]:
    effects: dict[str, Effect] = {step.step.id: step.effect for step in preview.steps}
    picture = mermaid([step.step for step in preview.steps], bound.validated.reduced, effects=effects, gated=gates)
    return [ORDER, "", *fenced(picture, "mermaid").split("\n"), "", _LEGEND, ""]


def _irreversible(preview: Preview) -> list[str]:
    final = preview.irreversible
    lines = ["### What cannot be undone", ""]
    if not final:
        return [*lines, "No step writes what could not be undone.", ""]
    if len(final) <= NAMED:
        return [*lines, *(f"- {code(step.step.id)} writes and cannot be undone by this plan" for step in final), ""]
    names = ", ".join(code(step.step.id) for step in final)
    return [*lines, f"These {len(final)} steps write and cannot be undone by this plan: {names}", ""]
