"""Converts the scripts of GitHub Actions: their shells, and variables in place of expressions, so that no value is read as code."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from plan_adapter.importers.conversion import NotConvertibleError
from plan_adapter.importers.github_expressions import Value, pieces
from plan_adapter.importers.programs import PROGRAM_OF_ENVIRONMENT, READS_ENVIRONMENT
from plan_adapter.importers.shell_code import value_as_code
from plan_adapter.importers.shell_syntax import Command, Output, Script, Text, UnreadableScriptError, Variable, Word, read_script

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


def replace_expressions(script: str, translate: Callable[[str], Value], values: dict[str, Value]) -> str:
    """Return `script` with a variable in place of each expression, and add the variables to `values`.

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
        name = _variable_name(part, value, values)
        quotes.skip_expression()
        parts.append(f"'\"${{{name}}}\"'" if quotes.quote == "'" and not quotes.is_in_heredoc else f"${{{name}}}")
    text = "".join(parts)
    if "${{" in text:
        raise NotConvertibleError("an expression in it is not closed")
    return text


def _variable_name(source: str, value: Value, values: dict[str, Value]) -> str:
    """Return the name of a variable for a value: the one in `values` that has it, or a new one."""
    own = re.fullmatch(r"env\.([A-Za-z_]\w*)", source)
    if own is not None and own[1] in values and values[own[1]].code == value.code:
        return own[1]
    stem = re.sub(r"\W+", "_", source).strip("_").upper()[:_LONGEST].rstrip("_") or "VALUE"
    stem = re.sub(r"^GITHUB_EVENT_INPUTS_|^INPUTS_", "INPUT_", stem)
    stem = stem if stem[0].isalpha() else f"VALUE_{stem}"
    name, number = stem, 2
    while name in values and values[name].code != value.code:
        name, number = f"{stem}_{number}", number + 1
    values[name] = value
    return name


def paste_constants(script: str, translate: Callable[[str], Value]) -> str:
    """Return a script of a program that is no shell, with the constants in place of its expressions.

    Raises NotConvertibleError for any other value, which would be read as code.
    """
    values = [(part, translate(part) if is_code else Value.of(part)) for part, is_code in pieces(script)]
    for part, value in values:
        if value.text is None:
            raise NotConvertibleError(f"`{part}` would be read as code")
        if "${{" in value.text:
            raise NotConvertibleError("an expression in it is not closed")
    return "".join(value.text or "" for _, value in values)


def refuse_code(script: str, values: Mapping[str, Value]) -> None:
    """Raise NotConvertibleError if a script reads a value from outside the workflow as code, or a program reads it from its environment."""
    outside = {name for name, value in values.items() if value.may_be_code}
    for name in sorted(outside & PROGRAM_OF_ENVIRONMENT.keys()):
        raise NotConvertibleError(f"the value of `${name}` would be read as code by {PROGRAM_OF_ENVIRONMENT[name]}")
    if not outside:
        return
    try:
        # Whoever sets a secret may run commands: make gets it as before.
        found = value_as_code(script, outside, environment={name for name in outside if not values[name].code.startswith("secrets.")})
    except UnreadableScriptError as error:
        if not any(re.search(rf"\b{name}\b", script) for name in [*outside, *READS_ENVIRONMENT]):
            return
        raise NotConvertibleError(f"{error}, so that a value in it may be read as code") from None
    if found is not None:
        value = f"the value of `${found.variable}`" if found.variable else "a value"
        raise NotConvertibleError(f"{value} would be read as code by {found.program}")


# Shells.

_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "python": ("python3", "-c"),
    "python3": ("python3", "-c"),
    "pwsh": ("pwsh", "-Command"),
    "powershell": ("pwsh", "-Command"),
    "node": ("node", "-e"),
    "perl": ("perl", "-e"),
    "ruby": ("ruby", "-e"),
}
_POWERSHELL = "$ErrorActionPreference = 'stop'\n{}\nif ((Test-Path -LiteralPath variable:\\LASTEXITCODE)) {{ exit $LASTEXITCODE }}"
"""How GitHub runs a PowerShell script: it ends at the first error, with the exit code of the last program."""

_POWERSHELL_FILE = re.compile(
    r"""(pwsh|powershell)((?:\s+[^\s'"{}]+)*?)\s+-(?:File|f|Command|c)\s+(?:"?\s*[.&]\s*'\{0\}'\s*"?|["']?\{0\}["']?)""", re.IGNORECASE
)
"""A shell that runs the file of the script. The options before are kept."""

_SET_OPTIONS = re.compile(r"-[euxvfhBEC]*(o)?|--noprofile|--norc")


@dataclass(frozen=True, slots=True)
class Shell:
    """How a script runs: with the tool bash, after `settings`, or as the last argument of `argv`."""

    name: str
    argv: tuple[str, ...] = ()
    settings: str = ""
    template: str = "{}"

    @property
    def expands_variables(self) -> bool:
        """Whether it is a shell in which `${NAME}` is the value of a variable."""
        return self.name in ("bash", "sh")


