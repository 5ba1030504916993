"""Every field of a step is shown at its gates, in `plan show FILE`, and in the handbook. A new field needs an example here.

Nothing here tests `plan show RUN`.
"""

from importlib.resources import files
from typing import Any

import pytest

from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.text.call_text import step_gate_text
from plan_adapter.text.formatting import format_plan
from plan_adapter.text.plan_text import plan_gate_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import bind_inputs, validate

INNER = {"description": "Inner", "inputs": {"x": {"type": "string", "default": "a"}}, "steps": [{"id": "i", "tool_name": "do"}]}
CALL: dict[str, Any] = {"tool_name": "do", "description": "Do it"}
READ: dict[str, Any] = {"tool_name": "look"}
LIST: dict[str, Any] = {**CALL, "for_each": "${{ ['a', 'b'] }}"}
GROUP: dict[str, Any] = {"for_each": "${{ ['a', 'b'] }}", "steps": [{"id": "inside", "tool_name": "do"}]}
ASK: dict[str, Any] = {"ask": {"question": "Which?", "fields": {"x": {}}}}
GOAL: dict[str, Any] = {"goal": "Find it", "tools": ["look"]}
SUB_PLAN: dict[str, Any] = {"plan": "inner.yaml", "pinned": INNER}
UNDO: dict[str, Any] = {**CALL, "rollback": {"tool_name": "undo"}}
RETRY: dict[str, Any] = {**CALL, "effect": "write", "max_retries": 2, "retry_delay_ms": 5000}

EXAMPLES: dict[str, tuple[dict[str, Any], Any]] = {
    "id": (CALL, "renamed"),
    "tool_name": (CALL, "look"),
    "ask": (ASK, {"question": "Who?", "fields": {"x": {}}}),
    "approvers": (ASK, ["ana"]),
    "expires": (ASK, "skip"),
    "goal": (GOAL, "Find another"),
    "description": (CALL, "Do something else"),
    "for_each": (LIST, "${{ ['c'] }}"),
    "label": (LIST, "number ${{ item }}"),
    "steps": (GROUP, [{"id": "inside", "tool_name": "look"}]),
    "batch": (GROUP, 2),
    "max_failures": (GROUP, 3),
    "plan": (SUB_PLAN, "other.yaml"),
    "inputs": (SUB_PLAN, {"x": "b"}),
    "pinned": (SUB_PLAN, {**INNER, "steps": [{"id": "i", "tool_name": "look"}]}),
    "parameters": (CALL, {"text": "c"}),
    "input": (CALL, '{"text": "c"}'),
    "when": (CALL, "${{ 1 > 2 }}"),
    "done_when": (CALL, "${{ result == 'x' }}"),
    "tools": (GOAL, ["do"]),
    "max_rounds": (GOAL, 7),
    "max_retries": (CALL, 7),
    "retry_delay_ms": (RETRY, 7000),
    "retry_backoff": (RETRY, 7.0),
    "retry_jitter": (RETRY, 0.5),
    "timeout_ms": (CALL, 7000),
    "effect": (READ, "write"),
    "isolation": (CALL, "process"),
    "runner": (CALL, "dask"),
    "depends_on": (CALL, ["first"]),
    "creates_secrets": (CALL, ["token"]),
    "requires_approval": (CALL, True),
    "on_error": (CALL, "continue"),
    "rollback": (UNDO, {"tool_name": "undo", "parameters": {"text": "c"}}),
    "tags": (CALL, ["web"]),
    "rollback_failed": (UNDO, True),
    "metadata": (CALL, {"x": "y"}),
}
"""A step, and another value of the field."""

NOT_SHOWN = {"metadata"}  # notes that the engine ignores; the digest covers them

DECIDED = {"when", "for_each", "label", "depends_on", "requires_approval"}
"""The fields that have decided by the time the gate of their step opens, and for what."""


@tool(effect="write")
def do(text: str = "") -> str:
    """Do it."""
    return text


