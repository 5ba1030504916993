"""The output of `plan`: results to stdout, everything else to stderr; plain in files, and safe on any terminal."""

import json
import os
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.model.readable import listed, plain, visible, without_passwords

if TYPE_CHECKING:
    from rich.console import Console

    from plan_adapter.model.problems import Problem

COLUMN_GAP = 2
"""The number of spaces between the columns of a table."""

MIN_COLUMN_WIDTH = 7
"""The width to which the other columns shrink before the first one is cut as well."""

SHOWN_PLACES = 5
"""How many places a line about several warnings names for each message."""

SHOWN_MESSAGES = 3
"""How many messages a line about several warnings has."""

DANGEROUS_WARNINGS = (
    "lowered-effect",
    "retried-write",
    "chained-for-each-writes",
    "implicit-order",
    "secret-created-twice",
    "open-read",
    "nobody-may-answer",
    "bad-quorum",
    "weak-proof",
    "endless-gate",
)
"""The codes of warnings about damage or a missing approval, the worst first. They are printed before other warnings."""

MIN_TEXT_WIDTH = 20
"""The width to which text is wrapped on a terminal that is too narrow for its labels."""

FILE_WIDTH = 100_000
"""The width of tables in files and pipes, where nothing is cut."""


def prepare_streams() -> None:
    """Make stdout and stderr write characters that their encoding lacks as escapes, so that no command fails on them."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and not is_unicode(stream):
            reconfigure(errors="backslashreplace")


@contextmanager
def writing_to_stdout() -> Generator[None]:
    """Raise UsageError if the block cannot write to stdout, for example on a full disk. BrokenPipeError passes."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon_stdout()
        raise UsageError(f"the output cannot be written: {error.strerror or error}") from error


def line(text: str) -> None:
    """Print a line of the result to stdout."""
    with writing_to_stdout():
        sys.stdout.write(visible(text) + "\n")


def document(text: str) -> None:
    """Print a whole text to stdout: unchanged in a file or a pipe, with control characters escaped on a terminal."""
    with writing_to_stdout():
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)


def markdown(text: str) -> None:
    """Print Markdown to stdout: as plain text on a terminal, and as it is in a file or a pipe."""
    line(plain(text) if sys.stdout.isatty() else text)


def note(text: str) -> None:
    """Print a line to stderr. A closed pipe does not stop the command."""
    try:
        sys.stderr.write(visible(text) + "\n")
        sys.stderr.flush()
    except OSError:  # the pipe was closed, or the terminal is gone
        _silence(sys.stderr)


def json_line(kind: str, value: Mapping[str, Any]) -> None:
    """Print one JSON object of this type (one of `output.schema.json`) in one line to stdout, at once."""
    json_object({"type": kind, **value})


def json_error(code: str, message: str, hint: str = "", *, earlier: str) -> None:
    """Print an error as an object. `earlier` is the value of its key `error`, from before there was a `code`."""
    json_line("error", {"code": code, "message": message, "hint": hint or None, "at": None, "error": earlier})


def json_object(value: Mapping[str, Any]) -> None:
    """Print one JSON object in one line to stdout, at once."""
    with writing_to_stdout():
        sys.stdout.write(json_text(value, is_ascii=not is_unicode(sys.stdout)) + "\n")
        sys.stdout.flush()