def read_shell(text: str) -> Shell:
    """Return what a `shell:` means, such as `bash` or `bash -l {0}`. Raises NotConvertibleError if it is not known here."""
    if file := _POWERSHELL_FILE.fullmatch(text):
        return Shell(file[1], ("pwsh", *file[2].split(), "-Command"))
    name, *options = text.split()
    if options and options.pop().strip("'\"") != "{0}":
        raise NotConvertibleError(f"a script for `shell: {text}` is not known here")
    is_bare = text == name
    if any("{0}" in option or "'" in option or '"' in option for option in options) or name not in ("bash", "sh", *_PROGRAMS):
        raise NotConvertibleError(f"a script for `shell: {text}` is not known here")
    if name in _PROGRAMS:
        program, flag = _PROGRAMS[name]
        template = _POWERSHELL if is_bare and program == "pwsh" else "{}"
        return Shell(name, (program, *options, flag), template=template)
    if is_bare:
        return Shell(name)
    flags, is_known = _set_options(options)
    if name == "bash" and is_known and {"-e", "errexit"} & {*flags}:
        kept = [flag for flag in flags if flag not in ("-e", "errexit", "pipefail")]
        return Shell(name, settings="".join(f"set {flag if flag.startswith('-') else f'-o {flag}'}\n" for flag in kept))
    return Shell(name, (name, *options, "-c"))


def _set_options(options: list[str]) -> tuple[list[str], bool]:
    """Return the options that `set` has as well, and whether all are: `-u` and `pipefail` for `-uo pipefail`."""
    found, index = list[str](), 0
    while index < len(options):
        matched = _SET_OPTIONS.fullmatch(options[index])
        if matched is None:
            return found, False
        found += [f"-{letter}" for letter in options[index][1:] if letter != "o" and not options[index].startswith("--")]
        if matched[1] and index + 1 < len(options):
            index += 1
            found.append(options[index])
        index += 1
    return found, True


# Variables that a script sets for later steps.

_UNKNOWN = "\0"
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)(=|<<)")
_IN_OTHER_LANGUAGES = re.compile(r"[\"'](\w+)=[^\n]*GITHUB_ENV")


def variables_for_later_steps(script: str, *, is_shell: bool) -> tuple[list[str], bool]:
    """Return the names that a script writes to $GITHUB_ENV, and whether these are all."""
    count = len(re.findall(r"GITHUB_ENV\b", script))
    try:
        commands = read_script(script) if is_shell and count else []
    except UnreadableScriptError:
        commands = []
    texts = list(_texts_for_later_steps(commands))
    if not commands:
        names = _IN_OTHER_LANGUAGES.findall(script)
        return list(dict.fromkeys(names)), len(names) == count
    names, is_complete = list[str](), len(texts) >= count
    for text in texts:
        delimiter = ""
        for line in text.splitlines():
            found = _NAMED.match(line)
            if delimiter:
                delimiter = "" if line.strip() == delimiter else delimiter
            elif found is not None:
                names.append(found[1])
                delimiter = line[found.end() :].strip() if found[2] == "<<" else ""
            else:
                is_complete = is_complete and not line.strip()
    return list(dict.fromkeys(names)), is_complete


def _texts_for_later_steps(script: Script) -> Iterator[str]:
    for pipeline in script:
        for index, command in enumerate(pipeline):
            inner = [part.script for word in command.words for part in word if isinstance(part, Output)]
            for body in [*command.bodies, *inner]:
                yield from _texts_for_later_steps(body)
            if any(redirect.operator in (">>", ">") and _is_env_file(redirect.word) for redirect in command.redirects):
                yield _printed(command)
            elif command.words and command.words[0] == (Text("tee"),) and any(map(_is_env_file, command.words)):
                yield "".join(_printed(before) for before in pipeline[:index]) + _printed(command)


def _is_env_file(word: Word) -> bool:
    return any(isinstance(part, Variable) and part.name == "GITHUB_ENV" for part in word)


def _printed(command: Command) -> str:
    """Return the text that a command prints, as far as it is known."""
    if command.bodies:
        return "".join(_printed(inner) for body in command.bodies for pipeline in body for inner in pipeline)
    documents = [_literal_text(redirect.word) for redirect in command.redirects if redirect.operator in ("<<", "<<<")]
    words = [_literal_text(word) for word in command.words]
    if words[:1] in (["echo"], ["printf"]):
        given = [word for word in words[1:] if not re.fullmatch(r"-[neE]+|--", word)]
        text = f"{' '.join(given)}\n" if words[0] == "echo" else "".join(given[:1]).replace("%s", _UNKNOWN)
        return text.replace("\\n", "\n")
    return "".join(documents) if documents and words[:1] in (["cat"], ["tee"]) else _UNKNOWN if words[:1] != ["tee"] else ""


def _literal_text(word: Word) -> str:
    return "".join(part.text if isinstance(part, Text) else _UNKNOWN for part in word)
