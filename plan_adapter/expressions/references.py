"""The syntax of `${{ }}`: the pieces of a text, the references in an expression, and the lookup of a reference.

Independent of CEL and of plans.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from plan_adapter.model.values import Unknown

Path: TypeAlias = tuple[str | int, ...]
"""A parsed reference: `steps.check.result.rows[0]` is `("steps", "check", "result", "rows", 0)`."""

EACH: Final = -1
"""The key that stands for any member of a list: `steps.nodes.result[*]`."""

_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*\b"
_PLAIN_STRING = r"\"[^\"\\\n]*\"|'[^'\\\n]*'"  # a string literal without prefix and escapes
_STRING = (
    r"(?<!\w)(?:[rR][bB]?|[bB][rR])(?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"[^\"\n]*\"|'[^'\n]*')"
    r"|\"\"\"(?:\\[\s\S]|[^\\])*?\"\"\"|'''(?:\\[\s\S]|[^\\])*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
)
_MEMBER = rf"(?:\s*(?:\.\s*{_IDENTIFIER}|\[\s*(?:{_PLAIN_STRING}|\d{{1,15}})\s*\]))"

_HOSTS = rf"hosts\s*\(\s*(?:{_PLAIN_STRING})\s*\)"  # the hosts of a pattern
_WHOLE = re.compile(rf"\s*((?:steps|inputs|secrets|run|item|result|event)\b|{_HOSTS})({_MEMBER}*)\s*")
_USE = re.compile(rf"(?:(steps)\b({_MEMBER}{{0,2}})|(inputs|secrets|run)\b({_MEMBER}?)|({_HOSTS}))")
_LONGEST = re.compile(rf"((?:steps|inputs|run|item|result|event)\b|{_HOSTS})((?:{_MEMBER}(?!\s*\())*)")
_MEMBERS = re.compile(rf"(?:{_MEMBER}(?!\s*\())*")
_MACRO = re.compile(rf"\s*\.\s*(all|exists|exists_one|filter|map)\s*\(\s*({_IDENTIFIER})\s*,")
_NAMED_MEMBER = rf"(?:\.\s*{_IDENTIFIER}|\[\s*(?:{_PLAIN_STRING})\s*\])"
_NEAR = re.compile(
    rf"(?<!\$)\{{\{{-?\s*(?P<braces>(?:(?:inputs|steps|secrets|run|event)\b{_NAMED_MEMBER}|(?:item|result)\b){_MEMBER}*)"
    rf"|(?<![${{])\{{(?P<brace>(?:inputs|steps|secrets)\b\.{_IDENTIFIER}{_MEMBER}*)\}}"
    rf"|\$\{{\s*(?P<shell>(?:inputs|steps|secrets)\b\.{_IDENTIFIER}{_MEMBER}*)\s*\}}"
    rf"|(?<![\w$])\$(?P<word>(?:inputs|steps|secrets)\b\.{_IDENTIFIER}{_MEMBER}*)"
)
"""What other languages write for a value: `{{ inputs.host }}`, `{inputs.host}`, `${inputs.host}`, `$inputs.host`."""

_NEAR_END = re.compile(r"[ \t]*-?\}\}")
_BEFORE_NULL = re.compile(r"\s*[=!]=\s*null\b")
_AFTER_NULL = re.compile(r"(?<![\w.])null\s*[=!]=\s*$")
_KEY = re.compile(rf"({_IDENTIFIER})|({_PLAIN_STRING})|(\d+)")
_BRACKETS = re.compile(rf"{_STRING}|[{{}}]")
_TOKEN = re.compile(rf"{_STRING}|//[^\n]*|(?P<name>{_IDENTIFIER})|[^\s\w]|\d[\w.]*")
_HYPHENATED = re.compile(r"(?:steps|secrets)\s*\.\s*([A-Za-z_]\w*(?:-\w+)+)")


class UnclosedError(ValueError):
    """A text contains `${{` without a closing `}}`."""


class MissingValueError(LookupError):
    """A reference has no value. The message says what exists; `key` is what is missing."""

    def __init__(self, key: str | int, message: str) -> None:
        """Store `key`."""
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Code:
    """The text between `${{` and `}}`, without surrounding white space."""

    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """A use of `steps`, `inputs`, `secrets`, `run` or `hosts` in an expression. `path` covers the part that becomes a variable.

    That is `("steps", id, member)`, `("inputs", name)`, `("secrets", name)`, `("run", member)` or `("hosts", pattern)`. In a shorter path,
    something is missing.
    """

    path: Path
    start: int
    end: int


def has_expression(value: str) -> bool:
    """Return whether `value` contains `${{`, and so is more than plain text."""
    return "${{" in value


def near_expressions(text: str) -> list[tuple[str, str]]:
    """Return what in a plain text looks like an expression of another language, each as written and as the reference that it means."""
    if not ("{" in text or "$" in text):
        return []
    found = list[tuple[str, str]]()
    for match in _NEAR.finditer(text):
        end = _NEAR_END.match(text, match.end())
        closing = "" if not match["braces"] else end[0] if end else " }}"
        found.append((match[0] + closing, str(match[match.lastgroup or 0])))
    return found


def split_expressions(text: str) -> list[str | Code]:
    """Split `text` into literal texts and expressions. Raises UnclosedError.

    A `}}` inside a string or at the end of nested braces does not close an expression.
    """
    found: list[str | Code] = []
    position = 0
    while (start := text.find("${{", position)) >= 0:
        if start > position:
            found.append(text[position:start])
        end = _end_of_code(text, start + 3)
        found.append(Code(text[start + 3 : end].strip()))
        position = end + 2
    if position < len(text):
        found.append(text[position:])
    return found


def whole_path(code: str) -> Path | None:
    """Return the path if `code` is a single reference, else None. Such a reference needs no expression language."""
    match = _WHOLE.fullmatch(code)
    return None if match is None else _parse_path(match[1], match[2])


def references(code: str) -> Iterator[Reference]:
    """Yield each use of `steps`, `inputs`, `secrets`, `run` or `hosts` outside strings and comments, from left to right."""
    for match in _find_uses(code, _USE):
        yield Reference(_parse_path(match[1] or match[3] or match[5], match[2] or match[4] or ""), match.start(), match.end())


def inputs_in(text: str) -> list[str]:
    """Return the names of the inputs that the expressions in `text` use, each once, from left to right."""
    codes = (piece.text for piece in split_expressions(text) if isinstance(piece, Code))
    paths = (reference.path for code in codes for reference in references(code))
    return [*dict.fromkeys(str(path[1]) for path in paths if path[0] == "inputs" and len(path) > 1)]


def passed_input(value: object) -> str | None:
    """Return the input that a text passes on, if the text is nothing but `${{ inputs.name }}`. None for any other value."""
    if not isinstance(value, str) or not has_expression(value):
        return None
    try:
        pieces = split_expressions(value.strip())
    except UnclosedError:
        return None
    path = whole_path(pieces[0].text) if len(pieces) == 1 and isinstance(pieces[0], Code) else None
    return str(path[1]) if path is not None and path[0] == "inputs" and len(path) == 2 else None


def sources_of(*texts: str) -> list[str]:
    """Return the inputs in the expressions of `texts`, each once, as `inputs.name`."""
    return [f"inputs.{name}" for name in dict.fromkeys(name for text in texts for name in inputs_in(text))]


def read_path(code: str, start: int) -> Reference:
    """Return the reference that begins at `start`, as long as it can be read without evaluating anything."""
    match = _LONGEST.match(code, start)
    if match is None:
        return Reference((), start, start)
    return Reference(_parse_path(match[1], match[2]), start, match.end())


def is_compared_with_null(code: str, reference: Reference) -> bool:
    """Return whether `code` compares the reference with null: `steps.a.result != null`."""
    return bool(_BEFORE_NULL.match(code, reference.end) or _AFTER_NULL.search(code[: reference.start]))


def asks_for_null(code: str) -> bool:
    """Return whether `code` contains a null that is not compared with a reference, such as `list.filter(x, x != null)`."""
    uses = (read_path(code, match.start()) for match in _find_uses(code, _LONGEST))
    return count_names(code, {"null"}) > sum(is_compared_with_null(code, use) for use in uses)


def longest_paths(code: str) -> list[Path]:
    """Return each reference in `code`, as long as it can be read without evaluating anything."""
    return [_parse_path(match[1], match[2]) for match in _find_uses(code, _LONGEST)]


def member_paths(code: str) -> list[Path]:
    """Return each reference in `code` as `longest_paths` does, also those by the variables of macros: `list.filter(node, node.ready)`."""
    return list(_paths_of_names(code, {root: (root,) for root in ("steps", "inputs", "run", "item", "result", "event")}))


def _paths_of_names(code: str, names: Mapping[str, Path]) -> Iterator[Path]:
    """Yield the references in `code` that begin with one of `names`. Each name stands for a path."""
    before, position = "", 0
    receiver, receiver_end = None, 0  # the newest path, and where it ends
    while (token := _TOKEN.search(code, position)) is not None:
        macro = _MACRO.match(code, token.start()) if token.group() == "." else None
        if macro is not None:
            path = receiver if not code[receiver_end : token.start()].strip() else None
            end = _end_of_call(code, macro.end())
            inner = {name: known for name, known in names.items() if name != macro[2]}
            yield from _paths_of_names(code[macro.end() : end], inner if path is None else {**inner, macro[2]: (*path, EACH)})
            position, before = end + 1, ")"
            receiver, receiver_end = (path if macro[1] == "filter" else None), position
            if receiver is not None and (members := _MEMBERS.match(code, position)) is not None and members[0]:
                receiver, receiver_end = (*receiver, *_parse_keys(members[0])), members.end()
                position = receiver_end
                yield receiver
            continue
        position = token.end()
        if token["name"] == "hosts" and before != "." and (call := _LONGEST.match(code, token.start())) is not None:
            receiver, receiver_end = _parse_path(call[1], call[2]), call.end()
            position = receiver_end
            yield receiver
        elif token["name"] in names and before != "." and (members := _MEMBERS.match(code, position)) is not None:
            receiver, receiver_end = (*names[token["name"]], *_parse_keys(members[0])), members.end()
            position = receiver_end
            yield receiver
        before = token.group()


def _end_of_call(code: str, start: int) -> int:
    """Return where the bracket closes that is open at `start`, or the end of `code`."""
    depth = 1
    for token in _TOKEN.finditer(code, start):
        depth += (token.group() in ("(", "[", "{")) - (token.group() in (")", "]", "}"))
        if depth == 0:
            return token.start()
    return len(code)


def replace_references(code: str, replace: Callable[[Path], str | None]) -> str:
    """Return `code` with each reference except secrets replaced by the result of `replace`. If that is None, the reference stays."""
    parts, position = list[str](), 0
    for match in _find_uses(code, _LONGEST):
        text = replace(_parse_path(match[1], match[2]))
        if text is not None:
            parts += [code[position : match.start()], text]
            position = match.end()
    return "".join([*parts, code[position:]])


def replace_strings(code: str, text: str, replacement: str) -> str:
    """Return `code` with `replacement` for each plain string equal to `text`. Strings that name a member of a reference stay."""
    spans = [use.span() for pattern in (_LONGEST, _USE) for use in _find_uses(code, pattern)]
    parts, position = list[str](), 0
    for token in _TOKEN.finditer(code):
        is_text = re.fullmatch(_PLAIN_STRING, token.group()) is not None and token.group()[1:-1] == text
        is_text = is_text and not code[: token.start()][-1:].isalnum()  # a prefix makes it bytes
        if is_text and not any(start <= token.start() < end for start, end in spans):
            parts += [code[position : token.start()], replacement]
            position = token.end()
    return "".join([*parts, code[position:]])


def count_names(code: str, wanted: Collection[str]) -> int:
    """Return how often identifiers in `wanted` occur in `code` outside strings and comments."""
    return sum(token["name"] in wanted for token in _TOKEN.finditer(code) if token["name"])


def hyphenated_word(code: str, start: int) -> str:
    """Return the hyphenated word after the `steps.` or `secrets.` at `start` (`steps.my-step` gives `my-step`), or ""."""
    match = _HYPHENATED.match(code, start)
    return match[1] if match else ""


def format_path(path: Path) -> str:
    """Return `path` in expression syntax: `steps["my-step"].result.rows[0]`."""
    root, *keys = path
    if root == "hosts" and keys:
        pattern, *keys = keys
        root = f"hosts('{pattern}')"
    return str(root) + "".join(_format_key(key) for key in keys)


def follow(path: Path, variables: Mapping[str, object]) -> Any:
    """Return the value at `path`. A step without an error has the `error` None, and any part of an unknown value is unknown.

    Raises MissingValueError.
    """
    value: Any = variables
    for length, key in enumerate(path):
        if isinstance(value, Unknown):
            return value
        if _has_key(value, key):
            value = value[key]
        elif length == 2 and path[0] == "steps" and key == "error":
            value = None
        else:
            raise MissingValueError(key, _explain_missing(path[:length], key, value))
    return value


def describe_kind(value: object) -> str:
    """Return a phrase for the kind of `value`, without showing the value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"


