"""The text of a plan gate."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from plan_adapter.model.canonical import Change, diff_plans, plan_digest
from plan_adapter.model.options import EFFECTS, Effect
from plan_adapter.model.plan import ExecutionPlan, Step, flattened
from plan_adapter.model.readable import code, counted, duration, fenced, is_secret_name, secret_parameters, words
from plan_adapter.text.gate_text import (
    EFFECTS_SHOWN,
    HEIGHT,
    MAX_LISTED,
    MIN_CALL_HEIGHT,
    NO_CONTEXT,
    ORDER,
    GateContext,
    ValueMask,
    description_section,
    digests_section,
    expiry_sentence,
    extent_of,
    first_calls,
    gate_document,
    height_of,
    inline_text,
    joined_lines,
    notice_lines,
    plan_title,
    quoted_description,
    redaction_note,
    retry_summary,
    secrets_lines,
    value_block,
    value_lines,
    worst_case_sentence,
)
from plan_adapter.text.listing import (
    REPLAN_FACT,
    field_line,
    group_facts,
    label_of,
    labelled_facts,
    list_names,
    operators_fact,
    permissions_facts,
)
from plan_adapter.text.pictures import mermaid
from plan_adapter.text.preview import Preview, StepPreview, preview_plan
from plan_adapter.validation import BoundPlan

FINALLY = "finally."
CHANGES_SHOWN = 200


def changes_section(earlier: ExecutionPlan, preview: Preview, *, schemas: Mapping[str, dict[str, JsonValue]]) -> list[str]:
    """Return the section on how the plan of `preview` differs from `earlier`."""
    before, now = _steps_by_name(earlier, preview)
    diff = diff_plans(earlier, preview.plan)
    lines = ["### What changed", ""]
    lines += [f"- **added** {code(name)}: {_call_facts(now[name])}" for name in diff.added]
    lines += [f"- **removed** {code(name)}: {code(before[name].called)}" for name in diff.removed if name in before]
    secret = {name: secret_parameters(schema) for name, schema in schemas.items()}
    for change in diff.changed[:CHANGES_SHOWN]:
        name = _changed_step_name(change, now)
        lines.append(_change_line(change, name, secret.get(now[name].step.tool_name or "", ()) if name in now else ()))
    more = len(diff.changed) - CHANGES_SHOWN
    lines += [f"- … {more} more changes"] if more > 0 else []
    lines += [f"- **moved**: {list_names(diff.reordered, MAX_LISTED)}"] if diff.reordered else []
    touched = {*diff.added, *diff.reordered, *(_changed_step_name(change, now) for change in diff.changed)}
    touched |= _steps_around(touched, {name: step.step for name, step in now.items()}) | _steps_around(diff.removed, before)
    same = [name for name in now if name not in touched]
    lines += ["- nothing"] if not diff else []
    lines += [f"- unchanged: {list_names(same, MAX_LISTED)}"] if same else []
    return [*lines, ""]


def raised_notices(earlier: ExecutionPlan, preview: Preview) -> list[str]:
    """Return a notice for each step that may do more than in `earlier`, for the top of the first screen."""
    before, now = _steps_by_name(earlier, preview)
    notices = list[str]()
    for name in diff_plans(earlier, preview.plan).raised:
        was = before[name].effect
        # A step without `effect` has its tool's effect, which may be no more than the one written before.
        if name in now and was is not None and EFFECTS.index(now[name].effect) > EFFECTS.index(was):
            notices.append(f"MAY DO MORE THAN BEFORE: {code(name)}, {was} → {now[name].effect}")
    return notices


def _steps_by_name(earlier: ExecutionPlan, preview: Preview) -> tuple[dict[str, Step], dict[str, StepPreview]]:
    """Return the steps before and now by their names in a `PlanDiff`: the id, with `finally.` before that of a `finally` step."""
    before = {step.id: step for step in flattened(earlier.steps)} | {f"{FINALLY}{step.id}": step for step in earlier.finally_}
    return before, {(FINALLY if step.is_finally_step else "") + step.step.id: step for step in preview.steps}


def _steps_around(names: Collection[str], steps: Mapping[str, Step]) -> set[str]:
    """Return the groups and the steps with sub-plans around the steps `names`, at every depth."""
    found, queue = set[str](), [*names]
    while queue:
        step = steps.get(queue.pop())
        if step is not None and step.outer is not None:
            found.add(step.outer)
            queue.append(step.outer)
    return found


def _changed_step_name(change: Change, now: Collection[str]) -> str:
    """Return the name of the changed step, or of the changed field of the plan."""
    parts = change.at.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in now), parts[0])


def _call_facts(step: StepPreview) -> str:
    return f"{code(step.step.called)}, {EFFECTS_SHOWN[step.effect]}"


def _change_line(change: Change, step: str, secret: Collection[str]) -> str:
    # A value is secret if any name in its path is, or if the parameter's schema says so.
    names, own = change.at.removeprefix(FINALLY).split("."), change.at.removeprefix(f"{step}.").split(".")
    is_secret = any(map(is_secret_name, names)) or (own[0] == "parameters" and len(own) > 1 and own[1] in secret)
    old, new = change.shown(is_secret=is_secret)
    return f"- {code(change.at)}: {'nothing' if old is None else code(old)} → {'nothing' if new is None else code(new)}"


DESCRIPTION_CHARACTERS = 300
"""How much of a step's description is shown."""