@tool(effect="read")
def look(text: str = "") -> str:
    """Look."""
    return text


@tool(effect="write")
def undo(text: str = "") -> None:
    """Undo it."""


TOOLS = ToolRegistry([do, look, undo])


def plan_with(step: dict[str, Any]) -> ExecutionPlan:
    options = {"approval_timeout_ms": 60_000, "allow_parallel": True}
    steps = [{"id": "first", "tool_name": "look"}, {"id": "a", **step}]
    return ExecutionPlan.model_validate({"description": "d", "id": "p", "options": options, "steps": steps})


def gate_text(step: dict[str, Any]) -> str:
    validated = validate(plan_with(step), TOOLS)
    gated = [each.id for each in validated.plan.all_steps if validated.has_gate(each)]
    whole = plan_gate_text(bind_inputs(validated), gated=gated, approval_digest="d1" * 32, expires_ms=60_000)
    return whole.partition("### Digests")[0]


def step_gate_of(step: dict[str, Any], gate: str) -> str:
    """Return the text of the gate of step `gate`, or of its first item if it has items, without the digests."""
    validated = validate(plan_with(step), TOOLS)
    bound, asks = bind_inputs(validated), validated.plan.step(gate)
    shown: Any = {"item": "a"} if asks.is_group else validated.parameters[gate].source
    return step_gate_text(
        bound,
        asks,
        effect=validated.effect_of(gate),
        parameters=shown,
        item=0 if asks.for_each else None,
        label="a" if asks.for_each else None,
        gated=[each.id for each in validated.plan.all_steps if validated.has_gate(each)],
        approval_digest="d1" * 32,
        expires_ms=validated.plan.gate_timeout_ms(asks),
    ).partition("### Digests")[0]


def in_group(step: dict[str, Any]) -> dict[str, Any]:
    """Return a group with `step` inside."""
    return {"id": "a", "for_each": "${{ ['x'] }}", "steps": [{"id": "before", "tool_name": "look"}, {"id": "inside", **step}]}


def test_every_field_has_an_example() -> None:
    assert EXAMPLES.keys() == Step.model_fields.keys()


@pytest.mark.parametrize("field", EXAMPLES)
def test_a_field_is_shown_to_the_approver(field: str) -> None:
    step, other = EXAMPLES[field]
    assert (gate_text(step) == gate_text({**step, field: other})) == (field in NOT_SHOWN)


ASKED = [name for name, (step, _) in EXAMPLES.items() if step is not GOAL and name not in DECIDED and name != "id"]
"""The fields that the gate of their step shows. A goal has no gate: each of its calls has one."""


@pytest.mark.parametrize("field", ASKED)
def test_a_field_is_shown_at_the_gate_of_its_step(field: str) -> None:
    step, other = EXAMPLES[field]
    assert (step_gate_of(step, "a") == step_gate_of({**step, field: other}, "a")) == (field in NOT_SHOWN)


IN_GROUP = [name for name, (step, _) in EXAMPLES.items() if not any(step is other for other in (LIST, GROUP, GOAL, SUB_PLAN))]
"""The fields of steps that a group can contain."""


@pytest.mark.parametrize("field", IN_GROUP)
def test_a_field_of_a_step_in_a_group_is_shown_at_the_gate_of_the_group(field: str) -> None:
    step, other = EXAMPLES[field]
    other = ["before"] if field == "depends_on" else other
    assert (step_gate_of(in_group(step), "a") == step_gate_of(in_group({**step, field: other}), "a")) == (field in NOT_SHOWN)


@pytest.mark.parametrize("field", EXAMPLES)
def test_a_field_is_in_the_handbook(field: str) -> None:
    assert f"`{field}`" in (files("plan_adapter") / "guide" / "plans.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("field", EXAMPLES)
def test_a_field_is_shown_by_plan_show(field: str) -> None:
    step, other = EXAMPLES[field]
    assert (format_plan(plan_with(step)) == format_plan(plan_with({**step, field: other}))) == (field in NOT_SHOWN)
