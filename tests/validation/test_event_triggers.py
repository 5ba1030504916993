"""Tests of `triggers`: what is checked before anything runs, and what an event means for a run."""

import json
from typing import Any

import pytest
import yaml

from plan_adapter.documents import read_document
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.triggers import UnusedEvent
from plan_adapter.runs.triggered import TriggeredStart, read_start
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import ValidatedPlan, lint, validate

INPUTS = {"host": {"pattern": "^web-[0-9]+$"}, "times": {"type": "integer", "default": 1}, "names": {"type": "array", "default": []}}
FITS = {"host": "${{ event.payload.labels.instance }}"}
EVENT = {
    "id": "01890000-0000-7000-8000-000000000001",
    "event": "alert.firing",
    "occurred": "2026-11-29T12:00:00Z",
    "resource": {"prefect.resource.id": "alert.1"},
    "payload": {"labels": {"instance": "web-1", "severity": "critical"}, "n": "3", "names": ["a"], "fingerprint": "f-1"},
    "related": [],
}


@tool(effect="read")
def look(host: str, times: int, names: list[str]) -> None:
    """Look."""


TOOLS = ToolRegistry([look])


def plan_with(*triggers: dict[str, Any], **fields: Any) -> ExecutionPlan:
    """Return a plan with these triggers."""
    parameters = {"host": "${{ inputs.host }}", "times": "${{ inputs.times }}", "names": "${{ inputs.names }}"}
    step = {"id": "look", "tool_name": "look", "parameters": parameters}
    document = {"name": "restart", "description": "d", "inputs": INPUTS, "steps": [step], "triggers": [*triggers], **fields}
    return ExecutionPlan.model_validate(document)