@dataclass(frozen=True, slots=True)
class _StepLines:
    item: str  # in the list
    blocks: list[str]  # for its long values

    @property
    def size(self) -> int:
        """The size in bytes, including line ends."""
        return size_of((self.item, *self.blocks))


def size_of(lines: Iterable[str]) -> int:
    """Return the size of these lines in bytes, including line ends."""
    return sum(len(line.encode(errors="replace")) + 1 for line in lines)


def steps_list(preview: Preview, gates: frozenset[str], mask: ValueMask, *, limit_bytes: int) -> list[str]:
    """Return the list of steps, followed by the values that are too long for it. Steps beyond `limit_bytes` are omitted, with a note."""
    shown: list[_StepLines] = []
    for number, step in enumerate(preview.steps, start=1):
        lines = _step_lines(step, number, mask, gate=step.step.id in gates)
        limit_bytes -= lines.size
        if limit_bytes < 0:
            break
        shown.append(lines)
    items = [*(lines.item for lines in shown), ""]
    if missing := len(preview.steps) - len(shown):
        items += [f"**{counted(missing, 'more step')} not shown here:** `plan show RUN` and `plan preview` show all.", ""]
    blocks = [line for lines in shown for line in lines.blocks]
    return [*items, *(["### Long values", "", *blocks, ""] if blocks else [])]


def _step_lines(preview: StepPreview, number: int, mask: ValueMask, *, gate: bool) -> _StepLines:
    step, blocks = preview.step, list[str]()
    called = [f"plan {code(step.called)}"] if step.plan else [code(step.called)] if step.goal is None else []
    parts = [*(group_facts(step, preview.items, preview.at_once, preview.on_error) or called), *preview.facts]
    if step.pinned is not None:
        parts += [f"digest {code(plan_digest(step.pinned)[:12])}"]
    labelled = [(label_of(name), text) for name, text in labelled_facts(step).items()]
    given = mask.redact_parameters(step.tool_name or "", preview.parameters)
    parameters = [(code(name), value) for name, value in given if step.goal is None or name != "done_when"]  # which has a label
    _add_parts(step.id, [*labelled, *parameters], parts, blocks)
    if (undo := preview.rollback) is not None:
        failed = ", also if the step failed" if step.rollback_failed else ""
        parts.append(f"**undone by** {code(undo.tool_name)} ({EFFECTS_SHOWN[undo.effect]}){failed}")
        arguments = [(f"undone with {code(name)}", value) for name, value in mask.redact_parameters(undo.tool_name, undo.parameters)]
        _add_parts(step.id, arguments, parts, blocks)
    effect = EFFECTS_SHOWN[preview.effect] + (" · **always runs, at the end**" if preview.is_finally_step else "")
    if step.ask is not None:
        effect = effect.replace(EFFECTS_SHOWN[preview.effect], "**asks a person**")
        parts += [f"field {field_line(name, field).removeprefix('- ')}" for name, field in step.ask.fields.items()]
        parts += [f"may answer: {list_names(step.approvers, MAX_LISTED)}"] if step.approvers else []
    effect += " · **asks again**" if gate and step.ask is None else ""
    asks = ["**asks first**"] if step.inner and gate else []
    facts = asks if step.inner else [effect]
    facts += [f"in the group {code(step.group)}"] if step.group is not None else []
    limits = [] if step.inner or step.goal is not None else [_time_limit(preview)]
    return _StepLines("  " * step.depth + " · ".join([f"- {_step_heading(preview, number)}", *facts, *parts, *limits]), blocks)


