"""Makes values readable and safe to show: durations, ages, control characters made visible, Markdown escaped, secrets redacted."""

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from plan_adapter.model.language import tr, tr_counted

if TYPE_CHECKING:
    from pydantic import JsonValue

    from plan_adapter.model.options import CallKind

MASK = "***"
"""The replacement for a secret."""

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_BLOCK_START = re.compile(r"[#>+=|-]|\*[ *]|~{3}")  # the start of a line that is not a paragraph
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")  # emoji and several scripts need them between two of their own letters
_UNSEEN = re.compile(  # invisible in text that people read as ASCII: joiners, variation selectors, other marks without a form
    r"[\u200c\u200d](?![^\x00-\x7f\u200c\u200d])|(?<![^\x00-\x7f\u200c\u200d])[\u200c\u200d]"
    r"|(?<=[\x00-\x7f])[\ufe00-\ufe0f](?!\u20e3)|[\u034f\u17b4\u17b5\u180b-\u180d\u180f\U000e0100-\U000e01ef]"
)
_BLANK_CHARACTERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # invisible letters and symbols
_TICKS = re.compile(r"`+")
_SPAN = re.compile(r"`([^`]+)`")
_SPECIAL = re.compile(r"[\\*\[\]<|~`]|(?<=\])\(|&(?=[#A-Za-z])|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is not emphasis
_ACTIVE = re.compile(r"[\\<\[\]]|(?<=\])\(|&(?=[#A-Za-z])")  # an entity would restore the characters that `one_line` makes visible
_MARKUP = re.compile(  # inline code; a character after a backslash; or what is between `**`
    r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)|\\([!-/:-@\[-`{-~])|(?<![\w*])\*\*(?=[^\s*])(.+?)(?<=[^\s*\\])\*\*(?![\w*])"
)
_HEADING = re.compile(r"#{1,6} ")
_FENCE = re.compile(r"(`{3,})\w*")
BAR = "│ "
"""What a quote or a code block has in front of each line on a terminal."""
_LINE_START = re.compile(r"\d{1,9}(?=[.)])|(?=[#>+=-])")  # before the character that starts a heading, quote, list or rule
_LINKED = re.compile(r"://|www\.|[\w.+-]@[\w-]+\.|\b(?:mailto|xmpp):", re.IGNORECASE)  # GFM turns these into links by itself
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_STEMS = re.compile(
    "passw(?:or)?d|passphrase|passcode|secret|credential|authorization|cookie|apikey|privatekey|accesskey|密码|口令|令牌|密钥|秘密"
)
_TOKENS = re.compile(r"\b(?:Bearer|Basic)\s+\S|(?<![A-Za-z0-9])(?:gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_-]{8}")
_SECRET_WORDS = frozenset({"auth", "bearer", "jwt", "pass", "pwd", "token"})
_MAX_REFERENCES = 8  # how many schema references to follow for one value
MAX_NAME_CHARACTERS = 200
"""The length of a name in Prefect."""
_REFUSED_IN_NAMES = re.compile(r"[/%&<>\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MIN_HIDDEN_CHARACTERS = 4  # characters: redacting a shorter text everywhere would remove too much other text


def duration(ms: float) -> str:
    """Return `ms` milliseconds in at most two units: `350 ms`, `2.5 s`, `2 min 5 s`, `1 h 3 min`."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s"
    seconds = round(ms / 1000)
    (size, unit), (part, part_unit) = next(pair for pair in pairwise(_UNITS) if seconds >= pair[0][0])
    rest = seconds % size // part
    return f"{seconds // size} {unit} {rest} {part_unit}" if rest else f"{seconds // size} {unit}"


def moment(at: datetime | None) -> str:
    """Return `at` in the local time zone, to the second, or a dash if it is None."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at is not None else "-"


def counted(count: int, one: str, several: str = "") -> str:
    """Return `count` with its noun: `1 step`, `2 steps`. Pass `several` if the plural is not the noun with an s."""
    return tr_counted(count, one, several or one + "s")


def listed(texts: Sequence[str], most: int) -> str:
    """Return the first `most` texts, joined with commas, and how many more there are."""
    shown = ", ".join(texts[:most])
    return tr("{names} and {count} more", names=shown, count=len(texts) - most) if len(texts) > most else shown


def visible(text: str) -> str:
    r"""Return `text` with every character that could hide or move text (ESC, bidi overrides, …) written as `\x1b` or `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_show_character, _UNSEEN.sub(lambda found: _escape_character(found[0]), text)))


def is_visible(value: object) -> bool:
    """Return whether no text in a JSON value has a character that `visible` would write as an escape."""
    if isinstance(value, dict):
        return all(is_visible(name) and is_visible(member) for name, member in cast("dict[str, object]", value).items())
    if isinstance(value, list):
        return all(map(is_visible, cast("list[object]", value)))
    return not isinstance(value, str) or visible(value) == value


def one_line(text: str) -> str:
    """Return `text` on one line, with invisible characters shown and runs of white space reduced to one space."""
    return visible(" ".join(text.split()))


def cut(text: str, most: int) -> str:
    """Return at most the first `most` characters of `text`, without splitting what is shown as one character, such as `é`."""
    end = most
    while 0 < end < len(text) and _joins_previous(text[end - 1], text[end]):
        end -= 1
    return text[: end or most]


def _joins_previous(before: str, character: str) -> bool:
    """Return whether `character` changes the character before it, or is shown as one with it."""
    is_mark = unicodedata.category(character).startswith("M") or "\U0001f3fb" <= character <= "\U0001f3ff"  # a skin tone
    return is_mark or character in _JOINERS or before == "\u200d"


def safe_name(name: str) -> str:
    """Return `name` on one line, visible, without characters that Prefect refuses in names. Return `plan` if nothing is left."""
    return cut(visible(_REFUSED_IN_NAMES.sub(" ", name).strip()), MAX_NAME_CHARACTERS).rstrip() or "plan"


def call_name(step_id: str, item: int | None, label: str | None = None, *, kind: "CallKind" = "step") -> str:
    """Return the name of a call: `restart`, `rollback restart`, `decision report`, or `restart[web-2]` for an item.

    An item without a label is identified by its number, from 1.
    """
    name = step_id if kind == "step" else f"{kind} {step_id}"
    return name if item is None else f"{name}[{label or item + 1}]"


def failure_of(step_id: str, *, is_unknown: bool) -> str:
    """Return that a step failed, or that its outcome is unknown, as the beginning of a sentence."""
    return f"the outcome of `{step_id}` is unknown" if is_unknown else f"`{step_id}` failed"


def call_in_words(step_id: str, kind: "CallKind") -> str:
    """Return the calls of a step as part of a sentence, with the id as code: "`restart`", or "the rollback of `restart`"."""
    return f"the rollback of `{step_id}`" if kind == "rollback" else f"`{call_name(step_id, None, kind=kind)}`"


def item_number(item: int | None) -> int | None:
    """Return the number of an item as `--item` and JSON output count it: from 1. None for no item."""
    return None if item is None else item + 1


def item_option(item: int | None, label: str | None = None) -> str:
    """Return the command option that names an item, or "" for None. It uses the label if no shell would interpret it."""
    if item is None:
        return ""
    if label is None or label == str(item + 1) or not _PLAIN_LABEL.fullmatch(label):
        return f" --item {item + 1}"
    return f" --item {label if not label.isdecimal() else f':{item + 1}'}"


def means_item(word: str, item: int | None, label: str | None) -> bool:
    """Return whether `word`, the value of `--item`, names this item: by its label, its number from 1, or `:` and the number."""
    return item is not None and (word == label or word in (str(item + 1), f":{item + 1}"))


_PLAIN_LABEL = re.compile(r"[\w.@/+][\w.@/+:-]*")


def as_text(value: object) -> str:
    """Return a JSON value on one line. Text is shown without quotes if it cannot be mistaken for another value."""
    return visible(_json_text(value))


def _json_text(value: object) -> str:
    if isinstance(value, str) and value and value == " ".join(value.split()) and not _reads_as_json(value):
        return value
    return json.dumps(value, ensure_ascii=False)


SHOWN_CHARACTERS = 200
"""How much of a value is shown whole."""
CONTEXT_CHARACTERS = 40
_MAX_SHOWN_CHANGES = 2000  # characters of an old or new value, in all its changed parts
_MAX_COMPARED_PARTS = 4000  # words of a changed part; in a longer one, only its beginning and its end are found


def difference(old: object, new: object) -> tuple[str, str]:
    """Return two JSON values as texts that differ where the values do, each on one line.

    Long texts are reduced to the parts that differ, with some context on both sides. `…` stands for what both have, and a number for what
    is left out of a long change.
    """
    before, after = _json_text(old), _json_text(new)
    if max(len(before), len(after)) <= SHOWN_CHARACTERS or before == after:
        return shortened(before), shortened(after)
    parts = _changed_parts(_characters(before), _characters(after))
    room = max(_MAX_SHOWN_CHANGES // sum(1 for one, other in parts if one != other), CONTEXT_CHARACTERS)
    shown = [
        (_shorten_same(one, is_first=index == 0, is_last=index == len(parts) - 1),) * 2
        if one == other
        else (_shorten_change(one, room), _shorten_change(other, room))
        for index, (one, other) in enumerate(parts)
    ]
    return visible("".join(one for one, _ in shown)), visible("".join(other for _, other in shown))


def shortened(text: str) -> str:
    """Return the beginning of `text`, visible, and how much more there is."""
    if len(text) <= SHOWN_CHARACTERS:
        return visible(text)
    begin = cut(text, SHOWN_CHARACTERS)
    return f"{visible(begin)}… {len(text) - len(begin):,} more"


def _changed_parts(old: list[str], new: list[str]) -> list[tuple[list[str], list[str]]]:
    """Return the characters of two texts in parts: pairs of equal parts, and between them pairs that differ."""
    parts = list[tuple[list[str], list[str]]]()
    begin, end = _same_ends(old, new)
    old_words, new_words = (_words(text[begin : len(text) - end]) for text in (old, new))
    codes = [("replace", 0, len(old_words), 0, len(new_words))]
    if max(len(old_words), len(new_words)) <= _MAX_COMPARED_PARTS:
        codes = SequenceMatcher(None, [*map(tuple, old_words)], [*map(tuple, new_words)], autojunk=False).get_opcodes()
    for kind, first, last, new_first, new_last in codes:
        one, other = (list(chain.from_iterable(part)) for part in (old_words[first:last], new_words[new_first:new_last]))
        before, after = (0, 0) if kind == "equal" else _same_ends(one, other)
        parts += [(one[:before], one[:before]), (one[before : len(one) - after], other[before : len(other) - after])]
        parts += [(one[len(one) - after :],) * 2]
    parts = [(old[:begin],) * 2, *parts, (old[len(old) - end :],) * 2]
    joined = list[tuple[list[str], list[str]]]()
    for one, other in parts:
        if joined and (one == other) == (joined[-1][0] == joined[-1][1]):
            joined[-1] = [*joined[-1][0], *one], [*joined[-1][1], *other]
        elif one or other:
            joined.append((one, other))
    return joined


def _same_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """Return how many characters both texts begin with, and how many of the others both end with."""
    shorter = min(len(old), len(new))
    begin = next((index for index in range(shorter) if old[index] != new[index]), shorter)
    most = shorter - begin
    return begin, next((index for index in range(most) if old[-1 - index] != new[-1 - index]), most)


def _characters(text: str) -> list[str]:
    """Return what is shown as one character each: `é` is one, whether it is written with a combining accent or not."""
    found = list[str]()
    for character in text:
        if found and _joins_previous(found[-1][-1], character):
            found[-1] += character
        else:
            found.append(character)
    return found


def _words(characters: list[str]) -> list[list[str]]:
    found, was_word = list[list[str]](), False
    for character in characters:
        is_word = character[0].isalnum()
        if is_word and was_word:
            found[-1].append(character)
        else:
            found.append([character])
        was_word = is_word
    return found


def _shorten_same(same: list[str], *, is_first: bool, is_last: bool) -> str:
    begin = [] if is_first else same[:CONTEXT_CHARACTERS]
    end = [] if is_last else same[-CONTEXT_CHARACTERS:]
    if len(same) <= len(begin) + len(end) + 1:
        return "".join(same)
    return "".join([*begin, "…", *end])


def _shorten_change(changed: list[str], most: int) -> str:
    if len(changed) <= most + CONTEXT_CHARACTERS:
        return "".join(changed)
    half = most // 2
    return "".join([*changed[:half], f"… {len(changed) - 2 * half:,} more …", *changed[-half:]])


def without_passwords(text: str) -> str:
    """Return `text` with the password of every URL in it replaced by `***`."""
    return re.sub(r"\S+", _mask_password, text) if "://" in text and "@" in text else text


def words(text: str) -> str:
    """Return `text` on one line, with Markdown escaped except for inline code between backticks.

    Addresses, which GFM would turn into links, become inline code as well.
    """
    parts: list[str] = []
    for index, part in enumerate(_SPAN.split(one_line(text))):
        parts += [code(part)] if index % 2 and part.strip() else _escape_words(part)
    shown = "".join(_separate_backticks(parts))
    return _LINE_START.sub(r"\g<0>\\", shown, count=1) if _LINE_START.match(shown) else shown


def is_secret_name(name: str) -> bool:
    """Return whether a value called `name` must be redacted.

    The name contains a word for a secret, in any case, with `-`, `_` or neither.
    """
    return _classify_name(name)[0]


def has_token(text: str) -> bool:
    """Return whether `text` contains a secret that its form reveals: a token of a well-known provider, or a header with one."""
    return _TOKENS.search(text) is not None


def redacted(
    value: "JsonValue",
    *,
    schema: Mapping[str, Any] | None = None,
    hidden: Collection[str] = (),
    expressions: bool = True,
    literals: Collection[str] = (),
    names: Collection[str] = (),
) -> "JsonValue":
    """Return `value` with `***` in place of secrets, to show to people.

    These are secret: values that `schema`, the JSON Schema of `value`, marks as writeOnly or a password; values under a secret's name, at
    any depth; passwords in URLs; and the texts in `hidden`, unless they are too short.

    With `expressions`, an expression `${{ … }}` in place of a secret stays, because it contains no value. Pass False if all have been
    resolved. `literals` next to such an expression stay, too, because they are not part of the secret. So do the `names` of secrets, which
    inputs give.
    """
    texts = sorted((text for text in hidden if len(text) >= _MIN_HIDDEN_CHARACTERS), key=len, reverse=True)
    redactor = _Redactor(texts, expressions, schema or {}, literals, names)
    return redactor.redact(value, redactor.resolve([schema]))


def free_key(shown: str, key: str, *taken: Mapping[str, Any]) -> str:
    """Return `shown`, the redacted `key` of an object, with spaces after it if another key of the object is called so."""
    while shown != key and any(shown in keys for keys in taken):
        shown += " "
    return shown


def secret_parameters(schema: Mapping[str, Any]) -> set[str]:
    """Return the names of a JSON Schema's properties whose values `redacted` masks."""
    redactor, properties = _Redactor([], True, schema), schema.get("properties", {})
    return {name for name, part in properties.items() if is_secret_name(name) or any(map(_is_secret_schema, redactor.resolve([part])))}


def fenced(text: str, language: str = "") -> str:
    """Return `text` as a Markdown code block whose fence is longer than any in `text`."""
    fence = "`" * max(3, *(1 + len(run) for run in ("", *_TICKS.findall(text))))
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def code(text: str) -> str:
    """Return `text` as Markdown inline code, whatever backticks it contains."""
    shown = one_line(text)
    ticks = "`" * max(1, *(1 + len(run) for run in ("", *_TICKS.findall(shown))))
    return f"{ticks} {shown} {ticks}" if shown.startswith("`") or shown.endswith("`") else f"{ticks}{shown}{ticks}"


def prose(text: str) -> str:
    """Return `text` on one line, unable to form a Markdown block, link, HTML or entity. Emphasis and code stay within the line.

    Addresses, which GFM would turn into links, become inline code.
    """
    parts: list[str] = []
    for part, is_code in _split_code(one_line(text)):
        parts += [_escape_active(part)] if is_code else _join_words(part, lambda word: _escape_active(word).replace("`", "\\`"))
    shown = "".join(_separate_backticks(parts))
    return "\\" + shown if _BLOCK_START.match(shown) else shown


def plain(markdown: str) -> str:
    """Return Markdown as people read it on a terminal, which does not render it: without escapes, `**` and the marks of headings.

    Quotes and code blocks have a bar in front of each line, so that they cannot be taken for text around them. Inline code is unchanged.
    """
    lines, fence = list[str](), ""
    for line in markdown.split("\n"):
        text = line.lstrip(" ")
        if fence:
            if text == fence:
                fence = ""
            else:
                lines.append(f"{BAR}{line}")
        elif (begin := _FENCE.fullmatch(text)) is not None:
            fence = begin[1]
        else:
            quote = text.startswith(">")
            text = text.lstrip("> ") if quote else _HEADING.sub("", text)
            lines.append(" " * (len(line) - len(line.lstrip(" "))) + (BAR if quote else "") + _without_marks(text))
    return "\n".join(lines)


def _without_marks(text: str) -> str:
    return _MARKUP.sub(lambda found: found[2] or (_without_marks(found[3]) if found[3] else found[0]), text)


def _escape_words(text: str) -> list[str]:
    return _join_words(text, lambda word: _SPECIAL.sub(r"\\\g<0>", word))


def _escape_active(text: str) -> str:
    return _ACTIVE.sub(r"\\\g<0>", text)


def _join_words(text: str, escape: Callable[[str], str]) -> list[str]:
    """Return the words and spaces of a text without inline code: addresses as inline code, other words passed through `escape`."""
    parts: list[str] = []
    for number, word in enumerate(text.split(" ")):
        parts += [" "] if number else []
        if _LINKED.search(word):
            address = word.lstrip("(").rstrip(").,;:") if word.startswith("(") else word
            before, after = word[: word.index(address)], word[word.index(address) + len(address) :]
            parts += [part for part in (escape(before), code(address), escape(after)) if part]
        elif word:
            parts.append(escape(word))
    return parts


def _split_code(line: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a line of Markdown, and whether each is inline code: from a run of backticks to the next one as long."""
    runs, begin = [*_TICKS.finditer(line)], 0
    later = dict[int, list[re.Match[str]]]()
    for run in reversed(runs):
        later.setdefault(len(run[0]), []).append(run)
    for run in runs:
        same = later[len(run[0])]
        if run is same[-1]:
            same.pop()
        if run.start() < begin or not same:
            continue
        end = same[-1].end()
        yield line[begin : run.start()], False
        yield line[run.start() : end], True
        begin = end
    yield line[begin:], False


def _separate_backticks(parts: list[str]) -> list[str]:
    """Return `parts` with a space between two runs of backticks, which would otherwise merge into one."""
    return [
        part if not part.startswith("`") or not index or not parts[index - 1].endswith("`") else " " + part
        for index, part in enumerate(parts)
    ]


@lru_cache(maxsize=4096)
def _classify_name(name: str) -> tuple[bool, bool]:
    """Return whether a name is that of a secret, and whether only texts under it are secret: `max_tokens` is a number."""
    split = [word for word in re.split(r"[\W_]+", _CAMEL.sub("_", unicodedata.normalize("NFKC", name)).casefold()) if word]
    squashed = "".join(split)
    if _SECRET_STEMS.search(squashed) or not _SECRET_WORDS.isdisjoint(split) or squashed.endswith("token"):
        return True, False
    return squashed.endswith("tokens"), True


_Schemas: TypeAlias = Sequence[Mapping[str, Any]]


class _Redactor:
    def __init__(
        self,
        hidden: list[str],
        expressions: bool,
        root: Mapping[str, Any],
        literals: Collection[str] = (),
        names: Collection[str] = (),
    ) -> None:
        self._hidden = re.compile("|".join(map(re.escape, hidden))) if hidden else None
        self._expressions = expressions
        self._literals = literals
        self._names = names
        self._definitions: Mapping[str, Any] = root.get("$defs", {})

    def redact(self, value: "JsonValue", schemas: _Schemas) -> "JsonValue":
        """Return `value` redacted according to all of `schemas`."""
        if schemas and any(map(_is_secret_schema, schemas)):
            return self._mask_secret(value)
        if isinstance(value, str):
            return self._redact_text(value)
        if isinstance(value, list):
            members = self.resolve([schema["items"] for schema in schemas if "items" in schema])
            return [self.redact(member, members) for member in value]
        return self._redact_object(value, schemas) if isinstance(value, dict) else value

    def resolve(self, schemas: Sequence[Any], depth: int = 0) -> _Schemas:
        """Return `schemas` with all that they refer to, by `$ref`, `anyOf`, `oneOf` or `allOf`."""
        found: list[Mapping[str, Any]] = []
        for schema in schemas:
            if not isinstance(schema, Mapping) or depth > _MAX_REFERENCES:
                continue
            own = cast("Mapping[str, Any]", schema)
            others = [part for word in ("anyOf", "oneOf", "allOf") for part in own.get(word, ())]
            if "$ref" in own:
                others.append(self._definitions.get(str(own["$ref"]).removeprefix("#/$defs/")))
            found += [own, *self.resolve(others, depth + 1)]
        return found

    def _redact_object(self, value: "dict[str, JsonValue]", schemas: _Schemas) -> "JsonValue":
        # {"name": "PASSWORD", "value": "…"} is a common form for lists of variables.
        named = value.get("name", value.get("key"))
        shown: dict[str, JsonValue] = {}
        for key, member in value.items():
            name = named if key == "value" and isinstance(named, str) else key
            secret, only_texts = _classify_name(name)
            shown_key = free_key(self._redact_text(key), key, shown, value)
            if secret and member is not None and not isinstance(member, bool) and not (only_texts and isinstance(member, int | float)):
                shown[shown_key] = self._mask_secret(member)
            else:
                parts = self.resolve([_property_schema(schema, key) for schema in schemas]) if schemas else ()
                shown[shown_key] = self.redact(member, parts)
        return shown

    def _redact_text(self, text: str) -> str:
        shown = without_passwords(text)
        return self._hidden.sub(MASK, shown) if self._hidden else shown

    def _mask_secret(self, value: "JsonValue") -> "JsonValue":
        if value is None or value == "" or (isinstance(value, str) and value in self._names):
            return value
        if not isinstance(value, str) or not self._expressions:
            return MASK
        # Text around expressions may be part of the secret. Search only up to the last `}}`: nothing after it can match.
        head, end, rest = value.rpartition("}}")
        expressions = [*_EXPRESSION.findall(head + end), ""]
        around = _EXPRESSION.split(head + end)
        around[-1] += rest
        shown = (self._redact_text(part) if part in self._literals or not part.strip() else MASK for part in around)
        return "".join(part + kept for part, kept in zip(shown, expressions, strict=True))


def _is_secret_schema(schema: Mapping[str, Any]) -> bool:
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def _property_schema(schema: Mapping[str, Any], key: str) -> Any:
    return schema.get("properties", {}).get(key, schema.get("additionalProperties"))


def _mask_password(word: re.Match[str]) -> str:
    # Search only up to the word's last @: nothing after it can match, and trying is slow.
    head, at, rest = word[0].rpartition("@")
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", rf"\1{MASK}@", head + at) + rest


@lru_cache(maxsize=4096)
def _show_character(character: str) -> str:
    if character in "\n\t" or character in _JOINERS:
        return character
    if unicodedata.category(character) not in _INVISIBLE and character not in _BLANK_CHARACTERS:
        return character
    return _escape_character(character)


def _escape_character(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"


def _reads_as_json(text: str) -> bool:
    return text in ("true", "false", "null") or text[0] in '"[{-0123456789'
