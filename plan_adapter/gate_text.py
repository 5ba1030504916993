"""`plan_gate_text` and `step_gate_text`: what the person who decides reads, as Markdown for a form and a terminal.

Whatever the plan says of itself stands in a quote, a cell, inline code or an indented fence; what stands outside of these is ours.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from unicodedata import east_asian_width

from pydantic import JsonValue

from plan_adapter.canonical import Change, diff_plans
from plan_adapter.expressions import Foresight
from plan_adapter.listing import REPLAN_FACT, operators_fact
from plan_adapter.pictures import mermaid
from plan_adapter.plan import EFFECTS, ApprovalPolicy, Effect, ExecutionPlan, Step
from plan_adapter.preview import Preview, RollbackPreview, StepPreview, preview_plan, preview_rollback
from plan_adapter.readable import (
    as_text,
    code,
    code_cell,
    counted,
    duration,
    fenced,
    is_secret_name,
    masked,
    moment,
    secret_parameters,
    visible,
    words,
)
from plan_adapter.record import Attempt
from plan_adapter.validation import BoundPlan

LIMIT_BYTES = 200_000
"""How large the text of a gate may be before steps of the plan are left out of it."""

SHORT_CHARACTERS = 72
"""What a value may be long to stand in its line; a longer one gets a block of its own."""

UNBROKEN_CHARACTERS = 32
"""How long a word of a value may be: the form of UI V2 is 512 pixels wide, whatever the window."""

FOLD_COLUMNS = 56
"""How wide a line of a block may be: Prefect's form shows 60 columns, and the rest only to who scrolls aside."""

SHOWN_CHARACTERS = 20_000
"""How much of a single value is shown; what is missing is said."""

FIRST_CHARACTERS, FIRST_LINES = 500, 10
"""How long a description may be to stand before what is asked."""

TITLE_CHARACTERS = 100
"""How much of a plan's name is its heading; the digests cover all of it."""

NAMED = 12
"""How many steps are told one a line; more are named in one sentence."""

_DOES: dict[Effect, str] = {"read": "read", "idempotent_write": "repeatable write", "write": "write"}
_EFFECT: dict[Effect, str] = {"read": "read", "idempotent_write": "write, repeatable", "write": "**write**"}


@dataclass(slots=True)
class _Values:
    """Shows values, secrets masked, short ones in their line and long ones in blocks."""

    inputs: Mapping[str, JsonValue]
    expressions: bool = True  # whether an expression may still stand in a value
    has_masked: bool = False
    _hidden: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._hidden = [text for name, value in self.inputs.items() if is_secret_name(name) for text in _texts(value)]

    def masked(self, name: str, value: JsonValue, schema: Mapping[str, JsonValue] | None = None) -> JsonValue:
        """Return `value`, which stands under `name`, as it may be shown; `schema` is that of the object in which it stands."""
        shown = masked({name: value}, schema=schema, hidden=self._hidden, expressions=self.expressions)
        result = shown[name] if isinstance(shown, dict) else shown
        self.has_masked = self.has_masked or result != value
        return result


@dataclass(frozen=True, slots=True)
class _StepLines:
    row: str  # of the table
    blocks: list[str]  # its long values

    @property
    def size(self) -> int:
        """Bytes, with line ends."""
        return sum(len(line.encode(errors="replace")) + 1 for line in (self.row, *self.blocks))


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
    plan = validated.plan
    preview = preview_plan(validated, inputs=bound.inputs, approval_digest=approval_digest, requires_approval=True)
    schemas = {str(tool["name"]): tool["parameters"] for tool in validated.definitions}
    values = _Values(bound.inputs)
    glance, why = _at_a_glance(preview, gates, plan, expires_ms), _quoted(plan.description)
    # Nobody must scroll past a long description to see what is dangerous.
    about = [*why, *glance] if len(plan.description) <= FIRST_CHARACTERS and len(why) <= FIRST_LINES else [*glance, *why]
    head = [*_notices(notices), f"## {_title(plan)}", "", *about, *_inputs(bound.inputs, values), *origin]
    if earlier is not None:
        head += _changes(earlier, bound, preview, kept, schemas)
    head += tools
    effects: dict[str, Effect] = {step.step.id: step.effect for step in preview.steps}
    picture = mermaid([step.step for step in preview.steps], validated.reduced, effects=effects, gated=gates)
    head += ["### Order", "", *fenced(picture, "mermaid").split("\n"), "", _LEGEND, "", "### Steps", ""]
    tail = [*_irreversible(preview), *_digests(("approval digest", approval_digest), ("plan digest", validated.digest))]
    left = limit_bytes - sum(len(line.encode(errors="replace")) + 1 for line in (*head, *tail))
    steps = _steps(preview, gates, schemas, values, left)
    return _document([*head, *steps, *_masked_note(values), *tail])