def _add_parts(step_id: str, facts: Iterable[tuple[str, JsonValue]], parts: list[str], blocks: list[str]) -> None:
    """Add facts about a step to the parts of its line, and long values to the blocks below."""
    for label, value in facts:
        text = inline_text(value)
        if text is not None:
            parts.append(f"{label} {code(text)}")
        else:
            parts.append(f"{label} ({extent_of(value)}, below)")
            blocks += value_block(f"{code(step_id)} {label}", value)


def _step_heading(preview: StepPreview, number: int) -> str:
    step, items = preview.step, ""
    if step.for_each is not None or step.group is not None:
        items = f" × {counted(preview.items, 'item')}" if preview.items is not None else " × each item"
    description = step.description[:DESCRIPTION_CHARACTERS] + ("…" if len(step.description) > DESCRIPTION_CHARACTERS else "")
    return f"**{number}. {words(step.id)}**{items}" + (f": {words(description)}" if description else "")


def _time_limit(preview: StepPreview) -> str:
    if not preview.timeout_ms:
        longest = "no time limit"
    else:
        longest = "time limit per item" if preview.worst_case_ms is None else f"at most {duration(preview.worst_case_ms)}"
    return f"{longest}, {retry_summary(preview.step)}" if preview.step.max_retries else longest


LIMIT_BYTES = 200_000
"""How large the text of a gate can be before it omits steps of the plan."""

_EFFECT_NOUNS: dict[Effect, str] = {"read": "read", "idempotent_write": "repeatable write", "write": "write"}
_LEGEND = "Blue: reads. Yellow: writes, and can be repeated safely. **Red: writes.** Hexagon: asks again before it runs."


def plan_gate_text(
    bound: BoundPlan,
    *,
    gated: Collection[str],
    approval_digest: str,
    expires_ms: int,
    context: GateContext = NO_CONTEXT,
    nobody: str | None = None,
    earlier: ExecutionPlan | None = None,
    notices: Sequence[str] = (),
    tools: Sequence[str] = (),
    origin: Sequence[str] = (),
    folder: str = "",
    limit_bytes: int = LIMIT_BYTES,
) -> str:
    """Return the text of a plan gate: what it calls, by risk, on the first screen, then every detail.

    `gated` are the steps that ask again before they run. `expires_ms` 0 means no limit. `context` is the run that asks. `nobody` says why
    nobody may answer, if nobody may. `tools` is the section on changed tools, `origin` the one on what a model was asked for, and `folder`
    is where the run works. If the text exceeds `limit_bytes`, steps at the end of the list are omitted, with a note; nothing else is.
    """
    validated, gates = bound.validated, frozenset(gated)
    preview = preview_plan(validated, inputs=bound.inputs, approval_digest=approval_digest, requires_approval=True)
    mask = ValueMask.of(bound)
    named = f" ({words(preview.run_name)})" if preview.run_name not in (None, preview.plan.name) else ""
    waits = expiry_sentence(preview.plan, expires_ms, None, nobody=nobody, at=context.at)
    heading = f"Approve {plan_title(preview.plan)}{named}?"
    notes = notice_lines([*notices, *([] if earlier is None else raised_notices(earlier, preview))])
    head = [f"## {heading}", ""]
    asked = [" ".join(part for part in (context.sentence(), waits, _inputs_line(bound.inputs, mask)) if part), ""]
    # The last line counts what is not shown above, so its height is reserved with all that it could count.
    left = HEIGHT - height_of([*notes, *head, *asked, _last_line(preview, gates, ["99 writes that can be undone"])])
    calls, counts = first_calls(preview, mask, height=max(left, MIN_CALL_HEIGHT))
    facts = [*asked, *calls, _last_line(preview, gates, counts), ""]
    about = quoted_description(heading, preview.plan.description)
    is_described = height_of([*notes, *head, *about, *facts]) <= HEIGHT
    first = [*notes, *head, *(about if is_described else []), *facts]
    before = [] if earlier is None else changes_section(earlier, preview, schemas=mask.schemas)
    before += [
        *tools,
        *_run_section(preview, gates, folder),
        *description_section(preview.plan.description, is_shown=is_described),
        *_inputs_section(bound.inputs, mask),
        *origin,
    ]
    before += ["### Steps", ""]
    after = [
        *_irreversible_section(preview),
        *_order_section(bound, preview, gates),
        *digests_section(validated.digest, approval_digest=approval_digest),
    ]
    steps = steps_list(preview, gates, mask, limit_bytes=limit_bytes - size_of([*first, *before, *after]))
    return gate_document(first, [*before, *steps, *redaction_note(mask), *after])


