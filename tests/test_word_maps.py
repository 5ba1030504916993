"""A mapping from each word of a closed set, such as the answers at a gate, has an entry for every word of the set."""

import ast
import importlib
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from tests.test_layering import PACKAGE

PARTIAL = {
    "agent/goal_model.py _DEFAULT_SPEAK": "the other actions end the step and need no sentence",
    "cli/desk/gate_pages.py LABELS": "delegations and their end have forms of their own",
    "cli/desk/notices.py _ENDS": "the other ends are answers, which are worded with who gave them",
    "engine/gate_forms.py _PROOFS": "the other proofs have no field in a form",
    "execution/ports.py _IN_WORDS": "the other outcomes are words already",
    "store/proof/entries.py GATE_END_ENTRIES": "an answer has an entry of its own",
}
"""The mappings that leave words out on purpose, and why."""


def literals(alias: Any) -> set[str]:
    """Return the words of a Literal, or of a union of some. Empty for any other type."""
    return {word for member in get_args(alias) for word in ({member} if isinstance(member, str) else literals(member))}


def word_maps() -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield each mapping at the top of a module whose keys are such words: its place, the words, and those that it has."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.AnnAssign(
                    target=ast.Name(id=name),
                    annotation=ast.Subscript(value=ast.Name(id="dict" | "Mapping"), slice=ast.Tuple(elts=[key, _])),
                ) if ast.unparse(key) not in ("str", "int"):
                    place = path.relative_to(PACKAGE)
                    module = importlib.import_module(".".join(("plan_adapter", *place.with_suffix("").parts)))
                    if words := literals(eval(ast.unparse(key), vars(module))):
                        yield f"{place.as_posix()} {name}", words, set(getattr(module, name))


MAPS = {place: (words, found) for place, words, found in word_maps()}


def test_word_maps_are_found() -> None:
    assert {"cli/answering.py DECISION_WORDS", "model/approvals.py ANSWERED", *PARTIAL} <= MAPS.keys()


@pytest.mark.parametrize("place", MAPS)
def test_a_word_map_has_every_word(place: str) -> None:
    words, found = MAPS[place]
    assert found <= words
    assert (found == words) == (place not in PARTIAL)
