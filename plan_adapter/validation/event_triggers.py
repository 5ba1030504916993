"""The triggers of a plan: their checks, and what an event means for a run."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic import JsonValue

from plan_adapter.expressions import Declarations, Template, Variables, compile_template
from plan_adapter.model.errors import ExpressionError, InvalidPlanError
from plan_adapter.model.options import EVENT_NAME, Trigger
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.readable import listed
from plan_adapter.model.values import join
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.inputs import read_values

CODE = "bad-trigger"

_OWN_EVENTS = ("prefect.flow-run.", "prefect.task-run.", "prefect.automation.", "plan.run.", "plan.gate.", "plan.trigger.")
"""How the events begin that the runs of any runbook cause, or its triggers."""


@dataclass(frozen=True, slots=True)
class CompiledTrigger:
    """A trigger with its expressions compiled. `number` counts from 1."""

    trigger: Trigger
    number: int
    when: Template | None
    inputs: Mapping[str, Template]
    fingerprint: Template | None

    @property
    def at(self) -> str:
        """The path of the trigger in the document."""
        return f"triggers[{self.number - 1}]"

    def is_met(self, event: Mapping[str, JsonValue]) -> bool:
        """Return whether the condition is true of `event`. Raises InvalidPlanError if it has no value."""
        if self.when is None:
            return True
        try:
            return self.when.resolve(_variables(event)) is True
        except ExpressionError as error:
            raise InvalidPlanError([_failure(f"{self.at}.when", error)]) from None

    def inputs_of(self, plan: ExecutionPlan, event: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the inputs that the trigger gives for `event`. A text for an input of another type is read as on the command line.

        Raises InvalidPlanError with every expression that has no value and every value that does not fit.
        """
        values, problems = dict[str, JsonValue](), list[Problem]()
        for name, template in self.inputs.items():
            try:
                values[name] = template.resolve(_variables(event))
            except ExpressionError as error:
                problems.append(_failure(join(f"{self.at}.inputs", name), error))
        read, found = read_values({name: plan.inputs[name] for name in values}, values, from_text=True)
        if problems := [*problems, *found]:
            raise InvalidPlanError(problems)
        return read

    def key_of(self, plan: ExecutionPlan, event: Mapping[str, JsonValue]) -> str:
        """Return a digest that is equal for events which are one alert: of the trigger, and of the fingerprint or else the event's id.

        Raises InvalidPlanError if the fingerprint has no value or is empty.
        """
        try:
            value = None if self.fingerprint is None else self.fingerprint.resolve(_variables(event))
        except ExpressionError as error:
            raise InvalidPlanError([_failure(f"{self.at}.fingerprint", error)]) from None
        if self.fingerprint is not None and value in (None, "", [], {}):
            raise InvalidPlanError([Problem(CODE, at=f"{self.at}.fingerprint", message="the event gives an empty fingerprint")])
        of_alert = {"event_id": event["id"]} if self.fingerprint is None else {"fingerprint": value}
        text = json.dumps([plan.name, _identity(self.trigger), of_alert], sort_keys=True)
        return sha256(text.encode()).hexdigest()


def compile_triggers(plan: ExecutionPlan, findings: Findings) -> tuple[CompiledTrigger, ...]:
    """Return the compiled triggers of the plan, and add their problems."""
    compiled, seen = list[CompiledTrigger](), dict[str, int]()
    for number, trigger in enumerate(plan.triggers, start=1):
        at, declared = f"triggers[{number - 1}]", Declarations(frozenset(), {}, event=True)
        _check_event(trigger, at, findings)
        first = seen.setdefault(json.dumps(_identity(trigger), sort_keys=True), number)
        if first != number:
            message = f"trigger {number} has the same event, resource, condition and fingerprint as trigger {first}"
            findings.add(CODE, at, message, "remove one of them: an alert starts one run")
        when, fingerprint, problems = None, None, list[Problem]()
        if trigger.when is not None:
            when, problems = compile_template(trigger.when, declared, at=f"{at}.when", expect="bool")
        findings.extend(problems)
        if trigger.fingerprint is not None:
            fingerprint, problems = compile_template(trigger.fingerprint, declared, at=f"{at}.fingerprint")
            findings.extend(problems)
            if not fingerprint.texts and not problems:
                message = "the fingerprint is the same for every event"
                findings.add(CODE, f"{at}.fingerprint", message, "write one such as `${{ event.payload.fingerprint }}`")
        compiled.append(CompiledTrigger(trigger, number, when, _compile_inputs(plan, trigger, at, declared, findings), fingerprint))
    return tuple(compiled)


