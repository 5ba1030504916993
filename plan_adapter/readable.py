"""Values as people read them: durations, ages, texts whose control characters show, Markdown that text cannot leave, secrets masked."""

import json
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from pydantic import JsonValue

    from plan_adapter.plan import CallKind

MASK = "***"
"""What stands in place of a secret."""

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_BLOCK = re.compile(r"[#>+=|-]|\*[ *]|`{3}|~{3}")  # what makes more than a paragraph at the beginning of a line
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")  # emoji and several scripts need them, between two of their own letters
_UNSEEN = re.compile(  # what nobody can see in a text that people read as ASCII: joiners, variation selectors, other marks without a form
    r"[\u200c\u200d](?![^\x00-\x7f\u200c\u200d])|(?<![^\x00-\x7f\u200c\u200d])[\u200c\u200d]"
    r"|(?<=[\x00-\x7f])[\ufe00-\ufe0f](?!\u20e3)|[\u034f\u17b4\u17b5\u180b-\u180d\u180f\U000e0100-\U000e01ef]"
)
_BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and symbols that nobody can see
_TICKS = re.compile(r"`+")
_SPAN = re.compile(r"`([^`]+)`")
_SPECIAL = re.compile(r"[\\*\[\]<|~`]|&(?=[#A-Za-z])|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is no emphasis
_ACTIVE = re.compile(r"[\\<\[\]]|&(?=[#A-Za-z])")  # an entity would bring back the characters that `one_line` shows
_ESCAPE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)|\\([!-/:-@\[-`{-~])")  # inline code, or a character behind a backslash
_START = re.compile(r"(\d{0,9})([#>+=.)-])")  # of a heading, quote, list or rule
_LINKED = re.compile(r"://|www\.|@|\b(?:mailto|xmpp):", re.IGNORECASE)  # GFM makes links of these by itself
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_STEMS = re.compile(
    "passw(?:or)?d|passphrase|passcode|secret|credential|authorization|cookie|apikey|privatekey|accesskey|密码|口令|令牌|密钥|秘密"
)
_SECRET_WORDS = frozenset({"auth", "bearer", "jwt", "pass", "pwd", "token"})
_REFERENCES = 8  # that are followed from one schema to the next for the same value
_SHORTEST_HIDDEN = 4  # characters: hiding a shorter text wherever it stands would hide half of the rest


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


def listed(texts: Sequence[str], most: int) -> str:
    """Return the first `most` of some texts with commas, and how many more there are."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def visible(text: str) -> str:
    r"""Return `text` with every character that could hide or move other text (ESC, bidi overrides, …) written as `\x1b` or `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in _UNSEEN.sub(lambda found: _escaped(found[0]), text))


def one_line(text: str) -> str:
    """Return `text` visible, in one line, with runs of white space as one space."""
    return visible(" ".join(text.split()))


def call_name(step_id: str, item: int | None, label: str | None = None, *, kind: "CallKind" = "step") -> str:
    """Return what a call is named for people: `restart`, `rollback restart`, `restart[web-2]` for an item.

    An item without a label has its number from 1.
    """
    name = step_id if kind == "step" else f"rollback {step_id}"
    return name if item is None else f"{name}[{label or item + 1}]"


def item_option(item: int | None, label: str | None = None) -> str:
    """Return the option with which a command names an item, empty for none: its label where no shell takes that for anything else."""
    if item is None:
        return ""
    if label is None or label == str(item + 1) or not _PLAIN_LABEL.fullmatch(label):
        return f" --item {item + 1}"
    return f" --item {label if not label.isdecimal() else f':{item + 1}'}"


def means_item(word: str, item: int | None, label: str | None) -> bool:
    """Return whether `word`, as the option `--item` gives it, means this item: its label, its number from 1, or `:` and the number."""
    return item is not None and (word == label or word in (str(item + 1), f":{item + 1}"))


_PLAIN_LABEL = re.compile(r"[\w.@/+][\w.@/+:-]*")


def as_text(value: object) -> str:
    """Return a JSON value in one line; text stands as it is, without quotes, where it cannot be taken for another value."""
    if isinstance(value, str) and value and value == " ".join(value.split()) and not _reads_as_json(value):
        return visible(value)
    return visible(json.dumps(value, ensure_ascii=False))


def without_passwords(text: str) -> str:
    """Return `text` with the password of every URL in it as `***`."""
    return re.sub(r"\S+", _without_password, text) if "://" in text and "@" in text else text


def words(text: str) -> str:
    """Return `text` in one line in which Markdown makes nothing but inline code of what stands between backticks.

    What GFM would make a link by itself (an address) becomes inline code, too.
    """
    parts: list[str] = []
    for index, part in enumerate(_SPAN.split(one_line(text))):
        parts += [code(part)] if index % 2 and part.strip() else _plain_words(part)
    shown = "".join(_apart(parts))
    return _START.sub(r"\1\\\2", shown, count=1) if _START.match(shown) else shown


def is_secret_name(name: str) -> bool:
    """Return whether a value under `name` is to be masked: it has a word for a secret in it, in any case, with `-`, `_` or neither."""
    return _secrecy(name)[0]


def masked(
    value: "JsonValue",
    *,
    schema: Mapping[str, Any] | None = None,
    hidden: Collection[str] = (),
    expressions: bool = True,
    literals: Collection[str] = (),
) -> "JsonValue":
    """Return `value` with `***` for what is secret, as people may see it.

    Secret is what `schema`, the JSON Schema of `value`, calls writeOnly or a password; what stands under a name of a secret, at any
    depth; the password of a URL; and each text of `hidden` that is long enough to be one, wherever it stands. `expressions`: `${{ … }}`
    in such a place stays, as it holds no value; False where all have been resolved. `literals` stay beside it: they are no secret's half.
    """
    texts = sorted((text for text in hidden if len(text) >= _SHORTEST_HIDDEN), key=len, reverse=True)
    mask = _Mask(texts, expressions, schema or {}, literals)
    return mask.of(value, mask.resolved([schema]))


def secret_parameters(schema: Mapping[str, Any]) -> set[str]:
    """Return the names of a JSON Schema's properties whose values `masked` hides."""
    mask, properties = _Mask([], True, schema), schema.get("properties", {})
    return {name for name, part in properties.items() if is_secret_name(name) or any(map(_says_secret, mask.resolved([part])))}


def fenced(text: str, language: str = "") -> str:
    """Return `text` as a Markdown code block whose fence is longer than any in `text`."""
    fence = "`" * max(3, *(1 + len(run) for run in ("", *_TICKS.findall(text))))
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def code(text: str) -> str:
    """Return `text` as Markdown inline code, however many backticks it holds."""
    shown = one_line(text)
    ticks = "`" * max(1, *(1 + len(run) for run in ("", *_TICKS.findall(shown))))
    return f"{ticks} {shown} {ticks}" if shown.startswith("`") or shown.endswith("`") else f"{ticks}{shown}{ticks}"


def prose(text: str) -> str:
    """Return `text` in one line that makes no block, link, HTML or other character in Markdown; emphasis and code cannot leave the line."""
    shown = _ACTIVE.sub(r"\\\g<0>", one_line(text))
    return "\\" + shown if _BLOCK.match(shown) else shown


def unescaped(markdown: str) -> str:
    """Return Markdown without its escapes, for a terminal, which renders none of it; what stands in inline code stays as it is."""
    return _ESCAPE.sub(lambda found: found[2] or found[0], markdown)


def _plain_words(text: str) -> list[str]:
    parts: list[str] = []
    for number, word in enumerate(text.split(" ")):
        parts += [" "] if number else []
        parts += [code(word) if _LINKED.search(word) else _SPECIAL.sub(r"\\\g<0>", word)] if word else []
    return parts


def _apart(parts: list[str]) -> list[str]:
    """Return `parts` with a blank between two runs of backticks, which side by side would be one longer run."""
    return [
        part if not part.startswith("`") or not index or not parts[index - 1].endswith("`") else " " + part
        for index, part in enumerate(parts)
    ]


@lru_cache(maxsize=4096)
def _secrecy(name: str) -> tuple[bool, bool]:
    """Return whether a name is one of a secret, and whether only texts under it are: `max_tokens` is a number."""
    split = [word for word in re.split(r"[\W_]+", _CAMEL.sub("_", unicodedata.normalize("NFKC", name)).casefold()) if word]
    squashed = "".join(split)
    if _SECRET_STEMS.search(squashed) or not _SECRET_WORDS.isdisjoint(split) or squashed.endswith("token"):
        return True, False
    return squashed.endswith("tokens"), True


_Schemas: TypeAlias = Sequence[Mapping[str, Any]]


class _Mask:
    def __init__(self, hidden: list[str], expressions: bool, root: Mapping[str, Any], literals: Collection[str] = ()) -> None:
        self._hidden = re.compile("|".join(map(re.escape, hidden))) if hidden else None
        self._expressions = expressions
        self._literals = literals
        self._definitions: Mapping[str, Any] = root.get("$defs", {})

    def of(self, value: "JsonValue", schemas: _Schemas) -> "JsonValue":
        """Return `value`, masked, which has all of `schemas`."""
        if any(map(_says_secret, schemas)):
            return self._secret(value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            members = self.resolved([schema["items"] for schema in schemas if "items" in schema])
            return [self.of(member, members) for member in value]
        return self._object(value, schemas) if isinstance(value, dict) else value

    def resolved(self, schemas: Sequence[Any], depth: int = 0) -> _Schemas:
        """Return `schemas` with all that they refer to or choose among, for the same value."""
        found: list[Mapping[str, Any]] = []
        for schema in schemas:
            if not isinstance(schema, Mapping) or depth > _REFERENCES:
                continue
            own = cast("Mapping[str, Any]", schema)
            others = [part for word in ("anyOf", "oneOf", "allOf") for part in own.get(word, ())]
            if "$ref" in own:
                others.append(self._definitions.get(str(own["$ref"]).removeprefix("#/$defs/")))
            found += [own, *self.resolved(others, depth + 1)]
        return found

    def _object(self, value: "dict[str, JsonValue]", schemas: _Schemas) -> "JsonValue":
        # {"name": "PASSWORD", "value": "…"}: so lists of variables are written.
        named = value.get("name", value.get("key"))
        shown: dict[str, JsonValue] = {}
        for key, member in value.items():
            name = named if key == "value" and isinstance(named, str) else key
            secret, only_texts = _secrecy(name)
            if secret and member is not None and not isinstance(member, bool) and not (only_texts and isinstance(member, int | float)):
                shown[key] = self._secret(member)
            else:
                shown[key] = self.of(member, self.resolved([_property(schema, key) for schema in schemas]))
        return shown

    def _text(self, text: str) -> str:
        shown = without_passwords(text)
        return self._hidden.sub(MASK, shown) if self._hidden else shown

    def _secret(self, value: "JsonValue") -> "JsonValue":
        if value is None or value == "":
            return value
        if not isinstance(value, str) or not self._expressions:
            return MASK
        # What stands around expressions may be half of the secret. Up to the last end of one, so that none is looked for in vain.
        head, end, rest = value.rpartition("}}")
        expressions = [*_EXPRESSION.findall(head + end), ""]
        around = _EXPRESSION.split(head + end)
        around[-1] += rest
        shown = (self._text(part) if part in self._literals or not part.strip() else MASK for part in around)
        return "".join(part + kept for part, kept in zip(shown, expressions, strict=True))


def _says_secret(schema: Mapping[str, Any]) -> bool:
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def _property(schema: Mapping[str, Any], key: str) -> Any:
    return schema.get("properties", {}).get(key, schema.get("additionalProperties"))


def _without_password(word: re.Match[str]) -> str:
    # Up to the last @ of the word, so that no attempt to match looks at what follows in vain.
    head, at, rest = word[0].rpartition("@")
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", rf"\1{MASK}@", head + at) + rest


def _shown(character: str) -> str:
    if character in "\n\t" or character in _JOINERS:
        return character
    if unicodedata.category(character) not in _INVISIBLE and character not in _BLANKS:
        return character
    return _escaped(character)


def _escaped(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"


def _reads_as_json(text: str) -> bool:
    return text in ("true", "false", "null") or text[0] in '"[{-0123456789'