def shorten(text: str) -> str:
    """Return `text` on one line, cut to 80 characters."""
    line = " ".join(text[:400].split())
    return line if len(line) <= 80 else line[:79] + "…"


def _end_of_code(text: str, start: int) -> int:
    depth = 0
    for token in _BRACKETS.finditer(text, start):
        if token.group() == "{":
            depth += 1
        elif token.group() == "}":
            if depth == 0 and text.startswith("}}", token.start()):
                return token.start()
            depth = max(0, depth - 1)
    raise UnclosedError(text[start - 3 :])


def _find_uses(code: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    before, position = "", 0
    while (token := _TOKEN.search(code, position)) is not None:
        position = token.end()
        use = pattern.match(code, token.start()) if token["name"] and before != "." else None
        if use is not None:
            yield use
            position = use.end()
        before = token.group()


def _parse_path(root: str, members: str) -> Path:
    pattern = re.search(_PLAIN_STRING, root)  # of `hosts('web')`
    return (root, *_parse_keys(members)) if pattern is None else ("hosts", pattern[0][1:-1], *_parse_keys(members))


def _parse_keys(members: str) -> list[str | int]:
    return [name or (int(number) if number else string[1:-1]) for name, string, number in _KEY.findall(members)]


def _format_key(key: str | int) -> str:
    if isinstance(key, int):
        return "[*]" if key == EACH else f"[{key}]"
    return f".{key}" if re.fullmatch(_IDENTIFIER, key) else f'["{key}"]'


def _has_key(value: Any, key: str | int) -> bool:
    if isinstance(value, Mapping):
        return key in value
    return isinstance(value, list) and isinstance(key, int) and key < len(value)  # pyright: ignore[reportUnknownArgumentType]  # any JSON


def _explain_missing(path: Path, key: str | int, value: Any) -> str:
    if not path:
        return f"there is no `{key}`"
    if isinstance(value, Mapping):
        names = [str(name) for name in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # any JSON
        known = ", ".join(f"`{shorten(name)}`" for name in names[:20]) + (", …" if len(names) > 20 else "")
        return f"`{format_path(path)}` has no key `{key}`; it has {known or 'no keys'}"
    if isinstance(value, list):
        size = len(value)  # pyright: ignore[reportUnknownArgumentType]  # any JSON
        return f"`{format_path(path)}` has no index {key}; it has {size} item{'' if size == 1 else 's'}"
    return f"`{format_path(path)}` is {describe_kind(value)} and has no `{key}`"
