"""The help of a verb: usage, description, options, examples and guide page."""

import inspect
import re
import textwrap
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from cyclopts.help import DefaultFormatter

from plan_adapter.cli.examples import EXAMPLES, Example, VerbExamples

if TYPE_CHECKING:
    from cyclopts import App
    from rich.console import Console, ConsoleOptions

WIDTH = 80
"""The columns into which examples fit."""

_CODE = re.compile(r"`[^`\n]*`")
_SPACE_IN_CODE = "\x00"


def write_help(app: "App", name: str) -> None:
    """Give a verb, or an action such as `store upgrade`, its usage line, its examples and a description wrapped to the terminal."""
    verb = command_of(app, name)
    function = verb.default_command
    if function is None:
        return
    function.__doc__ = unwrapped(inspect.cleandoc(function.__doc__ or ""))
    verb.help_formatter = _Formatter(description_of(function.__doc__))
    verb.usage = usage_of(verb, name)
    verb.help_epilogue = _epilogue(name, EXAMPLES[name])


def command_of(app: "App", name: str) -> "App":
    """Return a verb, or an action such as `store upgrade`."""
    return reduce(lambda found, word: found[word], name.split(), app)


class _Formatter(DefaultFormatter):
    """Prints a description that is wrapped between words, without the blanks that Rich leaves at the ends of lines."""

    def __init__(self, description: str) -> None:
        super().__init__()
        self.description = description

    def render_description(self, console: "Console", options: "ConsoleOptions", description: object) -> None:  # of cyclopts
        paragraphs = [_fill(paragraph, console.width) for paragraph in self.description.split("\n")]
        console.print("\n".join(paragraphs), markup=False, highlight=False, soft_wrap=True, end="\n\n")


def example_command(name: str, example: Example) -> str:
    """Return the command of an example, as a person types it."""
    return f"plan {name} {example.arguments}".rstrip()


def usage_of(verb: "App", name: str) -> str:
    """Return the usage line, with the names of the arguments."""
    words = list[str]()
    assert verb.default_command is not None
    for parameter in inspect.signature(verb.default_command).parameters.values():
        shown = _argument_name(parameter)
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append(f"{shown}…")
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            words.append(shown if parameter.default is parameter.empty else f"[{shown}]")
    return " ".join(["Usage: plan", name, *words, "[OPTIONS]"])


def _argument_name(parameter: inspect.Parameter) -> str:
    """Return how people see an argument: as its annotation names it, or its name."""
    given = [name for part in getattr(parameter.annotation, "__metadata__", ()) for name in getattr(part, "name", None) or ()]
    return (given[0] if given else parameter.name).upper().removesuffix("_")


def unwrapped(text: str) -> str:
    """Return a docstring whose paragraphs, and whose entries of `Args`, are one line each."""
    lines = list[str]()
    for line in text.split("\n"):
        deeper = len(line) - len(line.lstrip())
        is_next = bool(lines) and bool(lines[-1].strip()) and bool(line.strip())
        in_arguments = "Args:" in lines
        continues = is_next and (deeper > 4 if in_arguments else line != "Args:" and deeper == 0)
        if continues and lines[-1] != "Args:":
            lines[-1] = f"{lines[-1]} {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def description_of(docstring: str) -> str:
    """Return a docstring without its `Args`."""
    return docstring.partition("\n\nArgs:\n")[0].rstrip()


def _fill(paragraph: str, width: int) -> str:
    kept = _CODE.sub(lambda code: code[0].replace(" ", _SPACE_IN_CODE), paragraph)
    return textwrap.fill(kept, width, break_long_words=False, break_on_hyphens=False).replace(_SPACE_IN_CODE, " ")


def _epilogue(name: str, shown: VerbExamples) -> str:
    rows = [(example_command(name, example), example.text) for example in shown.examples]
    return f"Examples:\n{_example_lines(rows)}\n\nGuide: plan guide {shown.page}"


def _example_lines(rows: Sequence[tuple[str, str]]) -> str:
    """Return the rows in two aligned columns. A text that does not fit beside its command is on the next line."""
    column = max((len(command) for command, text in rows if len(command) + len(text) + 4 <= WIDTH), default=2) + 4
    lines = list[str]()
    for command, text in rows:
        if max(column, len(command) + 4) + len(text) <= WIDTH and len(command) + 4 <= column:
            lines.append(f"  {command}".ljust(column) + text)
        else:
            lines += [f"  {command}", " " * min(column, WIDTH - len(text)) + text]
    return "\n".join(lines)