def _inputs_line(inputs: Mapping[str, JsonValue], mask: ValueMask) -> str:
    """Return the inputs in one sentence, as far as they are short."""
    shown = [f"{words(name)} {code(text)}" for name, value in inputs.items() if (text := inline_text(mask.redact(name, value))) is not None]
    more = len(inputs) - len(shown)
    shown += [f"{more} long {'value' if more == 1 else 'values'} below"] if more else []
    return f"Inputs: {joined_lines(shown, separator=', ')}." if shown else ""


def _last_line(preview: Preview, gates: frozenset[str], counts: Sequence[str]) -> str:
    """Return the last sentences of the first screen: what else the run does, where it asks again, and how long it can take."""
    questions = [step.step.id for step in preview.steps if step.step.ask is not None]
    asks = [step.step.id for step in preview.steps if step.step.id in gates and step.step.ask is None]
    also = [*counts, *([counted(len(questions), "question to a person", "questions to people")] if questions else [])]
    return " ".join(
        [
            *([f"Also {' and '.join([', '.join(also[:-1]), also[-1]] if also[:-1] else also)}."] if also else []),
            *([f"Asks again before {list_names(asks, 2)}."] if asks else []),
            worst_case_sentence(preview.worst_case_ms, asks=bool(asks or questions)),
        ]
    )


def _run_section(preview: Preview, gates: frozenset[str], folder: str) -> list[str]:
    """Return the section about the run as a whole, one fact per line."""
    plan = preview.plan
    questions = [step.step.id for step in preview.steps if step.step.ask is not None]
    called = Counter(step.effect for step in preview.steps if not step.step.inner and step.step.ask is None)
    kinds = [counted(called[effect], _EFFECT_NOUNS[effect]) for effect in EFFECTS if called[effect]]
    kinds += [counted(len(questions), "question")] if questions else []
    asks = [step.step.id for step in preview.steps if step.step.id in gates and step.step.ask is None]
    undone = [step.step.id for step in preview.steps if step.rollback is not None]
    alone = [inner.id for group in plan.all_steps if plan.rolls_back_failed_items(group) for inner in group.steps if inner.id in undone]
    or_asked = ", or if an approver requests it" if gates else ""
    longest = "no time limit" if preview.worst_case_ms is None else f"takes at most: {duration(preview.worst_case_ms)}"
    return [
        "### The run",
        "",
        f"- {counted(len(preview.steps), 'step')}: {', '.join(kinds)}",
        *([f"- undone if the run fails{or_asked}: {list_names(undone)}"] if undone else []),
        *([f"- undone as soon as their item has failed: {list_names(alone)}"] if alone else []),
        *([f"- asks again before {list_names(asks)}"] if asks else []),
        *([f"- asks a person: {list_names(questions)}"] if questions else []),
        *secrets_lines(preview.secrets, preview.secret_creators),
        *(f"- {fact}" for fact in permissions_facts(preview.permissions)),
        *([f"- {REPLAN_FACT}"] if plan.on_failure == "replan" else []),
        *([f"- {operators_fact(plan.approval)}"] if plan.approval is not None and plan.approval.operators else []),
        *([f"- works in {code(folder)}"] if folder else []),
        f"- {longest}" + (", without the waits for answers" if asks or questions else ""),
        "",
    ]


def _inputs_section(inputs: Mapping[str, JsonValue], mask: ValueMask) -> list[str]:
    lines = ["### Inputs", ""] if inputs else []
    for name, value in inputs.items():
        lines += value_lines(code(name), mask.redact(name, value))
    return [*lines, ""] if lines else []


def _order_section(bound: BoundPlan, preview: Preview, gates: frozenset[str]) -> list[str]:
    effects: dict[str, Effect] = {step.step.id: step.effect for step in preview.steps}
    picture = mermaid([step.step for step in preview.steps], bound.validated.edges, effects=effects, gated=gates)
    return [ORDER, "", *fenced(picture, "mermaid").split("\n"), "", _LEGEND, ""]


def _irreversible_section(preview: Preview) -> list[str]:
    final = preview.irreversible
    lines = ["### What cannot be undone", ""]
    if not final:
        return [*lines, "Nothing.", ""]
    if len(final) <= MAX_LISTED:
        return [*lines, *(f"- {code(step.step.id)} writes and cannot be undone by this plan" for step in final), ""]
    names = ", ".join(code(step.step.id) for step in final)
    return [*lines, f"These {len(final)} steps write and cannot be undone by this plan: {names}", ""]
