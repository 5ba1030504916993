"""Finds the values that a shell script, or a program that it starts, would read as code.

A value reaches code in many ways: `bash -c "echo $X"`, `[[ $X -eq 1 ]]`, `Y=$X; eval "$Y"`, `echo "$X" | sh`. Every variable that a value
may have reached counts as a value, and so does the output of a command that has a value among its arguments or inputs.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from plan_adapter.importers.programs import (
    PROGRAM_OF_ENVIRONMENT,
    SPLIT_VALUE,
    UNKNOWN,
    VALUE,
    code_arguments,
    contains_value,
    environment_reader,
    prints_environment,
    program_file,
    program_name,
    stdin_reader,
)
from plan_adapter.importers.shell_syntax import (
    Arithmetic,
    Assignment,
    Command,
    Output,
    Script,
    Text,
    UnreadableScriptError,
    Variable,
    Word,
    read_script,
)

_DECLARING = frozenset({"declare", "typeset", "local", "export", "readonly"})
_NAMING = frozenset({"read", "mapfile", "readarray", "unset", "getopts"})
_PRINTING = frozenset({"echo", "printf", "cat", "tee", "envsubst"})
_COPYING = frozenset({"cp", "mv", "ln", "install", "rsync", "scp", "dd"})
_SHELLS_WITH_ENV = frozenset({"sh", "dash", "ksh", "mksh", "ash"})
_PROGRAM_FILE = re.compile(
    r".*\.(sh|bash|zsh|py|pl|rb|js|mjs|cjs|ts|php|lua|ps1|bat|cmd|sql|awk|sed|mk)|(.*/)?(Makefile|Dockerfile|\.(bash|zsh|ksh)?(rc|_?profile))"
)
_PLACES = tuple("123456789@*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_MOST_ROUNDS = 20
_SIGNS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


@dataclass(frozen=True, slots=True)
class CodeUse:
    """A value that would be read as code: the variable that has it, or "" if it has none, and the program that reads it."""

    variable: str
    program: str


def value_as_code(script: str, variables: Collection[str], *, environment: Collection[str] = ()) -> CodeUse | None:
    """Return the first place where a script reads the value of one of `variables` as code, or None.

    A program that pastes its environment into code, such as make, counts for those of `variables` that are in `environment`, too. Raises
    UnreadableScriptError if the script is not understood.
    """
    return _Search({*variables}, {*environment}, _MOST_ROUNDS).run(read_script(script))


@dataclass(slots=True)
class _Search:
    tainted: set[str]
    exported: set[str]  # variables that programs see, as far as they may be tainted
    depth: int
    files: set[str] = field(default_factory=set[str])  # written with a value
    functions: set[str] = field(default_factory=set[str])
    integers: set[str] = field(default_factory=set[str])  # declare -i
    literals: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # by variable: the texts that are assigned to it
    found: list[CodeUse] = field(default_factory=list[CodeUse])

    def run(self, script: Script) -> CodeUse | None:
        for _ in range(_MOST_ROUNDS):
            before = self._size()
            self.found.clear()
            self._script(script, stdin=False)
            if before == self._size():
                break
        return self.found[0] if self.found else None

    def _size(self) -> list[int]:
        found = (self.tainted, self.exported, self.files, self.functions, self.integers, *self.literals.values())
        return [len(self.literals), *map(len, found)]

    def _taint(self, names: Iterable[str], words: list[Word]) -> None:
        """Record that variables may have a value. `words` are where it comes from."""
        for name in names:
            self.tainted.add(name)
            if name in PROGRAM_OF_ENVIRONMENT:
                self._report(words, PROGRAM_OF_ENVIRONMENT[name])

    # Each of these returns whether the output may contain a value.

    def _script(self, script: Script, *, stdin: bool) -> bool:
        outputs = [self._pipeline(pipeline, stdin=stdin) for pipeline in script]
        return any(outputs)

    def _pipeline(self, pipeline: list[Command], *, stdin: bool) -> bool:
        piped = list[str]()
        for command in pipeline:
            stdin, piped = self._command(command, piped, stdin=stdin), self._printed(command)
        return stdin

    def _printed(self, command: Command) -> list[str]:
        """Return the texts that a command prints as they stand, as far as they are known."""
        words = [self._text(word) for word in command.words]
        if words[:1] == ["cat"]:
            return [self._text(redirect.word) for redirect in command.redirects if redirect.operator in ("<<", "<<<")]
        return [" ".join(word for word in words[1:] if not word.startswith("-"))] if words[:1] in (["echo"], ["printf"]) else []

    def _command(self, command: Command, piped: list[str], *, stdin: bool) -> bool:
        documents = [*piped]
        for redirect in command.redirects:
            text = self._text(redirect.word)
            if redirect.operator in ("<<", "<<<"):
                stdin = contains_value(text)
                documents.append(text)
            elif redirect.operator in ("<", "<>"):
                stdin = stdin or contains_value(text) or self._is_written(text)
        match command.kind:
            case "simple":
                output = self._simple(command, documents, stdin=stdin)
            case "test":
                output = self._test([self._text(word) for word in command.words], command.words)
            case "arithmetic":
                output = self._arithmetic(command.words[0], "(( ))") or self._bodies(command, stdin=stdin)
            case _:
                if command.kind == "function":
                    self.functions.add(command.name)
                texts = [self._text(word) for word in command.words]
                if command.kind == "for" and any(contains_value(text) for text in texts):
                    self._taint([command.name], command.words)
                output = self._bodies(command, stdin=stdin)
        for word in [*command.words, *(redirect.word for redirect in command.redirects)] if output else ():
            for part in word:
                if isinstance(part, Output) and part.reads_input:
                    self._script(part.script, stdin=True)
        for redirect in command.redirects:
            if output and redirect.operator in (">", ">>", ">|", "&>", "&>>"):
                self._write(self._text(redirect.word), command)
        return output

    def _bodies(self, command: Command, *, stdin: bool) -> bool:
        outputs = [self._script(body, stdin=stdin) for body in command.bodies]
        return any(outputs)

    def _write(self, file: str, command: Command) -> None:
        if "/dev/" in file or "GITHUB_" in file:
            return
        self.files.add(file.removeprefix("./"))
        is_text = command.kind != "simple" or not command.words or self._text(command.words[0]) in _PRINTING | _COPYING
        if is_text and _PROGRAM_FILE.fullmatch(file.replace(UNKNOWN, "")):
            self._report([*command.words, *(redirect.word for redirect in command.redirects)], f"the program in `{_shown(file)}`")

    def _is_written(self, file: str) -> bool:
        return file.removeprefix("./") in self.files

    def _runs_written(self, file: str) -> bool:
        """Return whether a file that is run may be one that was written, in whatever folder each command works."""
        return file.rpartition("/")[2] in {written.rpartition("/")[2] for written in self.files}

    def _copy(self, given: list[str], command: Command) -> None:
        """Record that what a program copies from a written file has a value."""
        files = [text.removeprefix("if=").removeprefix("of=") for text in given if not text.startswith("-")]
        for source in files:
            for target in files if self._is_written(source) else ():
                self._write(target, command)
                self._write(f"{target.rstrip('/')}/{source.rpartition('/')[2]}", command)

    # Simple commands.

    def _simple(self, command: Command, documents: list[str], *, stdin: bool) -> bool:
        for assignment in command.assignments:
            self._assign(assignment)
        argv = [self._text(word) for word in command.words]
        if not argv:
            return False
        name = program_name(argv[0])
        self.exported.update(assignment.name for assignment in command.assignments)
        if name not in ("echo", "printf"):  # `env NAME=…`, `docker run -e NAME=…`
            for word, text in zip(command.words, argv, strict=True):
                if _ASSIGNMENT.match(text) and contains_value(text):
                    self._taint([text.partition("=")[0]], [word])
                    self.exported.add(text.partition("=")[0])
        self._environment(name, argv)
        for found in code_arguments(argv):
            if contains_value(argv[found.index]):
                self._report([command.words[found.index]], found.program)
            elif found.language == "shell":
                self._nested(argv[found.index], is_called_with_value=any(map(contains_value, argv[found.index + 1 :])))
        if (reader := stdin_reader(argv)) is not None:
            if stdin:
                self._report([redirect.word for redirect in command.redirects], f"`{reader}`, as its input")
            for text in documents if reader in ("bash", "sh", "zsh", "dash") else ():
                self._nested(text, is_called_with_value=any(map(contains_value, argv[1:])))
        if (file := program_file(argv)) is not None and self._runs_written(file):
            self._report([], f"the program in `{_shown(file)}`")
        self._shell_builtin(name, argv, command, stdin=stdin)
        if name in _COPYING:
            self._copy(argv[1:], command)
        has_value = any(map(contains_value, argv[1:])) or any(map(self._is_written, argv[1:]))
        if name in self.functions and has_value:
            self.tainted.update(_PLACES)
        if prints_environment(argv) and not self.exported.isdisjoint(self.tainted):
            return True
        if name in ("tee", "dd") and (has_value or stdin):
            for file in argv[1:]:
                self._write(file.removeprefix("of="), command)
        return has_value or stdin or (name in self.functions and not self.tainted.isdisjoint(_PLACES))

    def _environment(self, name: str, argv: list[str]) -> None:
        """Report a value in the environment of a program that reads its environment as code."""
        values = sorted(self.exported & self.tainted)
        if values and (reader := environment_reader(argv)) is not None:
            self.found.append(CodeUse(values[0], f"`{reader}`, which reads its environment"))
        if "ENV" in values and name in _SHELLS_WITH_ENV and any(re.fullmatch("-[A-Za-z]*i[A-Za-z]*", text) for text in argv):
            self.found.append(CodeUse("ENV", f"`{name} -i`"))

    def _shell_builtin(self, name: str, argv: list[str], command: Command, *, stdin: bool) -> None:
        if name in _DECLARING:
            flags = "".join(word for word in argv[1:] if word.startswith("-"))
            for word, text in zip(command.words[1:], argv[1:], strict=True):
                variable, _, value = text.partition("=")
                if contains_value(variable) or (contains_value(value) and re.search("[aAin]", flags)):
                    self._report([word], f"`{name}`")
                elif contains_value(value):
                    self._taint([variable.removesuffix("+")], [word])
                if name == "export" or "x" in flags:
                    self.exported.add(variable.removesuffix("+"))
                if "i" in flags:
                    self.integers.add(variable)
        elif name in _NAMING:
            names = [text for text in argv[1:] if not text.startswith("-")]
            for word, text in zip(command.words[1:], argv[1:], strict=True):
                if contains_value(text) and name != "getopts":
                    self._report([word], f"`{name}`")
            if stdin and name != "unset":
                self._taint(names or ("REPLY", "MAPFILE"), [])
        elif name == "printf" and len(argv) > 2 and argv[1] == "-v":
            if contains_value(argv[2]):
                self._report([command.words[2]], "`printf -v`")
            elif any(map(contains_value, argv[3:])):
                self._taint([argv[2]], command.words[3:])
        elif name == "set" and any(map(contains_value, argv[1:])):
            self.tainted.update(_PLACES)
        elif name == "let":
            for word in command.words[1:]:
                self._arithmetic(word, "let")
        elif name in ("test", "["):
            self._test_of_names(argv, command.words)

    def _assign(self, assignment: Assignment) -> None:
        texts = [self._text(word) for word in assignment.words]
        if assignment.index:
            self._arithmetic(assignment.index, f"{assignment.name}[…]=")
        if any(map(contains_value, texts)):
            self._taint([assignment.name], assignment.words)
        elif not any(UNKNOWN in text for text in texts):
            self.literals.setdefault(assignment.name, set()).add(" ".join(texts))
        if assignment.name in self.integers:
            for word in assignment.words:
                self._arithmetic(word, "declare -i")

    def _nested(self, script: str, *, is_called_with_value: bool) -> None:
        if self.depth == 0:
            return
        for text in self.literals.get(script.removeprefix(UNKNOWN), ()) if script.startswith(UNKNOWN) else ():
            self._nested(text, is_called_with_value=is_called_with_value)
        script = script.replace(UNKNOWN, "")
        names = {*self.tainted, *(_PLACES if is_called_with_value else ())} | ({"0"} if is_called_with_value else set[str]())
        try:
            found = _Search(names, names & self.exported, self.depth - 1, {*self.files}).run(read_script(script))
        except UnreadableScriptError:
            named = next((name for name in sorted(names) if name.isidentifier() and re.search(rf"\b{name}\b", script)), None)
            found = None if named is None else CodeUse(named, "a script inside it that is not understood")
        if found is not None:
            self.found.append(found)

    # Tests and arithmetic.

    def _test(self, texts: list[str], words: list[Word]) -> bool:
        for index, text in enumerate(texts):
            if text in _SIGNS:
                for place in (index - 1, index + 1):
                    if 0 <= place < len(words):
                        self._arithmetic(words[place], f"[[ {text} ]]")
        self._test_of_names(texts, words)
        return False

    def _test_of_names(self, texts: list[str], words: list[Word]) -> None:
        for index, text in enumerate(texts[:-1]):
            if text in ("-v", "-R") and contains_value(texts[index + 1]):
                self._report([words[index + 1]], f"`test {text}`")

    def _arithmetic(self, word: Word, where: str) -> bool:
        """Report a value in text that the shell computes, also by its bare name."""
        text = self._text(word)
        names = {*re.findall(r"[A-Za-z_]\w*", "".join(part.text for part in word if isinstance(part, Text)))}
        bare = sorted(names & self.tainted)
        if contains_value(text):
            self._report([word], f"the arithmetic of `{where}`")
        elif bare:
            self.found.append(CodeUse(bare[0], f"the arithmetic of `{where}`"))
        return contains_value(text) or bool(bare)

    # Words.

    def _text(self, word: Word) -> str:
        """Return the text of a word, with VALUE in place of each value."""
        return "".join(self._part(part) for part in word)

    def _part(self, part: Text | Variable | Output | Arithmetic) -> str:
        match part:
            case Text():
                return part.text
            case Arithmetic():
                self._arithmetic(part.word, "$(( ))")
                return f"{UNKNOWN}number"
            case Output():
                is_value = self._script(part.script, stdin=False)
                return (VALUE if part.is_quoted else SPLIT_VALUE) if is_value else f"{UNKNOWN}{'file' if part.is_file else 'output'}"
            case Variable():
                return self._variable(part)

    def _variable(self, part: Variable) -> str:
        argument = self._text(part.argument)
        is_value = part.name in self.tainted
        if part.index and part.index != (Text("@"),) and part.index != (Text("*"),):
            self._arithmetic(part.index, f"${{{part.name}[…]}}")
        if part.operator == "!" and is_value and part.index == () and not part.argument:
            self.found.append(CodeUse(part.name, f"`${{!{part.name}}}`"))
        if part.operator == "@P" and is_value:
            self.found.append(CodeUse(part.name, f"`${{{part.name}@P}}`"))
        if part.operator == ":":
            self._arithmetic(part.argument, f"${{{part.name}:…}}")
        if part.operator in (":=", "=") and contains_value(argument):
            self._taint([part.name], [part.argument])
        if part.operator == "#":
            return f"{UNKNOWN}length"
        if part.operator in (":+", "+"):
            is_value = False
        if is_value or contains_value(argument):
            return VALUE if part.is_quoted else SPLIT_VALUE
        return f"{UNKNOWN}{part.name}"

    # Findings.

    def _report(self, words: list[Word], program: str) -> None:
        name = next((name for word in words for name in self._names(word)), "")
        self.found.append(CodeUse(name, program))

    def _names(self, word: Word) -> Iterator[str]:
        for part in word:
            match part:
                case Variable() if part.name in self.tainted:
                    yield part.name
                case Output():
                    for command in [command for pipeline in part.script for command in pipeline]:
                        for inner in command.words:
                            yield from self._names(inner)
                case _:
                    pass


def _shown(text: str) -> str:
    return text.replace(UNKNOWN, "$").replace(VALUE, "…").replace(SPLIT_VALUE, "…")
