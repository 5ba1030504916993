"""The first screen of a gate: what is decided, in the lines that Prefect's forms show above the fields at 1440x900."""

from collections.abc import Sequence

from pydantic import JsonValue

from plan_adapter.gate_text.phrases import EFFECTS_SHOWN
from plan_adapter.gate_text.values import Values, block, columns_of, fits, folded, line_of
from plan_adapter.preview import Preview, StepPreview
from plan_adapter.readable import as_text, code, counted, one_line, words

HEIGHT = 386
"""How many pixels there are, in the UI that has fewer."""

FEWEST = 100
"""For the calls, whatever else there is to say."""

STEP_LINES = 2
"""For one of many steps."""

DESCRIPTION_COLUMNS, CUT_COLUMNS = 90, 70
"""For the description: two lines, also of one that is cut with what says that it continues."""

# How Prefect's newer UI sets a form's text, in columns of a line and in pixels: measured. The older one scrolls it apart from the fields.
_COLUMNS, _LINE, _CODE_LINE = 54, 23, 20
_LIST_MARGIN, _BLOCK_MARGINS = 18, 52
_PARAGRAPH = (60, 16)
_KINDS = {"#": (40, 25), ">": (56, 18), "-": (_COLUMNS, 5)}
"""The columns of a line and the margins of what begins with this sign."""


def opening(heading: str, description: str) -> list[str]:
    """Return the heading and the description, cut to two lines."""
    shown, is_whole = short_description(description)
    quote = [f"> {words(shown)}{'' if is_whole else ' … (continues below)'}", ""] if shown and words(shown) not in heading else []
    return [f"## {heading}", "", *quote]


def short_description(description: str) -> tuple[str, bool]:
    """Return the beginning of a description in one line, and whether that is all of it."""
    text = one_line(description)
    return (text, True) if columns_of(text) <= DESCRIPTION_COLUMNS else (_cut(text, CUT_COLUMNS), False)


def height_of(lines: Sequence[str]) -> int:
    """Return how many pixels these lines of Markdown take in a form, about."""
    height = _LIST_MARGIN * any(line.startswith("- ") for line in lines)
    for line in filter(str.strip, lines):
        if line.startswith("  "):
            height += _BLOCK_MARGINS // 2 if line.strip().startswith("```") else _CODE_LINE
        else:
            columns, margin = _KINDS.get(line[0], _PARAGRAPH)
            height += margin + _LINE * -(-columns_of(line.replace("**", "")) // columns)
    return height


def first_steps(preview: Preview, gates: frozenset[str], values: Values, *, height: int) -> list[str]:
    """Return the steps with what each calls, as far as they fit into `height`: the writes first, then how many more there are."""
    steps = list(enumerate(preview.steps, start=1))
    most = max(STEP_LINES, height // _LINE // len(steps)) if steps else STEP_LINES
    rows = {number: _step_row(number, step, gates, values, columns=most * _COLUMNS) for number, step in steps}
    if height_of(list(rows.values())) <= height:
        return list(rows.values())
    left, shown = height - height_of(_more_steps([step for _, step in steps])), set[int]()
    for number, _ in sorted(steps, key=lambda step: step[1].effect == "read"):
        left -= height_of([rows[number]]) - _LIST_MARGIN
        if left < 0 and shown:
            break
        shown.add(number)
    hidden = [step for number, step in steps if number not in shown]
    return [*(row for number, row in rows.items() if number in shown), *_more_steps(hidden)]


def _more_steps(hidden: Sequence[StepPreview]) -> list[str]:
    writes = sum(step.effect != "read" for step in hidden)
    kind = f", **{writes} that write**" if writes else ", reads only"
    return [f"- **and {counted(len(hidden), 'more step')}**{kind}: all below"] if hidden else []


def first_values(parameters: Sequence[tuple[str, JsonValue]], *, height: int) -> tuple[list[str], bool]:
    """Return the parameters of one call as far as they fit into `height`, and whether that is all of them, whole."""
    shown, is_whole = list[str](), True
    for index, (name, value) in enumerate(parameters):
        later = len(parameters) - index - 1
        text = line_of(value)
        part = [f"- {code(name)}: {code(text)}"] if text is not None else block(code(name), value)
        if height_of(part) + later * _LINE > height:
            if index and height < (3 if later else 2) * _LINE:
                return [*shown, f"- **and {counted(later + 1, 'more value')}**: all below"], False
            if text is None:
                is_whole = False
                part = _cut_block(name, value, height=height - later * _LINE)
        shown += part
        height -= height_of(part) - _LIST_MARGIN * bool(index)
    return shown, is_whole


def _cut_block(name: str, value: JsonValue, *, height: int) -> list[str]:
    """Return as many lines of a value as fit into `height`; a line of it where only a few would."""
    for lines in range(height // _CODE_LINE, STEP_LINES, -1):
        cut = block(code(name), value, most_lines=lines)
        if height_of(cut) <= height:
            return cut
    return [f"- {code(name)}: {_in_line(value, STEP_LINES * _COLUMNS)}"]


def _step_row(number: int, preview: StepPreview, gates: frozenset[str], values: Values, *, columns: int) -> str:
    step, items = preview.step, ""
    if step.for_each is not None:
        items = f" × {counted(preview.items, 'item')}" if preview.items is not None else " × each item"
    asks = ", asks again" if step.id in gates else ""
    row = f"- **{number}. {words(step.id)}**{items} ({EFFECTS_SHOWN[preview.effect]}{asks}): {code(step.tool_name or '')}"
    parameters = values.parameters(step.tool_name or "", preview.parameters)
    for index, (name, value) in enumerate(parameters):
        left = columns - columns_of(row) - columns_of(name) - 6
        if left < 8 and index:
            return f"{row} and {counted(len(parameters) - index, 'more value')}"
        row += f" {words(name)} {_in_line(value, max(left, 8))}"
    return row


def _in_line(value: JsonValue, columns: int) -> str:
    """Return a value as inline code, and whether there is more of it."""
    text = as_text(value)
    if fits(text, columns):
        return code(text)
    return f"{code(_cut(' '.join(' '.join(folded(word)) for word in text.split()), columns))}**…**"


def _cut(text: str, columns: int) -> str:
    """Return the beginning of `text` that is at most `columns` wide."""
    width = 0
    for index, character in enumerate(text):
        width += columns_of(character)
        if width > columns:
            return text[:index].rstrip()
    return text
