"""`explanations`: every problem code as `plan explain` shows it, from the catalogue and `explanations.yaml`."""

from pathlib import Path
from typing import NamedTuple, cast

from plan_adapter.documents import read_mapping
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.problems import CATALOGUE

FILE = Path(__file__).with_name("explanations.yaml")


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
