"""`Findings`: the problems that validation finds in one plan, without those that only follow from an earlier problem."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from plan_adapter.documents import locate
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.problems import Problem, Severity

_ORDER: Mapping[str, int] = {name: place for place, name in enumerate(dict.fromkeys([*ExecutionPlan.model_fields, *Step.model_fields]))}

_STEPS = r"steps(\[\d+\](\.id)?)?"
_DECLARING_FIELDS: Mapping[str, str] = {
    "unknown-step": _STEPS,
    "unknown-reference": rf"{_STEPS}|inputs(\.[^.]*)?",
    "unknown-hosts": r"hosts\b.*",
}
"""Codes for unknown names, each with the fields that declare such names."""


class Findings:
    """Collects problems.

    `earlier` are the problems of the document or of the types. The fields that they concern are missing from the plan under validation, so
    problems at those fields, or caused by names lost with them, are left out.
    """

    def __init__(self, earlier: Iterable[Problem] = ()) -> None:
        """Start with `earlier`."""
        self._earlier = tuple(earlier)
        self._found: list[Problem] = []
        self._places = frozenset(problem.at for problem in self._earlier)
        self._unreliable_codes = frozenset(
            code for code, fields in _DECLARING_FIELDS.items() if any(re.fullmatch(fields, at) for at in self._places)
        )

    def add(self, code: str, at: str, message: str, hint: str = "", *, severity: Severity = "error") -> None:
        """Add a problem at the path `at`, unless an earlier problem is there or encloses it."""
        self.extend([Problem(code, severity, at, message=message, hint=hint)])

    def warn(self, code: str, at: str, message: str, hint: str = "") -> None:
        """Add a warning."""
        self.add(code, at, message, hint, severity="warning")

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add `problems`, except those whose path an earlier problem has or encloses."""
        self._found += [problem for problem in problems if not self._is_consequence(problem)]

    def add_from_sub_plan(self, problems: Iterable[Problem], at: str) -> None:
        """Add the located problems of the sub-plan at the path `at`. Problems of a sub-plan without a document get that path."""
        self._found += [
            problem if problem.line is not None else replace(problem, at=f"{at}{problem.at}", file=None) for problem in problems
        ]

    def _is_consequence(self, problem: Problem) -> bool:
        """Return whether `problem` only follows from an earlier one."""
        if not self._earlier:
            return False
        if problem.code in self._unreliable_codes:
            return True
        ends = (len(problem.at), *(match.start() for match in re.finditer(r"[.\[]", problem.at)))
        return any(problem.at[:end] in self._places for end in ends)

    def sorted(self, plan: ExecutionPlan) -> list[Problem]:
        """Return every problem once, located in `plan`'s document and in document order."""
        problems = dict.fromkeys([*self._earlier, *self._found])
        return sorted((_with_location(plan, problem) for problem in problems), key=lambda problem: _sort_key(plan, problem))


def _with_location(plan: ExecutionPlan, problem: Problem) -> Problem:
    if problem.line is not None:
        return problem
    file, line, column = locate(plan, problem.at)
    return replace(problem, file=file, line=line, column=column)


def _sort_key(plan: ExecutionPlan, problem: Problem) -> tuple[str, int, int, list[tuple[int, int]]]:
    # The problems of this document come first, then those of the plans that its steps run.
    own = plan._file  # pyright: ignore[reportPrivateUsage]  # set by the reader of the document
    file = "" if problem.file is None or problem.file == own else problem.file
    # Without a document, use the order of the model's fields. Members of a mapping keep the order in which they were found.
    keys = re.findall(r"[^.\[\]]+", problem.at)
    path = [(0, int(key)) if key.isdecimal() else (1, _ORDER.get(key, len(_ORDER))) for key in keys]
    return file, problem.line or 0, problem.column or 0, path
