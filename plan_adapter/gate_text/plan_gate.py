"""`plan_gate_text`: what an approval of a plan covers."""

from collections.abc import Collection, Mapping, Sequence

from pydantic import JsonValue

from plan_adapter.gate_text.changes import changes_section, raised_notices
from plan_adapter.gate_text.first_screen import FEWEST, HEIGHT, first_steps, height_of, opening
from plan_adapter.gate_text.phrases import NAMED, expiry, named, uses_secrets
from plan_adapter.gate_text.sections import ORDER, description_section, digests_section, document, masked_note, notice_lines, title
from plan_adapter.gate_text.steps_list import size_of, steps_list
from plan_adapter.gate_text.values import Values, value_lines
from plan_adapter.listing import REPLAN_FACT, operators_fact
from plan_adapter.pictures import mermaid
from plan_adapter.plan import Effect, ExecutionPlan
from plan_adapter.preview import Preview, preview_plan
from plan_adapter.readable import code, counted, duration, fenced
from plan_adapter.validation import BoundPlan

LIMIT_BYTES = 200_000
"""How large the text of a gate may be before steps of the plan are left out of it."""

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
    folder: str = "",
    limit_bytes: int = LIMIT_BYTES,
) -> str:
    """Return what an approval of a plan covers: on the first screen what it calls and what cannot be undone, then every detail.

    `gated` are the steps that ask again before they run, `kept` those whose approvals stay valid; `expires_ms` 0 is no limit; `tools` is
    the section that says which tools changed, `origin` the one that says what a model was asked for, `folder` where the run works.
    Above `limit_bytes` steps at the end of the list are left out, and the text says so; nothing else is.
    """
    validated, gates = bound.validated, frozenset(gated)
    preview = preview_plan(validated, inputs=bound.inputs, approval_digest=approval_digest, requires_approval=True)
    values = Values.of(bound)
    first = [
        *notice_lines([*notices, *([] if earlier is None else raised_notices(earlier, preview))]),
        *opening(f"Approve {title(preview.plan)}?", preview.plan.description),
    ]
    decided = _decided(preview, expires_ms)
    first += [*first_steps(preview, gates, values, height=max(HEIGHT - height_of([*first, *decided]), FEWEST)), "", *decided]
    before = [] if earlier is None else changes_section(earlier, preview, kept=kept, schemas=values.schemas)
    before += [
        *tools,
        *_about(preview, gates, folder),
        *description_section(preview.plan.description),
        *_inputs(bound.inputs, values),
        *origin,
    ]
    before += ["### Steps", ""]
    after = [*_irreversible(preview), *_order(bound, preview, gates), *digests_section(validated.digest, approval_digest=approval_digest)]
    steps = steps_list(preview, gates, values, limit_bytes=limit_bytes - size_of([*first, *before, *after]))
    return document(first, [*before, *steps, *masked_note(values), *after])


def _decided(preview: Preview, expires_ms: int) -> list[str]:
    """Return the sentences below the steps on the first screen."""
    final = named([step.step.id for step in preview.irreversible])
    if preview.irreversible:
        danger = f"**Cannot be undone: {final}.**"
    else:
        danger = "Every write can be undone." if any(step.effect != "read" for step in preview.steps) else "It only reads."
    return [f"{danger} {expiry(preview.plan, expires_ms, None)}", ""]


def _about(preview: Preview, gates: frozenset[str], folder: str) -> list[str]:
    """Return what is to be known of the run as a whole, a fact a line."""
    plan = preview.plan
    counts = ", ".join(counted(count, _DOES[effect]) for effect, count in preview.effects.items())
    asks = [step.step.id for step in preview.steps if step.step.id in gates]
    undone = [step.step.id for step in preview.steps if step.rollback is not None]
    or_asked = ", or if somebody who may approve it asks for that" if gates else ""
    longest = "no limit" if preview.worst_case_ms is None else duration(preview.worst_case_ms)
    return [
        "### The run",
        "",
        f"- {counted(len(preview.steps), 'step')}: {counts}",
        *([f"- undone if the run fails{or_asked}: {named(undone)}"] if undone else []),
        *([f"- asks again before {named(asks)}"] if asks else []),
        *uses_secrets(preview.secrets),
        *([f"- {REPLAN_FACT}"] if plan.on_failure == "replan" else []),
        *([f"- {operators_fact(plan.approval)}"] if plan.approval is not None and plan.approval.operators else []),
        *([f"- works in {code(folder)}"] if folder else []),
        f"- takes at most: {longest}" + (", not counting waits for answers" if asks else ""),
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
