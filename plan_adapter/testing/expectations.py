"""Reads what a case expects of its run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import JsonValue

from plan_adapter.model.options import EFFECTS, Effect
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.readable import one_line
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.model.values import join
from plan_adapter.testing.case import PLAN, Expectation, Order, Parameters

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


@dataclass(frozen=True, slots=True)
class ExpectationReader:
    """Reads the fields under `expect` with `fields`, which collects their problems."""

    fields: FieldReader

    def expectation(self, value: JsonValue, at: str) -> Expectation:
        """Return the expectation written at the path `at`."""
        readers: Mapping[str, Callable[[JsonValue, str], Any]] = {
            "status": self._status,
            "reason": self._reason,
            "message": self.fields.text,
            "order": self._order,
            "gates": self._gates,
            "skipped": self._steps_with_texts,
            "failed": self._steps_with_texts,
            "rolled_back": self._call_names,
            "effects": self._effects,
            "attempts": self._attempts,
            "called_with": self._called_with,
            "results": self.fields.by_step,
            "outputs": self.fields.mapping,
        }
        written = self.fields.mapping(value, at)
        self.fields.report_unknown(written, at, tuple(readers), "`expect`")
        found: dict[str, Any] = {name: read(written[name], join(at, name)) for name, read in readers.items() if name in written}
        return Expectation(**found)

    def _status(self, value: JsonValue, at: str) -> PlanStatus:
        ended = [status for status in PlanStatus if status.has_ended]
        return self.fields.choice(value, at, ended) or PlanStatus.COMPLETED

    def _reason(self, value: JsonValue, at: str) -> RunReason | None:
        return self.fields.choice(value, at, tuple(RunReason))

    def _order(self, value: JsonValue, at: str) -> Order:
        found = list[str | tuple[str, ...]]()
        for index, part in enumerate(self.fields.sequence(value, at, "a list of steps")):
            place = join(at, index)
            found.append(self.fields.step_list(part, place) if isinstance(part, list) else self.fields.step_id(part, place))
        return tuple(found)

    def _gates(self, value: JsonValue, at: str) -> tuple[str, ...]:
        return self._call_names(value, at, (PLAN,))

    def _call_names(self, value: JsonValue, at: str, also: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of calls: a step, a step with its item as in `restart[web-1]`, or a name in `also`."""
        names = list[str]()
        for index, part in enumerate(self.fields.sequence(value, at, "a list of names")):
            name = self.fields.text(part, join(at, index))
            if name and self.fields.is_step(name.partition("[")[0], join(at, index), also):
                names.append(name)
        return tuple(names)

    def _steps_with_texts(self, value: JsonValue, at: str) -> dict[str, str]:
        """Return a text by step. A list of steps gives each an empty one."""
        if not isinstance(value, dict):
            return dict.fromkeys(self.fields.step_list(value, at), "")
        return {step_id: self.fields.text(part, join(at, step_id)) for step_id, part in self.fields.by_step(value, at).items()}

    def _effects(self, value: JsonValue, at: str) -> dict[Effect, tuple[str, ...]]:
        written = self.fields.mapping(value, at)
        self.fields.report_unknown(written, at, EFFECTS, "`effects`")
        return {effect: self.fields.step_list(written[effect], join(at, effect)) for effect in EFFECTS if effect in written}

    def _attempts(self, value: JsonValue, at: str) -> dict[str, int]:
        counts = self.fields.by_step(value, at)
        return {step_id: self.fields.whole_number(count, join(at, step_id)) for step_id, count in counts.items()}

    def _called_with(self, value: JsonValue, at: str) -> dict[str, Parameters]:
        found = dict[str, Parameters]()
        for step_id, part in self.fields.by_step(value, at).items():
            place = join(at, step_id)
            if isinstance(part, list):
                found[step_id] = [self.fields.mapping(call, join(place, index)) for index, call in enumerate(part)]
            else:
                found[step_id] = self.fields.mapping(part, place)
        return found
