"""Reads what a case expects of its run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from plan_adapter.options import EFFECTS, Effect
from plan_adapter.status import PlanStatus, RunReason
from plan_adapter.testing.case import PLAN, Expectation, Order, Parameters
from plan_adapter.testing.fields import FieldReader
from plan_adapter.values import join


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