def problems(*triggers: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the code and the place of each problem."""
    return [(problem.code, problem.at) for problem in lint(plan_with(*triggers), TOOLS)]


def start_of(validated: ValidatedPlan, *, number: int = 1, **event: Any) -> TriggeredStart | UnusedEvent:
    """Return the start that an event asks for; `event` has other values for its fields."""
    return read_start(validated, json.dumps({"trigger": number, "event": {**EVENT, **event}}))


def started(*triggers: dict[str, Any], **event: Any) -> TriggeredStart:
    """Return the start that an event asks for, and fail if it starts nothing."""
    found = start_of(validate(plan_with(*triggers), TOOLS), **event)
    assert isinstance(found, TriggeredStart)
    return found


WRONG: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "an empty name": ({"event": "", "inputs": FITS}, [("bad-trigger", "triggers[0].event")]),
    "a name with spaces": ({"event": "alert firing", "inputs": FITS}, [("bad-trigger", "triggers[0].event")]),
    "a wildcard in the middle": ({"event": "alert.*.firing", "inputs": FITS}, [("bad-trigger", "triggers[0].event")]),
    "all events": ({"event": "*", "inputs": FITS}, [("bad-trigger", "triggers[0].event")]),
    "the events of all runs": ({"event": "plan.run.*", "inputs": FITS}, [("bad-trigger", "triggers[0].event")]),
    "the failures of all runs": ({"event": "prefect.flow-run.Failed", "inputs": FITS}, [("bad-trigger", "triggers[0].event")]),
    "an unknown input": ({"event": "a", "inputs": {**FITS, "hots": 1}}, [("unknown-input", "triggers[0].inputs.hots")]),
    "a missing input": ({"event": "a"}, [("missing-input", "triggers[0].inputs")]),
    "a value that no event changes": ({"event": "a", "inputs": {**FITS, "times": "often"}}, [("bad-input", "triggers[0].inputs.times")]),
    "an unknown field of the event": (
        {"event": "a", "inputs": FITS, "when": "${{ event.x }}"},
        [("unknown-reference", "triggers[0].when")],
    ),
    "an input": ({"event": "a", "inputs": {"host": "${{ inputs.host }}"}}, [("unknown-reference", "triggers[0].inputs.host")]),
    "a step": ({"event": "a", "inputs": {"host": "${{ steps.look.result }}"}}, [("unknown-reference", "triggers[0].inputs.host")]),
    "a secret": ({"event": "a", "inputs": {"host": "${{ secrets.token }}"}}, [("misplaced-secret", "triggers[0].inputs.host")]),
    "a condition that is a text": ({"event": "a", "inputs": FITS, "when": "${{ event.name }}"}, [("expression-type", "triggers[0].when")]),
    "a condition in words": ({"event": "a", "inputs": FITS, "when": "critical"}, [("expression-needed", "triggers[0].when")]),
    "a syntax error": ({"event": "a", "inputs": FITS, "fingerprint": "${{ event. }}"}, [("expression-syntax", "triggers[0].fingerprint")]),
    "one fingerprint for all": ({"event": "a", "inputs": FITS, "fingerprint": "x"}, [("bad-trigger", "triggers[0].fingerprint")]),
    "a cool-down of nothing": ({"event": "a", "inputs": FITS, "cooldown_ms": 5}, [("bad-trigger", "triggers[0].cooldown_ms")]),
}


@pytest.mark.parametrize("what", WRONG)
def test_each_mistake_is_one_problem_with_its_place(what: str):
    trigger, found = WRONG[what]
    assert problems(trigger) == found


def test_valid_triggers_have_no_problem():
    own_runs = {"event": "plan.run.*", "resource": {"prefect.resource.name": "nightly"}, "inputs": FITS}
    assert problems({"event": "alert.*", "inputs": FITS}, own_runs) == []


def test_a_trigger_that_is_written_twice_is_refused():
    again = {"event": "a", "inputs": {"host": "web-1"}}
    assert problems({"event": "a", "inputs": FITS}, again) == [("bad-trigger", "triggers[1]")]


def test_a_duration_is_the_same_trigger_as_milliseconds_and_the_digest_covers_it():
    trigger = {"event": "a", "inputs": FITS, "fingerprint": "${{ event.id }}"}
    document = plan_with(trigger | {"cooldown_ms": 300_000}).to_document()
    assert isinstance(document["triggers"], list)
    short = {**document, "triggers": [{**trigger, "cooldown": "5m"}]}
    plan, found = read_document(yaml.safe_dump(short))
    assert plan is not None
    assert found == []
    assert plan_digest(plan) == plan_digest(plan_with(trigger | {"cooldown_ms": 300_000}))
    assert plan_digest(plan) != plan_digest(plan_with(trigger))


def test_event_exists_only_in_triggers():
    plan = plan_with(outputs={"x": "${{ event.name }}"})
    assert [(problem.code, problem.hint) for problem in lint(plan, TOOLS)] == [("unknown-reference", "`event` exists in `triggers`")]
    named = plan_with(outputs={"x": "${{ inputs.names.filter(event, event.startsWith('a')) }}"})
    assert lint(named, TOOLS) == []


def test_values_keep_their_type_and_texts_are_read_by_the_type_of_their_input():
    inputs = {**FITS, "times": "${{ event.payload.n }}", "names": "${{ event.payload.names }}"}
    assert started({"event": "alert.*", "inputs": inputs}).inputs == {"host": "web-1", "times": 3, "names": ["a"]}
    payload = {**EVENT["payload"], "n": 4, "names": '["b", "{{ 7 }}"]'}
    assert started({"event": "alert.*", "inputs": inputs}, payload=payload).inputs == {
        "host": "web-1",
        "times": 4,
        "names": ["b", "{{ 7 }}"],
    }


def test_a_false_condition_ignores_the_event():
    plan = plan_with({"event": "alert.firing", "inputs": FITS, "when": "${{ event.payload.labels.severity == 'warning' }}"})
    assert start_of(validate(plan, TOOLS)) == UnusedEvent("Ignored", "ignored: the condition of trigger 1 is false")


def test_every_value_that_does_not_fit_is_reported():
    inputs = {"host": "${{ event.payload.host }}", "times": "${{ event.payload.n }}", "names": "${{ event.payload.names }}"}
    with pytest.raises(InvalidPlanError) as refused:
        started({"event": "alert.firing", "inputs": inputs}, payload={"n": "often", "names": 3})
    assert [(problem.code, problem.at) for problem in refused.value.problems] == [
        ("bad-trigger", "triggers[0].inputs.host"),
        ("bad-input", "inputs.times"),
        ("bad-input", "inputs.names"),
    ]


@pytest.mark.parametrize("field", ["when", "fingerprint"])
def test_an_expression_without_a_value_refuses_the_event(field: str):
    value = "${{ event.payload.x == 1 }}" if field == "when" else "${{ event.payload.x }}"
    with pytest.raises(InvalidPlanError, match=rf"triggers\[0\].{field}: the event does not fit: .* has no key `x`"):
        started({"event": "alert.firing", "inputs": FITS, field: value})


def test_an_empty_fingerprint_refuses_the_event():
    with pytest.raises(InvalidPlanError, match="the event gives an empty fingerprint"):
        started(
            {"event": "alert.firing", "inputs": FITS, "fingerprint": "${{ event.payload.fingerprint }}"},
            payload={**EVENT["payload"], "fingerprint": ""},
        )


def test_equal_fingerprints_have_one_key_and_other_triggers_another():
    trigger = {"event": "alert.*", "inputs": FITS, "fingerprint": "${{ event.payload.fingerprint }}", "cooldown_ms": 5}
    key = started(trigger).claim.key
    assert started(trigger, id="2", event="alert.resolved").claim.key == key
    assert started(trigger | {"cooldown_ms": 6}).claim.key == key
    other = {**EVENT["payload"], "fingerprint": "f-2"}
    assert started(trigger, payload=other).claim.key != key
    assert started(trigger | {"event": "alert.firing"}).claim.key != key
    assert (started(trigger).claim.cooldown_ms, started({"event": "alert.*", "inputs": FITS}).claim.cooldown_ms) == (5, None)


def test_without_a_fingerprint_the_id_of_the_event_is_the_key():
    trigger = {"event": "alert.*", "inputs": FITS}
    assert started(trigger).claim.key == started(trigger, payload={**EVENT["payload"], "n": 5}).claim.key
    assert started(trigger).claim.key != started(trigger, id="2").claim.key


@pytest.mark.parametrize(
    "parameter",
    [None, 3, "", "{", "[]", "{}", '{"trigger": 1}', '{"trigger": "1", "event": {"event": "a"}}', '{"trigger": 1, "event": {}}'],
)
def test_a_parameter_that_no_automation_wrote_is_refused(parameter: Any):
    with pytest.raises(InvalidPlanError, match="the parameter does not hold an event"):
        read_start(validate(plan_with({"event": "a", "inputs": FITS}), TOOLS), parameter)


@pytest.mark.parametrize(("number", "event"), [(2, "alert.firing"), (0, "alert.firing"), (1, "alert.resolved")])
def test_an_event_for_a_trigger_of_another_version_is_refused(number: int, event: str):
    with pytest.raises(InvalidPlanError, match=f"this version of the plan has no trigger {number} for the event `{event}`"):
        start_of(validate(plan_with({"event": "alert.firing", "inputs": FITS}), TOOLS), number=number, event=event)