def step_gate_text(
    bound: BoundPlan,
    step: Step,
    *,
    effect: Effect,
    parameters: Mapping[str, JsonValue],
    item: int | None,
    approval_digest: str,
    expires_ms: int,
    results: Mapping[str, JsonValue] | None = None,
    ends: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
) -> str:
    """Return what an approval of one call covers: the parameters as they will be handed to the tool, and what led here.

    `results` are those of the steps that it depends on, `ends` how these ended (`completed`, `skipped`); `item` counts from 0.
    """
    validated = bound.validated
    secrets = sorted(validated.parameters[step.id].secrets)
    values = _Values(bound.inputs, expressions=bool(secrets))
    schema = next((tool["parameters"] for tool in validated.definitions if tool["name"] == validated.tools[step.id].name), None)
    undo, known = preview_rollback(step.id, validated, Foresight(bound.inputs)), _Values(bound.inputs)
    which = f", item {item + 1}" if item is not None else ""
    lines = [*_notices(notices), f"## {words(step.id)}{which}: {_title(validated.plan)}", "", *_quoted(step.description)]
    calls = f"calls {code(step.tool_name or '')} with the parameters below"
    lines += [f"**Asked: may this one call be made now?** It {calls}.", ""]
    lines += [
        _danger(step.id, effect, undo),
        f"- {_tries(step, _timeout_ms(validated.plan, step))}",
        _expiry(validated.plan, expires_ms, step),
        *_uses(secrets),
    ]
    lines += ["", "### Parameters", ""]
    for name, value in parameters.items():
        lines += _value_lines(code(name), values.masked(name, value, schema if isinstance(schema, dict) else None))
    lines += [] if parameters else ["None."]
    lines += ["", *_rollback_section(undo, {str(tool["name"]): tool["parameters"] for tool in validated.definitions}, known)]
    values.has_masked = values.has_masked or known.has_masked
    lines += _masked_note(values)
    lines += _what_came_before(validated.dependencies[step.id], results or {}, ends or {}, _Values(bound.inputs, expressions=False))
    return _document([*lines, *_digests(("approval digest", approval_digest), ("plan digest", validated.digest))])


def outcome_text(bound: BoundPlan, step: Step, lost: Attempt, *, why: str, made_by: str | None, run_id: str) -> str:
    """Return what a person is asked who is to say how the attempt `lost` ended: what it was to do, since when, and what each answer does.

    `made_by` is the start of the run, and its process, that made the attempt; `why` says why nobody knows how it ended.
    """
    validated, undoes = bound.validated, lost.step_id != step.id
    template = validated.rollbacks[step.id].parameters if undoes else validated.parameters[step.id]
    values = _Values(bound.inputs, expressions=bool(template.secrets))
    schema = next((tool["parameters"] for tool in validated.definitions if tool["name"] == lost.tool_name), None)
    which = f", item {lost.item + 1}" if lost.item is not None else ""
    description = f"Undo: {step.description}" if undoes and step.description else step.description
    lines = [f"## {words(lost.step_id)}{which}: {_title(validated.plan)}", "", *_quoted(description)]
    lines += [
        f"**Asked: how did attempt {lost.number} of {code(lost.step_id)} end?** It is a write, and nobody knows whether it was done.",
        "",
    ]
    ends = "the run ends here, as cancelled. Whether it was done stays unknown, so a rollback does not undo it"
    if undoes:
        ends = "nothing further is undone. Whether it was done stays unknown, and it is not called again until somebody says more"
    lines += [
        f"- it called {code(lost.tool_name)} with the parameters below",
        f"- it began at {moment(lost.started_at)}" + (f", in {words(made_by)} of run {words(run_id)}" if made_by else ""),
        f"- why nobody knows: {words(why)}",
        "",
        "Look at what it was to change, and say what you found:",
        "",
        "- **done**: it was done. It is not made again; what you give as its result (JSON, empty for none) is what later steps are given",
        "- **again**: it was not done. It is made again" + (", once it is approved anew" if lost.approval_id is not None else ""),
        f"- **abort**: {ends}",
        "",
        "Your answer is recorded as a receipt, with your name. It approves nothing.",
        "",
        "### Parameters",
        "",
    ]
    for name, value in lost.parameters.items():
        lines += _value_lines(code(name), values.masked(name, value, schema if isinstance(schema, dict) else None))
    lines += [] if lost.parameters else ["None."]
    lines += ["", *_masked_note(values)]
    return _document([*lines, *_digests(("plan digest", validated.digest))])