def json_text(value: Mapping[str, Any], *, is_ascii: bool = False, indent: int | None = None) -> str:
    """Return `value` as JSON that any UTF-8 stream accepts. A text with a lone surrogate is written in ASCII."""
    text = json.dumps(value, ensure_ascii=is_ascii, allow_nan=False, default=_json_default, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json_text(value, is_ascii=True, indent=indent)
    return text


def _json_default(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def problems(found: Iterable["Problem"], *, as_json: bool, to_stdout: bool) -> None:
    """Print each problem as a JSON object on stdout, or the lines of `in_lines`."""
    for problem in found if as_json else in_lines(found):
        if as_json:
            json_line("problem", problem_json(problem))
        elif to_stdout:
            line(str(problem))
        else:
            note(str(problem))


def in_lines(found: Iterable["Problem"]) -> "list[Problem]":
    """Return the problems as a person reads them: errors first, then one warning of each kind and file, the dangerous kinds first.

    A warning that stands for several begins with their count, is at the place of the first, and names the places.
    """
    errors = list["Problem"]()
    warnings = dict[tuple[str, str | None], list["Problem"]]()
    for problem in found:
        if problem.severity == "error":
            errors.append(problem)
        else:
            warnings.setdefault((problem.code, problem.file), []).append(problem)
    rank = {code: number for number, code in enumerate(DANGEROUS_WARNINGS)}
    groups = sorted(warnings.values(), key=lambda group: rank.get(group[0].code, len(rank)))
    return errors + [_as_one_warning(group) for group in groups]


def _as_one_warning(group: "list[Problem]") -> "Problem":
    if len(group) == 1:
        return group[0]
    places = dict[str, list[str]]()
    for problem in group:
        places.setdefault(problem.message, []).append(problem.at)
    messages = [f"{message} ({listed(at, SHOWN_PLACES)})" for message, at in places.items()]
    more = f"; and {len(messages) - SHOWN_MESSAGES} more: `--json` lists them all" if len(messages) > SHOWN_MESSAGES else ""
    return replace(group[0], message=f"{len(group)} times: {'; '.join(messages[:SHOWN_MESSAGES])}{more}")


def problem_json(problem: "Problem") -> dict[str, Any]:
    """Return a problem as the object that `--json` prints."""
    return asdict(problem)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their headings to stdout, cut to the width of the terminal. Files and pipes get them uncut."""
    # Only for tables.
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    shown_rows = [tuple(" ".join(visible(cell).split()) for cell in row) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *shown_rows, strict=True)]
    screen = console(sys.stdout)
    _narrow_columns(widths, screen.width - COLUMN_GAP * (len(widths) - 1))

    def line_of(cells: Sequence[str]) -> str:
        cut = [cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…" for cell, width in zip(cells, widths, strict=True)]
        return (" " * COLUMN_GAP).join(cell + " " * (width - cell_len(cell)) for cell, width in zip(cut, widths, strict=True)).rstrip()

    with writing_to_stdout():
        screen.print(Text(line_of(columns), style="bold"), soft_wrap=True)
        sys.stdout.write("".join(line_of(row) + "\n" for row in shown_rows))  # a rich table takes a second for a thousand rows


def _narrow_columns(widths: list[int], limit: int) -> None:
    """Narrow the widest columns until all fit into `limit`. The first one shrinks last, because people copy it."""
    while sum(widths) > limit and max(widths) > 1:
        candidates = [index for index, width in enumerate(widths) if index > 0 and width > MIN_COLUMN_WIDTH] or [widths.index(max(widths))]
        widths[max(candidates, key=lambda index: widths[index])] -= 1


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a view. On a terminal its text wraps behind its label, or behind its indent."""

    text: str
    indent: int = 0
    style: str = ""  # of the text
    mark: tuple[str, str] | None = None  # a shape and its style
    label: str = ""
    width: int = 0  # of the column of labels, in cells


def view(lines: Iterable[Line]) -> None:
    """Print lines to stdout: with colors and wrapped on a terminal, plain and whole in files and pipes."""
    # Only for views.
    from rich.cells import cell_len
    from rich.text import Text

    screen = console(sys.stdout)
    with writing_to_stdout():
        for line_ in lines:
            begin = Text(" " * line_.indent)
            if line_.mark is not None:
                begin.append(*line_.mark).append(" ")
            hanging = cell_len(begin.plain)
            if line_.label:
                begin.append(visible(line_.label) + " " * (line_.width - cell_len(line_.label)))
                hanging += line_.width + COLUMN_GAP
                if cell_len(begin.plain) > hanging - COLUMN_GAP:  # a long label has a line of its own
                    screen.print(begin, soft_wrap=True)
                    begin = Text("")
                begin.append(" " * (hanging - cell_len(begin.plain)))
            text = Text(visible(line_.text), style=line_.style)
            room = max(screen.width - hanging, MIN_TEXT_WIDTH)
            for part in text.wrap(screen, room) if cell_len(text.plain) > room else [text]:
                part.rstrip()
                whole = begin + part
                whole.rstrip()
                screen.print(whole, soft_wrap=True)
                begin = Text(" " * hanging)


def folder_message(path: Path) -> str:
    """Return that `path`, which was given for a file to write, is a folder."""
    return f"{path} is a folder: give the name of a file"


def exists_message(path: Path) -> str:
    """Return that `path` exists and is not overwritten."""
    return f"{path} already exists: give another name, or --force"


def write_file(path: Path, text: str) -> None:
    """Write `text` to `path`, completely or not at all. Raises UsageError if it cannot be written."""
    with atomic_file(path) as file:
        file.write(text)


@contextmanager
def atomic_file(path: Path, *, private: bool = False, overwrite: bool = True) -> Generator[IO[str]]:
    """Yield a file that becomes `path` when the block ends, and is removed if the block raises. Raises UsageError if it cannot be written.

    `private`: only this account can read it.
    """
    if path.is_dir():
        raise UsageError(folder_message(path))
    if not overwrite and path.exists():
        raise UsageError(exists_message(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
        try:
            if private:
                os.fchmod(descriptor, 0o600)  # the umask may have removed more
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def console(stream: IO[str]) -> "Console":
    """Return a rich console that takes text literally, without markup, and never cuts what goes into a file."""
    from rich.console import Console  # only for terminals

    return Console(file=stream, markup=False, highlight=False, emoji=False, width=None if stream.isatty() else FILE_WIDTH)


def is_terminal(stream: IO[str]) -> bool:
    """Return whether `stream` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def is_unicode(stream: IO[str]) -> bool:
    """Return whether `stream` can show any character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith(("utf-8", "utf8", "utf-16", "utf16"))


def flush() -> None:
    """Flush stdout. Raises BrokenPipeError if nobody reads it, UsageError if it cannot be written."""
    with writing_to_stdout():
        sys.stdout.flush()


def abandon_stdout() -> None:
    """Redirect stdout so that the interpreter's flush at exit does not fail."""
    _silence(sys.stdout)


def save_traceback(error: BaseException) -> Path | None:
    """Write the traceback of `error`, without passwords, to a file in the home folder, and return its path; None if that fails."""
    # Only for an unexpected error.
    import traceback

    from plan_adapter.local.private_files import make_folder, open_file
    from plan_adapter.local.settings import Settings

    text = "".join(traceback.format_exception(error))
    try:
        path = Settings().home / "last-error.txt"
        make_folder(path.parent)
        with os.fdopen(open_file(path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(without_passwords(text))
    except (OSError, ValueError):
        return None
    return path


def _silence(stream: IO[str]) -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        return
