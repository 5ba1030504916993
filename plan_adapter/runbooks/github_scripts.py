"""Replaces the expressions in a shell script of GitHub Actions by variables, so that no value is read as code."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from plan_adapter.runbooks.conversion import NotConvertibleError
from plan_adapter.runbooks.github_expressions import Value, pieces

_HEREDOC = re.compile(r"<<-?\s*(['\"\\]?)([A-Za-z_]\w*)['\"]?")
_LONGEST = 50


@dataclass(slots=True)
class _QuoteTracker:
    """Follows the quotes of a shell script that arrives in pieces."""

    quote: str = ""  # the open quote: ', " or none
    _outer: list[str] = field(default_factory=list[str])  # the quotes around each open `$(`
    _heredoc: tuple[str, bool] | None = None  # the delimiter of a here-document, and whether its text is literal
    _is_in_heredoc: bool = False
    _is_comment: bool = False
    _line: str = ""  # the line of the here-document so far

    @property
    def is_in_literal_heredoc(self) -> bool:
        return self._is_in_heredoc and self._heredoc is not None and self._heredoc[1]

    @property
    def is_in_heredoc(self) -> bool:
        return self._is_in_heredoc

    def feed(self, text: str) -> None:
        position = 0
        if self._is_comment and text:
            position = self._comment_end(text, 0)
        while position < len(text):
            position = self._read_heredoc(text, position) if self._is_in_heredoc else self._read_character(text, position)

    def skip_expression(self) -> None:
        """Record that the text has an expression here."""
        self._line += "x"

    def _read_heredoc(self, text: str, position: int) -> int:
        character = text[position]
        if character != "\n":
            self._line += character
        else:
            if self._heredoc is not None and self._line.strip() == self._heredoc[0]:
                self._is_in_heredoc, self._heredoc = False, None
            self._line = ""
        return position + 1

    def _read_character(self, text: str, position: int) -> int:
        character = text[position]
        if self.quote == "'":
            self.quote = "" if character == "'" else "'"
        elif character == "\\":
            return position + 2
        elif character == '"':
            self.quote = "" if self.quote else '"'
        elif text.startswith("$(", position):
            self._outer.append(self.quote)
            self.quote = ""
            return position + 2
        elif not self.quote:
            return self._read_unquoted(text, position)
        return position + 1

    def _comment_end(self, text: str, position: int) -> int:
        end = text.find("\n", position)
        self._is_comment = end < 0
        return len(text) if self._is_comment else end

    def _read_unquoted(self, text: str, position: int) -> int:
        character = text[position]
        if character == "'":
            self.quote = "'"
        elif character == "(":
            self._outer.append("")
        elif character == ")" and self._outer:
            self.quote = self._outer.pop()
        elif character == "#" and (position == 0 or text[position - 1] in " \t\n;"):
            return self._comment_end(text, position)
        elif (found := _HEREDOC.match(text, position)) and not text.startswith("<<<", position):
            self._heredoc = (found[2], bool(found[1]))
            return found.end()
        elif character == "\n" and self._heredoc is not None:
            self._is_in_heredoc, self._line = True, ""
        return position + 1


def replace_expressions(script: str, translate: Callable[[str], Value], env: dict[str, str]) -> str:
    """Return `script` with a variable in place of each expression, and add the variables to `env`.

    Constants are written out. `translate` returns the value of an expression. Raises NotConvertibleError where the shell expands no
    variables, and for an expression that is not closed.
    """
    quotes, parts = _QuoteTracker(), list[str]()
    for part, is_code in pieces(script):
        if not is_code:
            quotes.feed(part)
            parts.append(part)
            continue
        value = translate(part)
        if value.text is not None:
            quotes.feed(value.text)
            parts.append(value.text)
            continue
        if quotes.is_in_literal_heredoc:
            raise NotConvertibleError(f"`{part}` is in a here-document whose text the shell does not expand")
        name = _variable_name(part, value, env)
        quotes.skip_expression()
        parts.append(f"'\"${{{name}}}\"'" if quotes.quote == "'" and not quotes.is_in_heredoc else f"${{{name}}}")
    text = "".join(parts)
    if "${{" in text:
        raise NotConvertibleError("an expression in it is not closed")
    return text


def _variable_name(source: str, value: Value, env: dict[str, str]) -> str:
    """Return the name of a variable for a value: the one in `env` that has it, or a new one."""
    written = f"${{{{ {value.code} }}}}"
    own = re.fullmatch(r"env\.([A-Za-z_]\w*)", source)
    if own is not None and env.get(own[1]) == written:
        return own[1]
    stem = re.sub(r"\W+", "_", source).strip("_").upper()[:_LONGEST].rstrip("_") or "VALUE"
    stem = re.sub(r"^GITHUB_EVENT_INPUTS_|^INPUTS_", "INPUT_", stem)
    stem = stem if stem[0].isalpha() else f"VALUE_{stem}"
    name, number = stem, 2
    while env.get(name, written) != written:
        name, number = f"{stem}_{number}", number + 1
    env[name] = written
    return name