def for_terminal(text: str) -> str:
    """Return the text of a gate without its picture, whose source says nothing to people."""
    before, order, rest = text.partition("### Order\n")
    _, steps, after = rest.partition("### Steps\n")
    return before + steps + after if order else text


_LEGEND = "Blue reads; yellow writes, and may be repeated safely; **red writes**; a hexagon asks again before it runs."


def _document(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _title(plan: ExecutionPlan) -> str:
    return words(plan.name if len(plan.name) <= TITLE_CHARACTERS else plan.name[:TITLE_CHARACTERS] + "…")


def _texts(value: JsonValue) -> list[str]:
    if isinstance(value, dict | list):
        return [text for member in (value.values() if isinstance(value, dict) else value) for text in _texts(member)]
    return [value] if isinstance(value, str) else []


def _notices(notices: Sequence[str]) -> list[str]:
    return [line for notice in notices for line in (f"**⚠️ {words(notice.strip())}**", "")]


def _quoted(text: str) -> list[str]:
    """Return a text of the plan as a quote, line by line."""
    shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + f" … {len(text) - SHOWN_CHARACTERS:,} more characters"
    lines = [words(line) for line in shown.splitlines() if line.strip()]
    return [*"\n>\n".join(f"> {line}" for line in lines).split("\n"), ""] if lines else []


def _at_a_glance(preview: Preview, gates: frozenset[str], plan: ExecutionPlan, expires_ms: int) -> list[str]:
    counts = ", ".join(counted(count, _DOES[effect]) for effect, count in preview.effects.items())
    writes, asks = [step.step.id for step in preview.irreversible], [step.step.id for step in preview.steps if step.step.id in gates]
    undone = [step.step.id for step in preview.steps if step.rollback is not None]
    longest = "no limit" if preview.worst_case_ms is None else duration(preview.worst_case_ms)
    return [
        "**Asked: may exactly this plan run?**",
        "",
        f"- {counted(len(preview.steps), 'step')}: {counts}",
        f"- **cannot be undone: {_named(writes)}**" if writes else "- nothing in it that could not be undone",
        *([f"- undone if the run fails{_or_asked(gates)}: {_named(undone)}"] if undone else []),
        *([f"- asks again before {_named(asks)}"] if asks else []),
        *_uses(preview.secrets),
        *([f"- {REPLAN_FACT}"] if plan.on_failure == "replan" else []),
        *([f"- {operators_fact(plan.approval)}"] if plan.approval is not None and plan.approval.operators else []),
        f"- takes at most: {longest}" + (", waiting for answers apart" if asks else ""),
        _expiry(plan, expires_ms, None),
        "",
    ]


def _or_asked(gates: Collection[str]) -> str:
    return ", or if somebody who may approve it asks for that" if gates else ""


def _uses(secrets: Sequence[str]) -> list[str]:
    return [f"- uses the secrets: {_named(secrets, NAMED)}"] if secrets else []


def _named(ids: Sequence[str], limit: int = 5) -> str:
    return ", ".join(code(name) for name in ids[:limit]) + (f" and {len(ids) - limit} more" if len(ids) > limit else "")


def _expiry(plan: ExecutionPlan, expires_ms: int, step: Step | None) -> str:
    if not expires_ms:
        return "- waits for an answer without limit"
    skips = step is not None and (plan.approval or ApprovalPolicy()).expires == "skip"
    return f"- without an answer within {duration(expires_ms)}: {'the step is skipped' if skips else 'rejected'}"


def _inputs(inputs: Mapping[str, JsonValue], values: _Values) -> list[str]:
    lines = ["### Inputs", ""] if inputs else []
    for name, value in inputs.items():
        lines += _value_lines(code(name), values.masked(name, value))
    return [*lines, ""] if lines else []


def _changes(
    earlier: ExecutionPlan, bound: BoundPlan, preview: Preview, kept: Collection[str], schemas: Mapping[str, JsonValue]
) -> list[str]:
    plan, by_id = bound.validated.plan, {step.step.id: step for step in preview.steps}
    diff = diff_plans(earlier, plan)
    before = {step.id: step for step in earlier.steps}
    lines = ["### What changed", ""]
    for name in diff.raised:
        was = before[name].effect
        # A step without a word of its own has its tool's effect, which may be none more than was written.
        if name in by_id and was is not None and EFFECTS.index(by_id[name].effect) > EFFECTS.index(was):
            lines.append(f"- ⚠️ **MAY DO MORE THAN BEFORE: {code(name)}**, {was} → **{by_id[name].effect}**")
    lines += [f"- **added** {code(name)}: {_called(by_id[name])}" for name in diff.added]
    lines += [f"- **removed** {code(name)}: {code(before[name].tool_name or '')}" for name in diff.removed if name in before]
    secret = {name: secret_parameters(schema) for name, schema in schemas.items() if isinstance(schema, dict)}
    for change in diff.changed[:200]:
        owner = by_id.get(change.at.split(".")[0])
        names = secret.get(bound.validated.tools[owner.step.id].name, set()) if owner is not None else set[str]()
        lines.append(_change_line(change, names))
    lines += [f"- … {len(diff.changed) - 200} more changes"] if len(diff.changed) > 200 else []
    lines += [f"- **stands elsewhere now**: {_named(diff.reordered, NAMED)}"] if diff.reordered else []
    touched = {*diff.added, *diff.reordered, *(change.at.split(".")[0] for change in diff.changed)}
    same = [step.step.id for step in preview.steps if step.step.id not in touched]
    lines += ["- nothing"] if not diff else []
    lines += [f"- unchanged: {_named(same, NAMED)}"] if same else []
    lines += [f"- approved before, and still: {_named(list(kept), NAMED)}"] if kept else []
    return [*lines, ""]


def _called(step: StepPreview) -> str:
    return f"{code(step.step.tool_name or '')}, {_EFFECT[step.effect]}"


def _change_line(change: Change, secret: Collection[str]) -> str:
    # Whether a place is one of a secret, every name in its path says; a parameter's schema, too.
    hides = any(is_secret_name(name) or (index == 2 and name in secret) for index, name in enumerate(change.at.split(".")))
    old, new = (_short(masked({"secret" if hides else "value": value})) for value in (change.old, change.new))
    return f"- {code(change.at)}: {old} → {new}"


def _short(wrapped: JsonValue) -> str:
    value = next(iter(wrapped.values())) if isinstance(wrapped, dict) else wrapped
    text = as_text(value)
    return "nothing" if value is None else code(text if len(text) <= 200 else f"{text[:200]}… {len(text) - 200:,} more")


def _steps(preview: Preview, gates: frozenset[str], schemas: Mapping[str, JsonValue], values: _Values, left: int) -> list[str]:
    shown: list[_StepLines] = []
    for number, step in enumerate(preview.steps, start=1):
        lines = _step_lines(step, number, schemas, values, gate=step.step.id in gates)
        left -= lines.size
        if left < 0:
            break
        shown.append(lines)
    rows = ["| # | step | effect | call | at most |", "|--:|---|---|---|---|"]
    table = [*rows, *(lines.row for lines in shown), ""]
    if missing := len(preview.steps) - len(shown):
        table += [
            f"**{counted(missing, 'more step')} not shown here:** `plan show RUN`, `plan preview` and the artifact of the run have all.",
            "",
        ]
    blocks = [line for lines in shown for line in lines.blocks]
    return [*table, *(["### Long parameters", "", *blocks, ""] if blocks else [])]


def _step_lines(preview: StepPreview, number: int, schemas: Mapping[str, JsonValue], values: _Values, *, gate: bool) -> _StepLines:
    step, blocks, cells = preview.step, list[str](), [code_cell(preview.step.tool_name or "")]
    name = words(step.id, cell=True)
    schema = schemas.get(step.tool_name or "")
    facts: list[tuple[str, JsonValue]] = [
        (code_cell(name), values.masked(name, value, schema if isinstance(schema, dict) else None))
        for name, value in preview.parameters.items()
    ]
    conditions = {"when": step.when, "for each": step.for_each, "done when": step.done_when, "on error": step.on_error}
    _add_cells(step.id, [*((label, text) for label, text in conditions.items() if text is not None), *facts], cells, blocks)
    if (undo := preview.rollback) is not None:
        cells.append(f"**undone by** {code_cell(undo.tool_name)} ({_EFFECT[undo.effect]})")
        told = [(f"undone with {code_cell(name)}", value) for name, value in _rollback_values(undo, schemas, values)]
        _add_cells(step.id, told, cells, blocks)
    items = (
        f" × {preview.items} items" if step.for_each is not None and preview.items is not None else " × each item" if step.for_each else ""
    )
    what = f"**{name}**{items}" + (f": {words(_cut(step.description), cell=True)}" if step.description else "")
    effect = _EFFECT[preview.effect] + (" · **asks again**" if gate else "")
    return _StepLines(f"| {number} | {what} | {effect} | {' · '.join(cells)} | {_at_most(preview)} |", blocks)


def _add_cells(step_id: str, facts: Iterable[tuple[str, JsonValue]], cells: list[str], blocks: list[str]) -> None:
    """Add what is told of a step to the cells of its row, and long values to the blocks below."""
    for label, value in facts:
        text = _line(value)
        if text is not None:
            cells.append(f"{label} {code_cell(text)}")
        else:
            cells.append(f"{label} ({_extent(value)}, below)")
            blocks += _block(f"{code(step_id)} {label}", value)


def _rollback_values(undo: RollbackPreview, schemas: Mapping[str, JsonValue], values: _Values) -> list[tuple[str, JsonValue]]:
    schema = schemas.get(undo.tool_name)
    return [(name, values.masked(name, value, schema if isinstance(schema, dict) else None)) for name, value in undo.parameters.items()]


def _at_most(preview: StepPreview) -> str:
    longest = "no limit" if not preview.timeout_ms else "by items" if preview.worst_case_ms is None else duration(preview.worst_case_ms)
    return f"{longest} · {_retries(preview.step)}" if preview.step.max_retries else longest


def _cut(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"


def _retries(step: Step) -> str:
    delay = f" after {duration(step.retry_delay_ms)}" if step.retry_delay_ms else ""
    growth = f", each × {step.retry_backoff:g}" if delay and step.retry_backoff > 1 and step.max_retries > 1 else ""
    return counted(step.max_retries, "retry", "retries") + delay + growth


def _tries(step: Step, timeout_ms: int) -> str:
    timeout = f"at most {duration(timeout_ms)}" if timeout_ms else "no timeout"
    return f"{timeout} an attempt, {_retries(step)}" if step.max_retries else f"{timeout}, no retries"


def _timeout_ms(plan: ExecutionPlan, step: Step) -> int:
    return plan.options.step_timeout_ms if step.timeout_ms is None else step.timeout_ms


def _line(value: JsonValue) -> str | None:
    """Return a value as it stands in a line, exactly; None for one that is too long for it, or that a line or a cell cannot show."""
    if isinstance(value, str) and (len(value) > SHORT_CHARACTERS or "\n" in value):
        return None
    text = as_text(value)
    # A cell of a table cannot show a backslash before a pipe; nor does a browser show blanks side by side; and what has no blank in it
    # makes the table wider than the form.
    parts = text.split()
    fits = len(text) <= SHORT_CHARACTERS and max(map(len, parts), default=0) <= UNBROKEN_CHARACTERS
    return text if fits and "\\|" not in text and text == " ".join(parts) else None


def _extent(value: JsonValue) -> str:
    text = value if isinstance(value, str) else as_text(value)
    lines = text.count("\n") + 1
    return counted(lines, "line") if lines > 1 else f"{len(text):,} characters"


def _value_lines(label: str, value: JsonValue) -> list[str]:
    text = _line(value)
    return [f"- {label}: {code(text)}"] if text is not None else _block(label, value)


def _block(label: str, value: JsonValue) -> list[str]:
    """Return a value in a fence, whose lines are indented: none of them can be taken for a line of ours."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    shown, more = text[:SHOWN_CHARACTERS], len(text) - SHOWN_CHARACTERS
    folded = "\n".join(piece for line in visible(shown).split("\n") for piece in _folded(line))
    lines = fenced(folded, "" if isinstance(value, str) else "json").split("\n")
    rest = ["", f"  **{more:,} more characters are not shown here.**"] if more > 0 else []
    how = "; ↩: goes on in the next line" if folded != visible(shown) else ""
    return [f"- {label} ({_extent(value)}{how}):", "", *(f"  {line}" for line in lines), *rest]


def _folded(line: str) -> list[str]:
    """Return `line` in pieces of at most FOLD_COLUMNS: the form hides what is further right, and with it what a command does there."""
    pieces, width = [""], 0
    for character in line:
        columns = 2 if east_asian_width(character) in "WF" else 1
        if width + columns > FOLD_COLUMNS:
            pieces[-1] += " ↩"
            pieces.append("")
            width = 0
        pieces[-1] += character
        width += columns
    return pieces


def _irreversible(preview: Preview) -> list[str]:
    final = preview.irreversible
    lines = ["### What cannot be undone", ""]
    if not final:
        return [*lines, "No step writes what could not be undone.", ""]
    if len(final) <= NAMED:
        return [*lines, *(f"- {code(step.step.id)} writes and cannot be undone by this plan" for step in final), ""]
    names = ", ".join(code(step.step.id) for step in final)
    return [*lines, f"These {len(final)} steps write and cannot be undone by this plan: {names}", ""]


def _danger(step_id: str, effect: Effect, undo: RollbackPreview | None) -> str:
    if undo is not None:
        does = "reads" if effect == "read" else "**writes**"
        return f"- {code(step_id)} {does}; if the run fails after it, it is undone as below"
    if effect == "write":
        return f"- **{code(step_id)} writes and cannot be undone by this plan**"
    return f"- {code(step_id)} " + (
        "reads, and changes nothing" if effect == "read" else "writes, may be repeated safely, and **cannot be undone by this plan**"
    )


def _rollback_section(undo: RollbackPreview | None, schemas: Mapping[str, JsonValue], values: _Values) -> list[str]:
    """Return what undoes a call: it is approved with the plan, and nobody is asked again before."""
    if undo is None:
        return []
    lines = [
        "### How it is undone",
        "",
        f"By {code(undo.tool_name)} ({_EFFECT[undo.effect]}), without asking again: if the run fails, or if who may approve asks for it:",
        "",
    ]
    for name, value in _rollback_values(undo, schemas, values):
        lines += _value_lines(code(name), value)
    return [*lines, ""]


def _what_came_before(after: Sequence[str], results: Mapping[str, JsonValue], ends: Mapping[str, str], values: _Values) -> list[str]:
    lines = ["### What it depends on", ""] if after else []
    for name in after:
        end = f" {words(ends[name])}" if name in ends else " completed" if name in results else " has no result"
        lines += _value_lines(f"{code(name)}{end}", values.masked("result", results[name])) if name in results else [f"- {code(name)}{end}"]
    return [*lines, ""] if lines else []


def _masked_note(values: _Values) -> list[str]:
    return ["`***` stands for a secret; the call gets its value.", ""] if values.has_masked else []


def _digests(*digests: tuple[str, str]) -> list[str]:
    # In a fence: its letters are small enough for the whole of a digest in the width of a form.
    return ["### Digests", "", "```", *(line for name, digest in digests for line in (name, digest)), "```"]
