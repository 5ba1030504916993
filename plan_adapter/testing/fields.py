"""`FieldReader`: reads the values of a test file one by one and collects every problem."""

from collections.abc import Collection
from typing import Literal, TypeVar

from pydantic import JsonValue

from plan_adapter.problems import Problem, did_you_mean
from plan_adapter.readable import one_line
from plan_adapter.values import join

T = TypeVar("T", bound=str)


class FieldReader:
    """Reads values at paths of a test file. A bad value is reported and left out."""

    def __init__(self, steps: Collection[str] | None) -> None:
        """Read for a plan with these `steps`; None: unknown, so no step is refused."""
        self.problems: list[Problem] = []
        self._steps = steps

    def report(self, code: str, at: str, message: str, hint: str = "") -> None:
        """Add a problem at the path `at`."""
        self.problems.append(Problem(code, at=at, message=message, hint=hint))

    def report_unknown(self, fields: Collection[str], at: str, known: Collection[str], what: str) -> None:
        """Report the `fields` that are not `known`. `what` names their owner in the message."""
        for name in fields:
            if name not in known:
                self.report("unknown-field", join(at, name), f"{what} has no field `{one_line(name)[:60]}`", did_you_mean(name[:60], known))

    def mapping(self, value: JsonValue, at: str, wanted: str = "a mapping") -> dict[str, JsonValue]:
        """Return a mapping. Null is an empty one, because YAML reads null where nothing is written."""
        if value is None or isinstance(value, dict):
            return {} if value is None else value
        self.report("wrong-type", at, f"this must be {wanted}, not {_type_name(value)}")
        return {}

    def by_step(self, value: JsonValue, at: str, *, also: Collection[str] = ()) -> dict[str, JsonValue]:
        """Return a mapping whose keys are ids of steps, or in `also`."""
        values = self.mapping(value, at)
        return {name: part for name, part in values.items() if self.is_step(name, join(at, name), also)}

    def step_list(self, value: JsonValue, at: str) -> tuple[str, ...]:
        """Return a list of ids of steps."""
        found = [self.step_id(part, join(at, index)) for index, part in enumerate(self.sequence(value, at, "a list of steps"))]
        return tuple(step_id for step_id in found if step_id)

    def step_id(self, value: JsonValue, at: str) -> str:
        """Return the id of a step, or "" if there is no such step."""
        step_id = self.text(value, at)
        return step_id if step_id and self.is_step(step_id, at) else ""

    def sequence(self, value: JsonValue, at: str, wanted: str) -> list[JsonValue]:
        """Return a list."""
        if isinstance(value, list):
            return value
        self.report("wrong-type", at, f"this must be {wanted}, not {_type_name(value)}", "write [ … ]")
        return []

    def is_step(self, name: str, at: str, also: Collection[str] = ()) -> bool:
        """Return whether `name` is the id of a step or in `also`, and report it if it is not."""
        if self._steps is None or name in self._steps or name in also:
            return True
        self.report(
            "unknown-step", at, f"no step is called `{one_line(name)[:60]}`", did_you_mean(name[:60], frozenset([*self._steps, *also]))
        )
        return False

    def text(self, value: JsonValue, at: str) -> str:
        """Return a text."""
        if isinstance(value, str):
            return value
        hint = "put it in quotes" if isinstance(value, bool | int | float) else ""
        self.report("wrong-type", at, f"this must be text, not {_type_name(value)}", hint)
        return ""

    def choice(self, value: JsonValue, at: str, choices: Collection[T]) -> T | None:
        """Return one of `choices`."""
        for choice in choices:
            if value == choice:
                return choice
        hint = did_you_mean(value[:60], choices) if isinstance(value, str) else ""
        listed = ", ".join(f"`{choice}`" for choice in choices)
        self.report("bad-value", at, f"this must be one of {listed}", hint if hint.startswith("did") else "")
        return None

    def whole_number(self, value: JsonValue, at: str) -> int:
        """Return an integer of at least 0."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.report("wrong-type", at, "this must be a whole number of at least 0")
        return 0


def _type_name(value: JsonValue) -> Literal["null", "true or false", "a number", "text", "a list", "a mapping"]:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a mapping"
