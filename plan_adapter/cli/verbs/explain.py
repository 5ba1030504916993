"""`plan explain`."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, cast

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.documents import read_mapping
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.problems import CATALOGUE, did_you_mean

LIKENESS = 0.5
"""From which likeness on a code may be what somebody meant."""

FILE = Path(__file__).parents[1] / "explanations.yaml"
"""What `plan explain` adds to the catalogue of codes."""


class Explanation(NamedTuple):
    """What a problem code means, with a piece of a plan that has the problem, and the same piece without it."""

    code: str
    explanation: str
    summary: str
    group: str
    page: str  # of the guide
    wrong: str | None  # None: no plan by itself has the problem
    right: str | None


def explanations() -> dict[str, Explanation]:
    """Return the explanation of every code, in the order of the list."""
    groups, problems = read_mapping(FILE)
    if groups is None:
        raise InvalidPlanError(problems)
    entries = cast("dict[str, dict[str, dict[str, str]]]", groups)
    return {code: _explanation_of(code, group, entry) for group, codes in entries.items() for code, entry in codes.items()}


def _explanation_of(code: str, group: str, entry: dict[str, str]) -> Explanation:
    text = CATALOGUE[code]
    summary = entry.get("short") or text.partition(". ")[0].rstrip(".") + "."
    return Explanation(code, text, summary, group, entry["page"], entry.get("wrong"), entry.get("right"))


def explain(code: str | None = None, /, *, json: bool = False) -> int:
    """Explain the code of a problem: what it means, a piece of a plan that has it, and the same piece without it.

    Args:
        code: The code in brackets on the line of a problem; without one, all codes are listed.
        json: Print JSON Lines.
    """
    found = explanations()
    name = None if code is None else code.strip().strip("[]")
    if name is not None and name not in found:
        raise UsageError(f"no problem has the code `{name}`", hint=_near(name))
    if json:
        for wanted in CATALOGUE if name is None else (name,):
            output.json_line("explanation", found[wanted]._asdict())
    elif name is None:
        output.line("\n".join(_list_lines(found.values())))
    else:
        _show(found[name])
    return ExitCode.DONE


def _near(name: str) -> str:
    near = get_close_matches(name, CATALOGUE, n=1, cutoff=LIKENESS)
    return did_you_mean(name, near) if near else "`plan explain` lists the codes"


def _list_lines(found: Iterable[Explanation]) -> Iterator[str]:
    width = max(map(len, CATALOGUE))
    for group, entries in groupby(found, key=lambda entry: entry.group):
        yield f"{group}:"
        yield from (f"  {entry.code:<{width}}  {entry.summary}" for entry in entries)
        yield ""
    yield "`plan explain CODE` explains one."


def _show(found: Explanation) -> None:
    output.view([output.Line(f"{found.code}: {found.explanation}")])
    for title, piece in (("Wrong", found.wrong), ("Right", found.right)):
        if piece is not None:
            output.line("\n".join(["", f"{title}:", *(f"  {line}".rstrip() for line in piece.splitlines())]))
    output.line(f"\nGuide: plan guide {found.page}")
