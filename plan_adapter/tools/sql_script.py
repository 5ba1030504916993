"""`split_script`: the statements of an SQL script, as the database itself would find them."""

import re
from collections.abc import Iterator

_COMMON = r"--[^\r\n]*|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*|;|/\*"
_TOKENS = {
    "sqlite": re.compile(rf"`(?:[^`]|``)*`|\[[^\]]*\]|{_COMMON}"),
    "postgresql": re.compile(rf"(?<!\w)[eE]'(?:[^'\\]|\\[\s\S]|'')*'|(?<![\w$])(?P<tag>\$(?:[^\W\d]\w*)?\$)[\s\S]*?(?P=tag)|{_COMMON}"),
}
_TRANSACTION = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE"})


def split_script(script: str, dialect: str) -> list[str]:
    """Return the statements of `script` without the `;` between them. Text without a statement, such as a comment alone, is left out.

    A `;` in quotes, in comments, and in the body of a SQLite trigger or of a PostgreSQL function ends no statement. The database refuses a
    part that it reads as several statements, so a wrong split cannot hide one.
    """
    return [statement for statement in _parts(script, dialect) if statement]


def ends_transaction(statement: str) -> bool:
    """Return whether `statement`, without leading comments, begins or ends a transaction."""
    words = [word.upper() for word in re.findall(r"[A-Za-z_]+", statement[:200])[:3]]
    if not words or words[0] not in _TRANSACTION:
        return False
    if words[0] == "ROLLBACK":
        return "TO" not in words[1:]  # of a savepoint
    return words[0] != "PREPARE" or words[1:2] == ["TRANSACTION"]


def _parts(script: str, dialect: str) -> Iterator[str]:
    start = position = depth = 0
    words = list[str]()  # of the statement so far, outside quotes and comments
    pattern = _TOKENS["sqlite" if dialect == "sqlite" else "postgresql"]
    while (token := pattern.search(script, position)) is not None:
        position, text = token.end(), token.group()
        if text == "/*":
            position = _end_of_comment(script, token.start(), nests=dialect != "sqlite")
        elif text == ";" and not depth:
            yield script[start : token.start()].strip() if words else ""
            start, words = position, []
        elif text == ";" or text.startswith("--"):
            continue
        else:
            words.append(text.upper())
            depth = max(0, depth + _change_of_depth(words, depth, dialect))
    yield script[start:].strip() if words else ""


def _change_of_depth(words: list[str], depth: int, dialect: str) -> int:
    """Return 1 if the last of `words` opens a body of statements or a block in one, and -1 if it closes one."""
    last = words[-1]
    if depth:
        return {"CASE": 1, "END": -1}.get(last, 0)
    if dialect == "sqlite":
        return int(last == "BEGIN" and words[0] == "CREATE" and "TRIGGER" in words[1:3])
    return int(words[-2:] == ["BEGIN", "ATOMIC"])


def _end_of_comment(script: str, start: int, *, nests: bool) -> int:
    depth = 0
    for mark in re.finditer(r"/\*|\*/", script[start:]):
        depth += 1 if mark[0] == "/*" and (nests or not depth) else -1 if mark[0] == "*/" else 0
        if not depth:
            return start + mark.end()
    return len(script)
