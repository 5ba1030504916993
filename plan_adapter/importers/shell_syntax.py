"""Reads the text of a shell script into commands, words and expansions: what bash does, as far as it decides what becomes of a value."""

import itertools
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias


class UnreadableScriptError(Exception):
    """The text is not a script that this reader understands."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text that stands for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name` or `${name…}`. `argument` follows the operator, which is `!` for `${!name}`."""

    name: str
    is_quoted: bool
    index: "Word" = ()
    operator: str = ""
    argument: "Word" = ()


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a script: `$(…)` or backticks. `is_file` is true for `<(…)` and `>(…)`, and `reads_input` for the latter."""

    script: "Script"
    is_quoted: bool
    is_file: bool = False
    reads_input: bool = False


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((…))`: text that the shell computes."""

    word: "Word"


Part: TypeAlias = Text | Variable | Output | Arithmetic
Word: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirection. The word is the file, or the text of `<<` and `<<<`."""

    operator: str
    word: Word


@dataclass(slots=True)
class Assignment:
    """`name=…`, `name[index]=…` or `name=(…)`."""

    name: str
    index: Word
    words: list[Word]


@dataclass(slots=True)
class Command:
    """One command. `kind` is simple, group, test, arithmetic, for, case or function."""

    kind: str
    words: list[Word] = field(default_factory=list[Word])
    assignments: list[Assignment] = field(default_factory=list[Assignment])
    redirects: list[Redirect] = field(default_factory=list[Redirect])
    bodies: "list[Script]" = field(default_factory=list)  # pyright: ignore[reportUnknownVariableType]  # a list of Script
    name: str = ""  # of a function, or the variable of a loop


Script: TypeAlias = list[list[Command]]
"""Pipelines, each a list of the commands whose outputs and inputs are connected."""

_SPECIAL = "@*#?$!-0123456789"
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?=\+?=|\[)")
_REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())|(&>>|&>)")
_FUNCTION = re.compile(r"(?:function\s+([^\s(){};]+)\s*(?:\(\s*\))?|([^\s(){};&|<>$`'\"=]+)[ \t]*\([ \t]*\))")
_WORD_END = frozenset(" \t\n;&|()<>")
_MOST_DEPTH = 60
_MOST_WORDS = 64  # of one brace expansion
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_BRACE_TOKEN = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\{[^}]*\}|.", re.DOTALL)


def read_script(text: str) -> Script:
    """Return the commands of a script. Raises UnreadableScriptError."""
    return _Reader(text).whole()


@dataclass(slots=True)
class _Heredoc:
    delimiter: str
    is_literal: bool
    strips_tabs: bool
    command: Command


class _Reader:
    def __init__(self, text: str, depth: int = 0) -> None:
        self.text, self.at, self.depth = text, 0, depth
        self._heredocs = list[_Heredoc]()

    @contextmanager
    def _nested(self) -> Generator[None]:
        if self.depth >= _MOST_DEPTH:
            raise UnreadableScriptError("it is nested too deeply")
        self.depth += 1
        yield
        self.depth -= 1

    def whole(self) -> Script:
        found = self._script(frozenset())
        if self.at < len(self.text):
            raise self._error()
        return found

    def _error(self) -> UnreadableScriptError:
        line = self.text.count("\n", 0, self.at) + 1
        return UnreadableScriptError(f"line {line} of it is not understood")

    # Characters.

    def _starts(self, *texts: str) -> str:
        return next((text for text in texts if self.text.startswith(text, self.at)), "")

    def _skip_blanks(self) -> None:
        while found := self._starts(" ", "\t", "\\\n", "\r"):
            self.at += len(found)

    def _skip_lines(self, separators: str = "") -> None:
        """Skip blanks, comments, line ends and `separators`."""
        while self.at < len(self.text):
            self._skip_blanks()
            character = self.text[self.at : self.at + 1]
            if character == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif character == "\n":
                self.at += 1
                self._read_heredocs()
            elif character and character in separators and not self._starts(";;", ";&", "&&", "&>"):
                self.at += 1
            else:
                return

    def _keyword(self) -> str:
        found = re.compile(r"[^\s;&|()<>\"'$\\`#]+").match(self.text, self.at)
        return found[0] if found else ""

    def _expect(self, text: str) -> None:
        if not self._starts(text):
            raise self._error()
        self.at += len(text)

    # Commands.

    def _script(self, stops: frozenset[str]) -> Script:
        found: Script = []
        while True:
            self._skip_lines(";&")
            if self.at >= len(self.text):
                if stops:
                    raise self._error()
                return found
            if self._is_stop(stops):
                return found
            found.append(self._pipeline())

    def _is_stop(self, stops: frozenset[str]) -> bool:
        return self._keyword() in stops or self._starts(";;", ";&", ")") in stops - {""}

    def _pipeline(self) -> list[Command]:
        found = [self._command()]
        while True:
            self._skip_blanks()
            if self._starts("||", "&&"):
                self.at += 2
                self._skip_lines()
                return found
            if not self._starts("|"):
                return found
            self.at += 2 if self._starts("|&") else 1
            self._skip_lines()
            found.append(self._command())

    def _command(self) -> Command:
        with self._nested():
            return self._one_command()

    def _one_command(self) -> Command:
        self._skip_blanks()
        start, keyword = self.at, self._keyword()
        if self._starts("(("):
            self.at += 2
            word = self._arithmetic()
            if word is not None:
                return self._redirected(Command("arithmetic", [word]))
            self.at = start
        if self._starts("("):
            self.at += 1
            return self._redirected(self._body("group", frozenset({")"})))
        if keyword in ("!", "time", "coproc"):
            self.at += len(keyword)
            return self._command()
        if keyword == "function" or (keyword and self._function_name() is not None):
            return self._function()
        reader = {
            "{": self._braces,
            "[[": self._test,
            "if": self._if,
            "while": self._loop,
            "until": self._loop,
            "for": self._for,
            "select": self._for,
            "case": self._case,
        }.get(keyword)
        if reader is None:
            return self._simple()
        self.at += len(keyword)
        return self._redirected(reader())

    def _body(self, kind: str, stops: frozenset[str], name: str = "") -> Command:
        command = Command(kind, bodies=[self._script(stops)], name=name)
        self.at += len(self._keyword() if self._keyword() in stops else ")")
        return command

    def _braces(self) -> Command:
        return self._body("group", frozenset({"}"}))

    def _if(self) -> Command:
        command = Command("group")
        while True:
            stops = frozenset({"then"}) if len(command.bodies) % 2 == 0 else frozenset({"elif", "else", "fi"})
            command.bodies.append(self._script(stops))
            word = self._keyword()
            self.at += len(word)
            if word == "else":
                command.bodies.append(self._script(frozenset({"fi"})))
                self.at += len("fi")
            if word in ("else", "fi"):
                return command

    def _loop(self) -> Command:
        condition = self._body("group", frozenset({"do"}))
        return Command("group", bodies=[*condition.bodies, *self._body("group", frozenset({"done"})).bodies])

    def _for(self) -> Command:
        self._skip_blanks()
        command = Command("for")
        if self._starts("(("):
            self.at += 2
            word = self._arithmetic()
            if word is None:
                raise self._error()
            command.kind, command.words = "arithmetic", [word]
        else:
            name = _NAME.match(self.text, self.at)
            if name is None:
                raise self._error()
            self.at, command.name = name.end(), name[0]
            self._skip_lines()
            if self._keyword() == "in":
                self.at += len("in")
                command.words = self._words_to_line_end()
        self._skip_lines(";")
        opening = self._keyword()
        if opening not in ("do", "{"):
            raise self._error()
        self.at += len(opening)
        command.bodies = self._body("group", frozenset({"done" if opening == "do" else "}"})).bodies
        return command

    def _words_to_line_end(self) -> list[Word]:
        words = list[Word]()
        while True:
            self._skip_blanks()
            if self.at >= len(self.text) or self.text[self.at] in ";\n&|)":
                return words
            words.append(self._word())

    def _case(self) -> Command:
        self._skip_blanks()
        command = Command("case", [self._word()])
        self._skip_lines()
        self._expect("in")
        while True:
            self._skip_lines()
            if self._keyword() == "esac":
                self.at += len("esac")
                return command
            self.at += len(self._starts("("))
            while True:
                self._skip_blanks()
                command.words.append(self._word())
                self._skip_blanks()
                if not self._starts("|"):
                    break
                self.at += 1
            self._expect(")")
            command.bodies.append(self._script(frozenset({";;", ";&", "esac"})))
            if self._keyword() != "esac":
                self.at += len(self._starts(";;&", ";;", ";&"))

    def _function_name(self) -> re.Match[str] | None:
        return _FUNCTION.match(self.text, self.at)

    def _function(self) -> Command:
        found = self._function_name()
        if found is None:
            raise self._error()
        self.at = found.end()
        self._skip_lines()
        return Command("function", name=found[1] or found[2], bodies=[[[self._command()]]])

    def _test(self) -> Command:
        command = Command("test")
        while True:
            self._skip_lines()
            if self._keyword() == "]]":
                self.at += 2
                return command
            if operator := self._starts("&&", "||", "(", ")", "<", ">"):
                self.at += len(operator)
                command.words.append((Text(operator),))
            else:
                is_pattern = bool(command.words) and command.words[-1] == (Text("=~"),)
                command.words.append(self._parts(_ends_pattern if is_pattern else _ends_word))

    def _simple(self) -> Command:
        command = Command("simple")
        start = self.at
        while True:
            self._skip_blanks()
            if self.at >= len(self.text) or self._starts("\n", ";", "|", ")", "#"):
                break
            if self._read_redirect(command):
                continue
            if self._starts("&", "("):
                break
            if not command.words and self._read_assignment(command):
                continue
            command.words += self._expanded_words()
        if self.at == start:
            raise self._error()
        return command

    def _redirected(self, command: Command) -> Command:
        self._skip_blanks()
        while self._read_redirect(command):
            self._skip_blanks()
        return command

    def _read_redirect(self, command: Command) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if found is None:
            return False
        operator, self.at = found[1] or found[2], found.end()
        self._skip_blanks()
        if operator in ("<<", "<<-"):
            start = self.at
            delimiter = "".join(part.text for part in self._word() if isinstance(part, Text))
            is_literal = any(mark in self.text[start : self.at] for mark in "'\"\\")
            self._heredocs.append(_Heredoc(delimiter, is_literal, operator == "<<-", command))
        else:
            command.redirects.append(Redirect(operator, self._word()))
        return True

    def _read_heredocs(self) -> None:
        """Read the texts of the here-documents that the line before announced."""
        waiting, self._heredocs = self._heredocs, []
        for heredoc in waiting:
            lines = list[str]()
            while True:
                if self.at >= len(self.text):
                    break
                end = self.text.find("\n", self.at)
                line = self.text[self.at :] if end < 0 else self.text[self.at : end]
                self.at = len(self.text) if end < 0 else end + 1
                line = line.lstrip("\t") if heredoc.strips_tabs else line
                if line.rstrip("\r") == heredoc.delimiter:
                    break
                lines.append(f"{line}\n")
            text = "".join(lines)
            word = (Text(text),) if heredoc.is_literal else _Reader(text, self.depth + 1).heredoc()
            heredoc.command.redirects.append(Redirect("<<", word))

    def heredoc(self) -> Word:
        return self._parts(lambda reader: reader.at >= len(reader.text), quoted=True, heredoc=True)

    def _read_assignment(self, command: Command) -> bool:
        found = _ASSIGNED.match(self.text, self.at)
        if found is None:
            return False
        start, self.at = self.at, found.end()
        index: Word = ()
        if self._starts("["):
            self.at += 1
            index = self._parts(lambda reader: bool(reader._starts("]", "\n")))
            if not self._starts("]=", "]+="):
                self.at = start
                return False
            self.at += 1
        self.at += len(self._starts("+=", "="))
        command.assignments.append(Assignment(found[1], index, self._assigned()))
        return True

    def _assigned(self) -> list[Word]:
        if not self._starts("("):
            is_empty = self.at >= len(self.text) or self.text[self.at] in _WORD_END - {"<", ">"}
            return [] if is_empty else [self._word()]
        self.at += 1
        words = list[Word]()
        while True:
            self._skip_lines()
            if self._starts(")"):
                self.at += 1
                return words
            words.append(self._word())

    # Words.

    def _expanded_words(self) -> list[Word]:
        """Return the words that the next one becomes by brace expansion: `a{b,c}` is `ab ac`."""
        start, word = self.at, self._word()
        written = self.text[start : self.at]
        texts = list(itertools.islice(_expand_braces(written), _MOST_WORDS)) if "{" in written else [written]
        return [word] if texts == [written] else [_Reader(text, self.depth + 1).expanded_word() for text in texts if text]

    def expanded_word(self) -> Word:
        return self._word()

    def _word(self) -> Word:
        start = self.at
        word = self._parts(_ends_word)
        if self._starts("(") and word and isinstance(word[-1], Text) and word[-1].text.endswith("="):
            word = (*word, *(part for member in self._assigned() for part in (Text(" "), *member)))  # declare x=(…)
        if self.at == start:
            raise self._error()
        return word

    def _parts(self, is_end: "Callable[[_Reader], bool]", *, quoted: bool = False, heredoc: bool = False) -> Word:
        """Return the parts up to an end, with quotes and expansions."""
        found = list[Part]()
        text = list[str]()

        def add(*parts: Part) -> None:
            if text:
                found.append(Text("".join(text)))
                text.clear()
            found.extend(parts)

        while self.at < len(self.text) and not is_end(self):
            character = self.text[self.at]
            if character == "\\":
                text.append(self._escaped(quoted=quoted))
            elif character == "'" and not quoted:
                end = self._find("'", self.at + 1)
                add(Text(self.text[self.at + 1 : end]))
                self.at = end + 1
            elif character == '"' and not heredoc and not quoted:
                self.at += 1
                add(*(self._parts(lambda reader: bool(reader._starts('"')), quoted=True) or (Text(""),)))
                self._expect('"')
            elif character == "$":
                add(self._dollar(quoted=quoted))
            elif character == "`":
                add(self._backticks(quoted=quoted))
            elif self._starts("<(", ">(") and not quoted:
                self.at += 2
                script = self._body("group", frozenset({")"})).bodies[0]
                add(Output(script, is_quoted=True, is_file=True, reads_input=character == ">"))
            elif not quoted and self._starts("@(", "!(", "?(", "*(", "+("):
                end = self._find(")", self.at)
                text.append(self.text[self.at : end + 1])
                self.at = end + 1
            else:
                text.append(character)
                self.at += 1
        add()
        return tuple(found)

    def _find(self, text: str, start: int) -> int:
        end = self.text.find(text, start)
        if end < 0:
            raise self._error()
        return end

    def _escaped(self, *, quoted: bool) -> str:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following == "\n":
            return ""
        return following if not quoted or following in '$`"\\' else f"\\{following}"

    def _backticks(self, *, quoted: bool) -> Part:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise self._error()
        inner = re.sub(r"\\([`\\$])", r"\1", self.text[self.at + 1 : end])
        self.at = end + 1
        return Output(_Reader(inner, self.depth + 1).whole(), quoted)

    def _dollar(self, *, quoted: bool) -> Part:
        if self._starts("$(("):
            start = self.at
            self.at += 3
            word = self._arithmetic()
            if word is not None:
                return Arithmetic(word)
            self.at = start
        if self._starts("$("):
            self.at += 2
            return Output(self._body("group", frozenset({")"})).bodies[0], quoted)
        if self._starts("${"):
            self.at += 2
            return self._parameter(quoted=quoted)
        if self._starts("$[") and not quoted:
            self.at += 2
            word = self._parts(lambda reader: bool(reader._starts("]")))
            self._expect("]")
            return Arithmetic(word)
        if self._starts("$'") and not quoted:
            end = self.at + 2
            while end < len(self.text) and self.text[end] != "'":
                end += 2 if self.text[end] == "\\" else 1
            found = Text(_ESCAPE.sub(_unescape, self.text[self.at + 2 : end]))
            self.at = end + 1
            return found
        if self._starts('$"') and not quoted:
            self.at += 1
            return Text("")
        name = _NAME.match(self.text, self.at + 1)
        if name is not None:
            self.at = name.end()
            return Variable(name[0], quoted)
        following = self.text[self.at + 1 : self.at + 2]
        if following and following in _SPECIAL:
            self.at += 2
            return Variable(following, quoted)
        self.at += 1
        return Text("$")

    def _parameter(self, *, quoted: bool) -> Part:
        with self._nested():
            return self._one_parameter(quoted=quoted)

    def _one_parameter(self, *, quoted: bool) -> Part:
        operator = ""
        if self._starts("!"):
            operator = "!"
            self.at += 1
        if self._starts("#") and not self._starts("#}"):
            operator = "#"
            self.at += 1
        found = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]").match(self.text, self.at)
        if found is None:
            raise self._error()
        self.at, index = found.end(), ()
        if self._starts("["):
            self.at += 1
            index = self._parts(lambda reader: bool(reader._starts("]")))
            self._expect("]")
        suffix = re.compile(r":[-=?+]|:|@[A-Za-z]|##?|%%?|//?|\^\^?|,,?|[-=?+*@]|").match(self.text, self.at)
        written = suffix[0] if suffix else ""
        self.at += len(written)
        argument = self._parts(lambda reader: bool(reader._starts("}")))
        self._expect("}")
        return Variable(found[0], quoted, index, operator or written, argument)

    def _arithmetic(self) -> Word | None:
        """Return the text up to `))`, or None if it is no arithmetic."""
        parts, depth = list[Part](), 0
        while self.at < len(self.text):
            parts += self._parts(lambda reader: bool(reader._starts("(", ")")), quoted=False)
            if self._starts("("):
                depth += 1
                parts.append(Text("("))
            elif depth:
                depth -= 1
                parts.append(Text(")"))
            elif self._starts("))"):
                self.at += 2
                return tuple(parts)
            else:
                return None
            self.at += 1
        return None


def _unescape(found: re.Match[str]) -> str:
    """Return the character that an escape inside `$'…'` stands for."""
    code = found[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(min(int(code[1:], 16), 0x10FFFF))
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


def _expand_braces(word: str) -> Iterator[str]:
    """Yield what a word becomes by its first `{a,b}` outside quotes, and by those after it."""
    parts = _BRACE_TOKEN.findall(word)
    for start in (index for index, part in enumerate(parts) if part == "{"):
        depth, cuts = 0, [start]
        for index in range(start, len(parts)):
            depth += (parts[index] == "{") - (parts[index] == "}")
            if parts[index] == "," and depth == 1:
                cuts.append(index)
            if depth == 0:
                cuts.append(index)
                break
        if depth == 0 and len(cuts) > 2:
            for left, right in itertools.pairwise(cuts):
                yield from _expand_braces("".join([*parts[:start], *parts[left + 1 : right], *parts[cuts[-1] + 1 :]]))
            return
    yield word


def _ends_word(reader: _Reader) -> bool:
    return reader.text[reader.at] in _WORD_END and not reader._starts("<(", ">(")  # pyright: ignore[reportPrivateUsage]  # the same module


def _ends_pattern(reader: _Reader) -> bool:
    return reader.text[reader.at] in " \t\n"