def _check_event(trigger: Trigger, at: str, findings: Findings) -> None:
    if not re.fullmatch(EVENT_NAME, trigger.event):
        message = (
            "the name of the event is empty" if not trigger.event.strip() else f"{trigger.event[:60]!r} cannot be the name of an event"
        )
        findings.add(
            CODE, f"{at}.event", message, "write one such as `alertmanager.alert.firing`, or `alertmanager.*` for all that begin so"
        )
    elif not trigger.resource and (own := _own_events(trigger)):
        message = f"runs of this runbook would start further ones: `{trigger.event}` stands for events of theirs, `{own[0]}*`"
        findings.add(CODE, f"{at}.event", message, "write with `resource` which resources it is about, or name another event")
    if trigger.cooldown_ms and trigger.fingerprint is None:
        message = "`cooldown_ms` needs a `fingerprint`, which says what events are the same alert"
        findings.add(CODE, f"{at}.cooldown_ms", message, "write `fingerprint`, or remove it")


def _own_events(trigger: Trigger) -> list[str]:
    """Return how the events begin that the trigger is for, although its own runs may cause them."""
    stem = trigger.event.removesuffix("*")
    return [family for family in _OWN_EVENTS if stem.startswith(family) or (stem != trigger.event and family.startswith(stem))]


def matches_event(trigger: Trigger, name: str) -> bool:
    """Return whether the trigger is for events with this name."""
    return name.startswith(trigger.event[:-1]) if trigger.event.endswith("*") else name == trigger.event


def _compile_inputs(plan: ExecutionPlan, trigger: Trigger, at: str, declared: Declarations, findings: Findings) -> dict[str, Template]:
    found = dict[str, Template]()
    for name, value in trigger.inputs.items():
        place = join(f"{at}.inputs", name)
        if name not in plan.inputs:
            hint = did_you_mean(name, frozenset(plan.inputs)) or "the plan declares no inputs"
            findings.add("unknown-input", place, f"the plan has no input `{name}`", hint)
            continue
        found[name], problems = compile_template(value, declared, at=place)
        if not found[name].texts and not problems:  # the same value for every event
            _, misfits = read_values({name: plan.inputs[name]}, {name: value}, from_text=True)
            problems = [Problem(misfit.code, at=place, message=misfit.message, hint=misfit.hint) for misfit in misfits]
        findings.extend(problems)
    missing = [f"`{name}`" for name, definition in plan.inputs.items() if definition.is_required and name not in trigger.inputs]
    if missing:
        message = f"an event gives no value for {listed(missing, 5)}"
        findings.add(
            "missing-input", f"{at}.inputs", message, "write an expression for it, such as `${{ event.payload.host }}`, or a default"
        )
    return found


def _identity(trigger: Trigger) -> list[Any]:
    """Return the fields by which the triggers of a plan differ."""
    return [trigger.event, trigger.resource, trigger.when, trigger.fingerprint]


def _variables(event: Mapping[str, JsonValue]) -> Variables:
    return Variables(steps={}, inputs={}, event=event)


def _failure(at: str, error: ExpressionError) -> Problem:
    return Problem(CODE, at=at, message=f"the event does not fit: {error}")
