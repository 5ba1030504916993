"""`Findings`: what validation has found in one plan, without what only follows from an earlier finding."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from plan_adapter.documents import place
from plan_adapter.plan import ExecutionPlan, Step
from plan_adapter.problems import Problem, Severity

_ORDER: Mapping[str, int] = {name: place for place, name in enumerate(dict.fromkeys([*ExecutionPlan.model_fields, *Step.model_fields]))}

_STEPS = r"steps(\[\d+\](\.id)?)?"
_LOSSES: Mapping[str, str] = {"unknown-step": _STEPS, "unknown-reference": rf"{_STEPS}|inputs(\.[^.]*)?"}
"""Codes that say that a name does not exist, and the fields with which names are lost."""


class Findings:
    """Gathers problems.

    `earlier` are those of the document or of the types: the fields concerned are missing from the plan that is looked at, so what is
    found where they were, or because a name was lost with them, is left out.
    """

    def __init__(self, earlier: Iterable[Problem] = ()) -> None:
        """Begin with `earlier`."""
        self._earlier = tuple(earlier)
        self._found: list[Problem] = []
        self._places = frozenset(problem.at for problem in self._earlier)
        self._in_doubt = frozenset(code for code, lost in _LOSSES.items() if any(re.fullmatch(lost, at) for at in self._places))

    def add(self, code: str, at: str, message: str, hint: str = "", *, severity: Severity = "error") -> None:
        """Add a problem at the path `at`, unless there is an earlier one there or around it."""
        self.extend([Problem(code, severity, at, message=message, hint=hint)])

    def warn(self, code: str, at: str, message: str, hint: str = "") -> None:
        """Add a warning."""
        self.add(code, at, message, hint, severity="warning")

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add `problems`, unless there is an earlier one where they are or around it."""
        self._found += [problem for problem in problems if not self._follows(problem)]

    def _follows(self, problem: Problem) -> bool:
        """Return whether `problem` only follows from an earlier one."""
        if not self._earlier:
            return False
        if problem.code in self._in_doubt:
            return True
        ends = (len(problem.at), *(match.start() for match in re.finditer(r"[.\[]", problem.at)))
        return any(problem.at[:end] in self._places for end in ends)

    def sorted(self, plan: ExecutionPlan) -> list[Problem]:
        """Return every problem once, with its place in `plan`'s document, in the order of the document."""
        problems = dict.fromkeys([*self._earlier, *self._found])
        return sorted((_placed(plan, problem) for problem in problems), key=_position)


def _placed(plan: ExecutionPlan, problem: Problem) -> Problem:
    if problem.line is not None:
        return problem
    file, line, column = place(plan, problem.at)
    return replace(problem, file=file, line=line, column=column)


def _position(problem: Problem) -> tuple[int, int, list[tuple[int, int]]]:
    # Without a document the order is that of the model's fields; the members of a mapping keep the order in which they were found.
    keys = re.findall(r"[^.\[\]]+", problem.at)
    path = [(0, int(key)) if key.isdecimal() else (1, _ORDER.get(key, len(_ORDER))) for key in keys]
    return problem.line or 0, problem.column or 0, path
