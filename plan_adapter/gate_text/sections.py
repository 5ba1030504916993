"""The sections that the texts of all gates have, from the notices above the heading to the digests at the end."""

from collections.abc import Iterable, Sequence

from plan_adapter.gate_text.first_screen import short_description
from plan_adapter.gate_text.values import SHOWN_CHARACTERS, Values
from plan_adapter.plan import ExecutionPlan
from plan_adapter.readable import one_line, words

TITLE_CHARACTERS = 100
"""How much of a plan's name is its heading; the digests cover all of it."""

NOTICE_CHARACTERS = 300
"""How much of a notice is shown: a note of somebody who answered may be long."""

ORDER, DIGESTS = "### Order", "### Digests"


def document(first: Iterable[str], rest: Iterable[str]) -> str:
    """Return a whole text: its first screen, which has no section, and its sections."""
    return "\n".join([*first, *rest]).rstrip() + "\n"


def split_text(text: str) -> tuple[str, str]:
    """Return the first screen of a gate's text, and its sections."""
    first, start, rest = text.partition("\n### ")
    return f"{first.rstrip()}\n", f"{start}{rest}".lstrip("\n")


def without_picture(text: str) -> str:
    """Return the text of a gate without its picture, whose source says nothing to people: for where nobody draws it."""
    # At the beginning of a line, where no text of a plan stands: it could hide what follows.
    before, order, rest = text.partition(f"\n{ORDER}\n")
    _, digests, after = rest.rpartition(f"\n{DIGESTS}\n")
    return before + digests + after if order else text


def title(plan: ExecutionPlan) -> str:
    """Return a plan's name for a heading."""
    return words(plan.name if len(plan.name) <= TITLE_CHARACTERS else plan.name[:TITLE_CHARACTERS] + "…")


def notice_lines(notices: Sequence[str]) -> list[str]:
    """Return what must be seen before all else, each cut to a few lines."""
    return [line for notice in notices for line in (f"**⚠️ {words(_short(one_line(notice)))}**", "")]


def _short(notice: str) -> str:
    more = len(notice) - NOTICE_CHARACTERS
    return notice if more <= 0 else f"{notice[:NOTICE_CHARACTERS]}… {more:,} more characters: `plan show` has all"


def quoted(text: str) -> list[str]:
    """Return a text of the plan as a quote, line by line."""
    shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + f" … {len(text) - SHOWN_CHARACTERS:,} more characters"
    lines = [words(line) for line in shown.splitlines() if line.strip()]
    return [*"\n>\n".join(f"> {line}" for line in lines).split("\n"), ""] if lines else []


def description_section(text: str) -> list[str]:
    """Return the whole description, where the first screen shows only its beginning."""
    return [] if short_description(text)[1] else ["### Description", "", *quoted(text)]


def masked_note(values: Values) -> list[str]:
    """Return what says that something was masked, where something was."""
    return ["`***` stands for a secret. The call gets the real value.", ""] if values.has_masked else []


def digests_section(plan_digest: str, *, approval_digest: str | None = None) -> list[str]:
    """Return what the answer binds to; None where it approves nothing."""
    approval = ["approval digest", approval_digest] if approval_digest is not None else []
    # In a fence: its letters are small enough for the whole of a digest in the width of a form.
    return [DIGESTS, "", "```", *approval, "plan digest", plan_digest, "```"]
