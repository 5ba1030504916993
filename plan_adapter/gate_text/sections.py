"""The sections that the texts of all gates have, from the notices above the heading to the digests at the end."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

from plan_adapter.gate_text.values import SHOWN_CHARACTERS, Values, value_lines
from plan_adapter.plan import ExecutionPlan
from plan_adapter.readable import code, words

TITLE_CHARACTERS = 100
"""How much of a plan's name is its heading; the digests cover all of it."""

ORDER, STEPS = "### Order", "### Steps"


def document(lines: Iterable[str]) -> str:
    """Return a whole text of these lines."""
    return "\n".join(lines).rstrip() + "\n"


def for_terminal(text: str) -> str:
    """Return the text of a gate without its picture, whose source says nothing to people."""
    before, order, rest = text.partition(f"{ORDER}\n")
    _, steps, after = rest.partition(f"{STEPS}\n")
    return before + steps + after if order else text


def title(plan: ExecutionPlan) -> str:
    """Return a plan's name for a heading."""
    return words(plan.name if len(plan.name) <= TITLE_CHARACTERS else plan.name[:TITLE_CHARACTERS] + "…")


def call_heading(step_id: str, item: int | None, plan: ExecutionPlan) -> str:
    """Return the heading of a gate that asks about one call; `item` counts from 0."""
    which = f", item {item + 1}" if item is not None else ""
    return f"## {words(step_id)}{which}: {title(plan)}"


def notice_lines(notices: Sequence[str]) -> list[str]:
    """Return what must be seen before all else."""
    return [line for notice in notices for line in (f"**⚠️ {words(notice.strip())}**", "")]


def quoted(text: str) -> list[str]:
    """Return a text of the plan as a quote, line by line."""
    shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + f" … {len(text) - SHOWN_CHARACTERS:,} more characters"
    lines = [words(line) for line in shown.splitlines() if line.strip()]
    return [*"\n>\n".join(f"> {line}" for line in lines).split("\n"), ""] if lines else []


def parameters_section(tool_name: str, parameters: Mapping[str, JsonValue], values: Values) -> list[str]:
    """Return what one call hands its tool, value by value."""
    shown = [line for name, value in values.parameters(tool_name, parameters) for line in value_lines(code(name), value)]
    return ["### Parameters", "", *(shown or ["None."]), ""]


def masked_note(values: Values) -> list[str]:
    """Return what says that something was masked, where something was."""
    return ["`***` stands for a secret; the call gets its value.", ""] if values.has_masked else []


def digests_section(plan_digest: str, *, approval_digest: str | None = None) -> list[str]:
    """Return what the answer binds to; None where it approves nothing."""
    approval = ["approval digest", approval_digest] if approval_digest is not None else []
    # In a fence: its letters are small enough for the whole of a digest in the width of a form.
    return ["### Digests", "", "```", *approval, "plan digest", plan_digest, "```"]
