"""The text of a plan gate."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.language import later, tr
from plan_adapter.model.options import Effect
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import code, counted, duration, fenced, secret_parameters, words
from plan_adapter.text.changes import FINALLY, Changes
from plan_adapter.text.gate_text import (
    HEIGHT,
    MAX_LISTED,
    MIN_CALL_HEIGHT,
    NO_CONTEXT,
    ORDER,
    GateContext,
    ValueMask,
    description_section,
    digests_section,
    effect_shown,
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
    lowered_fact,
    operators_fact,
    permissions_facts,
)
from plan_adapter.text.pictures import mermaid
from plan_adapter.text.preview import Preview, StepPreview, preview_plan
from plan_adapter.validation import BoundPlan, ValidatedPlan

CHANGES_SHOWN = 200
"""How many changed values the text of a gate lists."""


def _changes(earlier: ExecutionPlan, preview: Preview, mask: ValueMask) -> Changes:
    """Return how the plan of `preview` differs from `earlier`."""
    effects: dict[str, Effect] = {(FINALLY if step.is_finally_step else "") + step.step.id: step.effect for step in preview.steps}
    return Changes(earlier, preview.plan, effects, {name: secret_parameters(schema) for name, schema in mask.schemas.items()})


def changes_section(changes: Changes) -> list[str]:
    """Return the section on how a plan differs from its earlier version."""
    lines, same = changes.lines(most=CHANGES_SHOWN), changes.untouched()
    lines = [*(lines or [tr("nothing")]), *([tr("unchanged: {steps}", steps=list_names(same, MAX_LISTED))] if same else [])]
    return [f"### {tr('What changed')}", "", *(f"- {line}" for line in lines), ""]


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
    outermost = min((step.step.depth for step in preview.steps), default=0)
    for number, step in enumerate(preview.steps, start=1):
        lines = _step_lines(step, number, mask, gate=step.step.id in gates, depth=step.step.depth - outermost)
        limit_bytes -= lines.size
        if limit_bytes < 0:
            break
        shown.append(lines)
    items = [*(lines.item for lines in shown), ""]
    if missing := len(preview.steps) - len(shown):
        not_shown = tr("**{steps} not shown here:** `plan show RUN` and `plan preview` show all.", steps=counted(missing, "more step"))
        items += [not_shown, ""]
    blocks = [line for lines in shown for line in lines.blocks]
    return [*items, *([f"### {tr('Long values')}", "", *blocks, ""] if blocks else [])]


def _step_lines(preview: StepPreview, number: int, mask: ValueMask, *, gate: bool, depth: int) -> _StepLines:
    step, blocks = preview.step, list[str]()
    called = [tr("plan {plan}", plan=code(step.called))] if step.plan else [code(step.called)] if step.goal is None else []
    parts = [*(group_facts(step, preview.items, preview.at_once, preview.on_error) or called), *preview.facts, *preview.hosts_facts]
    if step.pinned is not None:
        parts += [tr("digest {digest}", digest=code(plan_digest(step.pinned)[:12]))]
    labelled = [(label_of(name), text) for name, text in labelled_facts(step).items()]
    given = mask.redact_parameters(step.tool_name or "", preview.parameters)
    parameters = [(code(name), value) for name, value in given if step.goal is None or name != "done_when"]  # which has a label
    _add_parts(step.id, [*labelled, *parameters], parts, blocks)
    if (undo := preview.rollback) is not None:
        failed = tr(", also if the step failed") if step.rollback_failed else ""
        parts.append(f"{tr('**undone by** {tool}', tool=code(undo.tool_name))} ({effect_shown(undo.effect)}){failed}")
        undone_with = mask.redact_parameters(undo.tool_name, undo.parameters)
        arguments = [(tr("undone with {name}", name=code(name)), value) for name, value in undone_with]
        _add_parts(step.id, arguments, parts, blocks)
    facts = list[str]()
    if step.inner:
        facts += [tr("**asks first**")] if gate else []
    else:
        facts += [effect_shown(preview.effect) if step.ask is None else tr("**asks a person**")]
        facts += [lowered_fact(step, preview.lowered_from)] if preview.lowered_from is not None else []
        facts += [tr("**always runs, at the end**")] if preview.is_finally_step else []
        facts += [tr("**asks again**")] if gate and step.ask is None else []
    if step.ask is not None:
        parts += [tr("field {field}", field=field_line(name, field).removeprefix("- ")) for name, field in step.ask.fields.items()]
        parts += [tr("may answer: {names}", names=list_names(step.approvers, MAX_LISTED))] if step.approvers else []
    facts += [tr("in the group {group}", group=code(step.group))] if step.group is not None else []
    limits = [] if step.inner or step.goal is not None else [_time_limit(preview)]
    return _StepLines("  " * depth + " · ".join([f"- {_step_heading(preview, number)}", *facts, *parts, *limits]), blocks)


def _add_parts(step_id: str, facts: Iterable[tuple[str, JsonValue]], parts: list[str], blocks: list[str]) -> None:
    """Add facts about a step to the parts of its line, and long values to the blocks below."""
    for label, value in facts:
        text = inline_text(value)
        if text is not None:
            parts.append(f"{label} {code(text)}")
        else:
            parts.append(f"{label} ({tr('{extent}, below', extent=extent_of(value))})")
            blocks += value_block(f"{code(step_id)} {label}", value)


def _step_heading(preview: StepPreview, number: int) -> str:
    step, items = preview.step, ""
    if preview.is_repeated:
        items = f" × {counted(preview.items, 'item') if preview.items is not None else tr('each item')}"
    description = step.description[:DESCRIPTION_CHARACTERS] + ("…" if len(step.description) > DESCRIPTION_CHARACTERS else "")
    return f"**{number}. {words(step.id)}**{items}" + (f": {words(description)}" if description else "")


def _time_limit(preview: StepPreview) -> str:
    if not preview.timeout_ms:
        longest = tr("no time limit")
    elif preview.worst_case_ms is None:
        longest = tr("time limit per item")
    else:
        longest = tr("at most {limit}", limit=duration(preview.worst_case_ms))
    return f"{longest}, {retry_summary(preview.step)}" if preview.step.max_retries else longest


MOST_COUNTED = "99 writes that can be undone"
"""About the longest phrase that counts what has no row, for the height of its line."""

LIMIT_BYTES = 200_000
"""How large the text of a gate can be before it omits steps of the plan."""

_LEGEND = later("Blue: reads. Yellow: writes, and can be repeated safely. **Red: writes.** Hexagon: asks again before it runs.")


def plan_gate_text(
    bound: BoundPlan,
    *,
    gated: Collection[str],
    approval_digest: str,
    expires_ms: int,
    context: GateContext = NO_CONTEXT,
    nobody: str | None = None,
    quorum: int = 1,
    earlier: ExecutionPlan | None = None,
    notices: Sequence[str] = (),
    tools: Sequence[str] = (),
    origin: Sequence[str] = (),
    folder: str = "",
    limit_bytes: int = LIMIT_BYTES,
) -> str:
    """Return the text of a plan gate: what it calls, by risk, on the first screen, then every detail.

    `gated` are the steps that ask again before they run. `expires_ms` 0 means no limit. `context` is the run that asks. `nobody` says why
    nobody may answer, if nobody may, and `quorum` how many people must approve. `tools` is the section on changed tools, `origin` the
    one on what a model was asked for, and `folder` is where the run works. If the text exceeds `limit_bytes`, steps at the end of the
    list are omitted, with a note; nothing else is.
    """
    validated, gates = bound.validated, frozenset(gated)
    preview = preview_plan(validated, inputs=bound.inputs, approval_digest=approval_digest, requires_approval=True)
    mask = ValueMask.of(bound)
    named = f" ({words(preview.run_name)})" if preview.run_name not in (None, preview.plan.name) else ""
    waits = expiry_sentence(preview.plan, expires_ms, None, nobody=nobody, at=context.at, quorum=quorum)
    heading = tr("Approve {name}?", name=plan_title(preview.plan) + named)
    changes = None if earlier is None else _changes(earlier, preview, mask)
    notes = notice_lines([*notices, *([] if changes is None else changes.raised())])
    head = [f"## {heading}", ""]
    asked = [" ".join(part for part in (context.sentence(), waits, _inputs_line(bound.inputs, mask)) if part), ""]
    # The last line counts what is not shown above, so its height is reserved with all that it could count.
    left = HEIGHT - height_of([*notes, *head, *asked, last_line(preview, gates, [MOST_COUNTED])])
    calls, counts = first_calls(preview, gates, mask, height=max(left, MIN_CALL_HEIGHT))
    facts = [*asked, *calls, last_line(preview, gates, counts), ""]
    about = quoted_description(heading, preview.plan.description)
    is_described = height_of([*notes, *head, *about, *facts]) <= HEIGHT
    first = [*notes, *head, *(about if is_described else []), *facts]
    before = [] if changes is None else changes_section(changes)
    before += [
        *tools,
        *_run_section(preview, gates, folder),
        *description_section(preview.plan.description, is_shown=is_described),
        *_inputs_section(bound.inputs, mask),
        *origin,
    ]
    before += [f"### {tr('Steps')}", ""]
    after = [
        *_irreversible_section(preview),
        *order_section(bound.validated, preview, gates),
        *digests_section(validated.digest, approval_digest=approval_digest),
    ]
    steps = steps_list(preview, gates, mask, limit_bytes=limit_bytes - size_of([*first, *before, *after]))
    return gate_document(first, [*before, *steps, *redaction_note(mask), *after])


def _inputs_line(inputs: Mapping[str, JsonValue], mask: ValueMask) -> str:
    """Return the inputs in one sentence, as far as they are short."""
    shown = [f"{words(name)} {code(text)}" for name, value in inputs.items() if (text := inline_text(mask.redact(name, value))) is not None]
    more = len(inputs) - len(shown)
    shown += [tr("{values} below", values=counted(more, "long value"))] if more else []
    return tr("Inputs: {inputs}.", inputs=joined_lines(shown, separator=", ")) if shown else ""


def last_line(preview: Preview, gates: frozenset[str], counts: Sequence[str]) -> str:
    """Return the last sentences of the first screen: what else the run does, where it asks again, and how long it can take."""
    questions = [step.step.id for step in preview.steps if step.step.ask is not None]
    asks = [step.step.id for step in preview.steps if step.step.id in gates and step.step.ask is None]
    also = [*counts, *([counted(len(questions), "question to a person", "questions to people")] if questions else [])]
    parts = [tr("Also {things}.", things=_joined(also))] if also else []
    if asks:
        parts.append(tr("Asks again before {steps}.", steps=list_names(asks, 2)))
    return " ".join([*parts, worst_case_sentence(preview.worst_case_ms, asks=bool(asks or questions))])


def _joined(texts: Sequence[str]) -> str:
    """Return texts joined with commas, and the last one with `and`."""
    *others, last = texts
    return tr("{first} and {last}", first=", ".join(others), last=last) if others else last


def _run_section(preview: Preview, gates: frozenset[str], folder: str) -> list[str]:
    """Return the section about the run as a whole, one fact per line."""
    plan = preview.plan
    questions = [step.step.id for step in preview.steps if step.step.ask is not None]
    called = Counter(step.effect for step in preview.steps if not step.step.inner and step.step.ask is None)
    kinds = [counted(called["read"], "read")] if called["read"] else []
    kinds += [counted(called["idempotent_write"], "repeatable write")] if called["idempotent_write"] else []
    kinds += [counted(called["write"], "write")] if called["write"] else []
    kinds += [counted(len(questions), "question")] if questions else []
    asks = [step.step.id for step in preview.steps if step.step.id in gates and step.step.ask is None]
    undone = [step.step.id for step in preview.steps if step.rollback is not None]
    alone = [inner.id for group in plan.all_steps if plan.rolls_back_failed_items(group) for inner in group.steps if inner.id in undone]
    if_failed = tr("undone if the run fails, or if an approver requests it: {steps}", steps=list_names(undone))
    if_failed = if_failed if gates else tr("undone if the run fails: {steps}", steps=list_names(undone))
    limit = preview.worst_case_ms
    longest = tr("no time limit") if limit is None else tr("takes at most: {time}", time=duration(limit))
    return [
        f"### {tr('The run')}",
        "",
        f"- {counted(len(preview.steps), 'step')}: {', '.join(kinds)}",
        *([f"- {if_failed}"] if undone else []),
        *([f"- {tr('undone as soon as their item has failed: {steps}', steps=list_names(alone))}"] if alone else []),
        *([f"- {tr('asks again before {steps}', steps=list_names(asks))}"] if asks else []),
        *([f"- {tr('asks a person: {steps}', steps=list_names(questions))}"] if questions else []),
        *secrets_lines(preview.secrets, preview.secret_creators),
        *(f"- {fact}" for fact in permissions_facts(preview.permissions)),
        *([f"- {tr(REPLAN_FACT)}"] if plan.on_failure == "replan" else []),
        *([f"- {operators_fact(plan.approval)}"] if plan.approval is not None and plan.approval.operators else []),
        *([f"- {tr('works in {folder}', folder=code(folder))}"] if folder else []),
        f"- {longest}" + (tr(", without the waits for answers") if asks or questions else ""),
        "",
    ]


def _inputs_section(inputs: Mapping[str, JsonValue], mask: ValueMask) -> list[str]:
    lines = [f"### {tr('Inputs')}", ""] if inputs else []
    for name, value in inputs.items():
        lines += value_lines(code(name), mask.redact(name, value))
    return [*lines, ""] if lines else []


def order_section(validated: ValidatedPlan, preview: Preview, gates: Collection[str]) -> list[str]:
    """Return the section with the picture of the steps."""
    effects: dict[str, Effect] = {step.step.id: step.effect for step in preview.steps}
    picture = mermaid([step.step for step in preview.steps], validated.edges, effects=effects, gated=gates)
    return [f"### {tr(ORDER)}", "", *fenced(picture, "mermaid").split("\n"), "", tr(_LEGEND), ""]


def _irreversible_section(preview: Preview) -> list[str]:
    final = preview.irreversible
    lines, names = [f"### {tr('What cannot be undone')}", ""], [code(step.step.id) for step in final]
    if not final:
        return [*lines, tr("Nothing."), ""]
    if len(final) <= MAX_LISTED:
        return [*lines, *(f"- {tr('{step} writes and cannot be undone by this plan', step=name)}" for name in names), ""]
    those = tr("These {count} steps write and cannot be undone by this plan: {steps}", count=len(final), steps=", ".join(names))
    return [*lines, those, ""]
