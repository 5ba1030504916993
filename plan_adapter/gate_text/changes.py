"""What changed in a plan since the version that was approved or tried before."""

from collections.abc import Collection, Mapping

from pydantic import JsonValue

from plan_adapter.canonical import Change, diff_plans
from plan_adapter.gate_text.phrases import EFFECTS_SHOWN, NAMED, named
from plan_adapter.plan import EFFECTS, ExecutionPlan
from plan_adapter.preview import Preview, StepPreview
from plan_adapter.readable import as_text, code, is_secret_name, masked, secret_parameters

CHANGES_SHOWN = 200
CHARACTERS_SHOWN = 200
"""How much of an old or new value is shown."""


def changes_section(
    earlier: ExecutionPlan, preview: Preview, *, kept: Collection[str], schemas: Mapping[str, dict[str, JsonValue]]
) -> list[str]:
    """Return how the plan of `preview` differs from `earlier`; `kept` are the steps whose approvals stay valid."""
    before, now = {step.id: step for step in earlier.steps}, {step.step.id: step for step in preview.steps}
    diff = diff_plans(earlier, preview.plan)
    lines = ["### What changed", ""]
    lines += [f"- **added** {code(name)}: {_called(now[name])}" for name in diff.added]
    lines += [f"- **removed** {code(name)}: {code(before[name].tool_name or '')}" for name in diff.removed if name in before]
    secret = {name: secret_parameters(schema) for name, schema in schemas.items()}
    for change in diff.changed[:CHANGES_SHOWN]:
        owner = now.get(_step_of(change))
        lines.append(_change_line(change, secret.get(owner.step.tool_name or "", ()) if owner is not None else ()))
    more = len(diff.changed) - CHANGES_SHOWN
    lines += [f"- … {more} more changes"] if more > 0 else []
    lines += [f"- **moved**: {named(diff.reordered, NAMED)}"] if diff.reordered else []
    touched = {*diff.added, *diff.reordered, *map(_step_of, diff.changed)}
    same = [name for name in now if name not in touched]
    lines += ["- nothing"] if not diff else []
    lines += [f"- unchanged: {named(same, NAMED)}"] if same else []
    lines += [f"- still approved: {named(list(kept), NAMED)}"] if kept else []
    return [*lines, ""]


def raised_notices(earlier: ExecutionPlan, preview: Preview) -> list[str]:
    """Return which steps may do more than in `earlier`, for the top of the first screen."""
    before, now = {step.id: step for step in earlier.steps}, {step.step.id: step for step in preview.steps}
    notices = list[str]()
    for name in diff_plans(earlier, preview.plan).raised:
        was = before[name].effect
        # A step that names no effect has its tool's, which may be no more than the one that was written.
        if name in now and was is not None and EFFECTS.index(now[name].effect) > EFFECTS.index(was):
            notices.append(f"MAY DO MORE THAN BEFORE: {code(name)}, {was} → {now[name].effect}")
    return notices


def _step_of(change: Change) -> str:
    return change.at.split(".")[0]


def _called(step: StepPreview) -> str:
    return f"{code(step.step.tool_name or '')}, {EFFECTS_SHOWN[step.effect]}"


def _change_line(change: Change, secret: Collection[str]) -> str:
    # Whether a place is one of a secret, every name in its path says; a parameter's schema, too.
    hides = any(is_secret_name(name) or (index == 2 and name in secret) for index, name in enumerate(change.at.split(".")))
    old, new = (_short(masked({"secret" if hides else "value": value})) for value in (change.old, change.new))
    return f"- {code(change.at)}: {old} → {new}"


def _short(wrapped: JsonValue) -> str:
    value = next(iter(wrapped.values())) if isinstance(wrapped, dict) else wrapped
    text, shown = as_text(value), CHARACTERS_SHOWN
    return "nothing" if value is None else code(text if len(text) <= shown else f"{text[:shown]}… {len(text) - shown:,} more")
