"""A recorded plan whose tools are as they were is what it was when it was validated, without being validated again."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from plan_adapter.canonical import canonical_document, canonical_json
from plan_adapter.plan import Input, Rollback
from plan_adapter.record import RunContext
from plan_adapter.store.known_steps import implied_row, plan_of_texts
from plan_adapter.stored_plan import StoredPlan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, recall, validate
from tests.validation.builders import TOOLS, plan, step
from tests.validation.test_dependencies import graphs, plan_of

EVERYTHING = plan(
    step("later", depends_on=["first", "first"], when="${{ inputs.wanted }}"),
    step("first", parameters={"value": {"of": ["${{ secrets.token }}", 1]}}),
    step("each", for_each="${{ steps.first.result }}", parameters={"value": "${{ item }}"}, done_when="${{ result != 1 }}"),
    step("undone", rollback=Rollback(tool_name="fetch_page", parameters={"url": "${{ secrets.other }}/${{ steps.each.result }}"})),
    step("plain", parameters={"value": {"$": ["{{ }}", None]}}, depends_on=["each", "first"]),
    step("text", tool_name="fetch_page", input='{"url": "${{ steps.plain.result.url }}"}'),
    inputs={"wanted": Input(type="boolean", default=True)},
    outputs={"found": "${{ steps.text.result }}"},
)


def stored(bound: BoundPlan) -> StoredPlan:
    row = implied_row(bound.validated, RunContext())
    return plan_of_texts(bound.validated.digest, canonical_json(canonical_document(bound.validated.plan)).decode(), row["steps"])


def recalled(bound: BoundPlan, tools: ToolRegistry = TOOLS, inputs: dict[str, JsonValue] | None = None) -> BoundPlan | None:
    given_inputs = bound.inputs if inputs is None else inputs
    return recall(stored(bound), given_inputs, tools, digest=bound.validated.digest, approved=bound.approval_digest)


def told(validated: ValidatedPlan) -> dict[str, object]:
    """Return every field but the plan, in a form in which two can be compared: expressions by their text."""
    found: dict[str, object] = {field.name: getattr(validated, field.name) for field in fields(validated) if field.name != "plan"}
    for name in ("parameters", "when", "for_each", "done_when", "outputs"):
        of = {
            key: (one.source, one.expect, one.steps, one.inputs, one.secrets, set(one.texts))
            for key, one in getattr(validated, name).items()
        }
        found[name] = of
    found["rollbacks"] = {key: (call.tool.name, call.parameters.source) for key, call in validated.rollbacks.items()}
    return found


def test_all_of_a_plan_is_recalled() -> None:
    bound = bind_inputs(validate(EVERYTHING, TOOLS))
    again = recalled(bound)
    assert again is not None
    assert (again.inputs, again.approval_digest) == (bound.inputs, bound.approval_digest)
    assert told(again.validated) == told(validate(stored(bound), TOOLS))
    assert again.validated.secrets == {"token", "other"}
    assert len(again.validated.parameters) == 6
    assert "plain" in again.validated.parameters
    with pytest.raises(KeyError):
        again.validated.parameters["gone"]


@settings(deadline=None)
@given(graphs, st.booleans())
def test_order_and_dependencies_are_recalled_as_they_were(graph: list[set[int]], implied: bool) -> None:
    sound = [{after for after in others if after < index} for index, others in enumerate(graph)]
    bound = bind_inputs(validate(plan_of(sound, implied=implied), TOOLS))
    again = recalled(bound)
    assert again is not None
    assert told(again.validated) == told(validate(stored(bound), TOOLS))


def test_nothing_is_recalled_with_other_inputs_or_other_tools() -> None:
    @tool(effect="write")
    def fetch_page(url: str, attempts: int = 1) -> dict[str, object]:
        """Fetch a page."""
        return {"url": url, "attempts": attempts}

    bound = bind_inputs(validate(EVERYTHING, TOOLS))
    push, shell = TOOLS.get("push"), TOOLS.get("shell")
    assert recalled(bound, inputs={"wanted": False}) is None
    assert recalled(bound, ToolRegistry([fetch_page, push, shell])) is None
    assert recalled(bound, ToolRegistry([push, shell])) is None
    assert recalled(bound, ToolRegistry([*TOOLS])) is not None
