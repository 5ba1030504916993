"""Values as people read them: durations, ages, texts whose control characters show, JSON and Markdown that text cannot break out of."""

import json
import re
import unicodedata
from datetime import datetime
from itertools import pairwise

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_BLOCK = re.compile(r"[#>+=|-]|\*[ *]|`{3}|~{3}")  # what makes more than a paragraph at the beginning of a line
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")  # emoji and several scripts need them; they hide nothing


def duration(ms: float) -> str:
    """Return `ms` milliseconds as the two largest units that count: `350 ms`, `2.5 s`, `2 min 5 s`, `1 h 3 min`."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s"
    seconds = round(ms / 1000)
    (size, unit), (part, part_unit) = next(pair for pair in pairwise(_UNITS) if seconds >= pair[0][0])
    rest = seconds % size // part
    return f"{seconds // size} {unit} {rest} {part_unit}" if rest else f"{seconds // size} {unit}"


def moment(at: datetime | None) -> str:
    """Return `at` in the local time zone to the second, or a dash where nothing has happened."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at is not None else "-"


def counted(count: int, one: str, several: str = "") -> str:
    """Return `count` with its noun: `1 step`, `2 steps`; `several` where it is not the noun with an s."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def visible(text: str) -> str:
    r"""Return `text` with every character that could hide or move other text (ESC, bidi overrides, …) written as `\x1b` or `\u202e`."""
    return text if text.isascii() and text.isprintable() else "".join(_shown(character) for character in text)


def one_line(text: str) -> str:
    """Return `text` visible, in one line, with runs of white space as one space."""
    return visible(" ".join(text.split()))


def as_text(value: object) -> str:
    """Return a JSON value in one line; text stands as it is, without quotes, where it cannot be taken for another value."""
    if isinstance(value, str) and value and value == " ".join(value.split()) and not _reads_as_json(value):
        return visible(value)
    return visible(json.dumps(value, ensure_ascii=False))


def without_passwords(text: str) -> str:
    """Return `text` with the password of every URL in it as `***`."""
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", text)


def fenced(text: str, language: str = "") -> str:
    """Return `text` as a Markdown code block whose fence is longer than any in `text`."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def code(text: str) -> str:
    """Return `text` as Markdown inline code, however many backticks it holds."""
    shown, ticks = one_line(text), "`"
    while ticks in shown:
        ticks += "`"
    return f"{ticks} {shown} {ticks}" if shown.startswith("`") or shown.endswith("`") else f"{ticks}{shown}{ticks}"


def prose(text: str) -> str:
    """Return `text` in one line that makes no block, link or HTML in Markdown; emphasis and inline code cannot leave the line."""
    shown = "".join("\\" + character if character in "\\<[]" else character for character in one_line(text))
    return "\\" + shown if _BLOCK.match(shown) else shown


def _shown(character: str) -> str:
    if character in "\n\t" or character in _JOINERS or unicodedata.category(character) not in _INVISIBLE:
        return character
    return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"


def _reads_as_json(text: str) -> bool:
    return text in ("true", "false", "null") or text[0] in '"[{-0123456789'
