"""What a proposed input is called."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from keyword import iskeyword

from plan_adapter.promotion.looks import last_word

_UNTELLING = frozenset(
    re.findall(
        r"\w+",
        "argument arguments argv args body command content data item items json key list name param parameter parameters params payload "
        "statement text uri url value values",
    )
)
"""Names of parameters that say nothing of what stands under them."""

_TAKEN = frozenset({"self", "cls", "return_state", "wait_for", "true", "false", "null", "in"})
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class NameSource:
    """What a name is made of: what the value looks like, and the keys that it stands under, each with whether nothing else does."""

    kind: str
    keys: Sequence[tuple[str, bool]]


def free_name(source: NameSource, taken: Collection[str]) -> str:
    """Return a name that is an identifier in expressions and in Python, and not among `taken`."""
    telling = Counter(name for key, is_all in source.keys if is_all and (name := _identifier(key)) and name not in _UNTELLING)
    inside = (name for key, _ in source.keys if (name := _identifier(key)) and name not in _UNTELLING)
    wanted = telling.most_common(1)[0][0] if telling else source.kind or next(inside, "") or "value"
    if iskeyword(wanted) or wanted in _TAKEN:
        wanted += "_"
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted.rstrip('_')}_{number}", number + 1
    return name


def _identifier(key: str) -> str:
    """Return `key` in snake_case, "" where it has no letters of ASCII: those alone may stand in the name of an input."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key) if key.isascii() else last_word(key)
    name = re.sub(r"[^A-Za-z0-9]+", "_", split).strip("_").lower()[:_LONGEST].rstrip("_")
    return name if name[:1].isalpha() else ""
