"""The table of answers: each decision at each kind of gate, given on the command line, from Python and by an agent through MCP.

An agent can give no answer at all. An answer that is refused leaves the gate open; after one that is accepted, the run is resumed.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plan_adapter import PlanAdapterError, PlanStore
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.model.approvals import Gate
from plan_adapter.runs import aresolve_step
from tests.cli.conftest import Plan
from tests.cli.gated import resumed
from tests.cli.test_questions import ACT, DECIDE
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.mcp.harness import Harness

DECISIONS = ("approve", "reject", "request_changes", "answer", "resolve")
ANSWER = {"choice": "switch", "nodes": 3}


class Place(NamedTuple):
    """A kind of gate: the plan that waits there, with which exit code it does, and the step that waits."""

    document: Callable[[], Any]
    code: int
    step: str | None
    item: int | None = None


PLACES: Mapping[str, Place] = {
    "plan": Place(lambda: document(GREET, **NEEDS_APPROVAL), 6, None),
    "step": Place(lambda: document({**GREET, "requires_approval": True}), 6, "greet"),
    "item": Place(lambda: document({**GREET, "for_each": "${{ ['A'] }}", "requires_approval": True}), 6, "greet", 0),
    "question": Place(lambda: document(DECIDE, ACT), 6, "decide"),
    "outcome": Place(lambda: document(step("lost", "get_lost")), 7, "lost"),
}


class Cell(NamedTuple):
    """The exit code of the command, a part of its message, and the exit code of the resumed run; None if the answer is refused.

    `python` is the error of the same answer from Python.
    """

    code: int
    message: str
    resumed: int | None
    python: type[PlanAdapterError] | None


APPROVED, REJECTED, ASKED_AGAIN = Cell(0, "approved", 0, None), Cell(0, "rejected", 3, None), Cell(0, "changes", 6, None)
NO_QUESTION = Cell(2, "asks for an approval, not a question: `plan approve RUN greet", None, NotApprovedError)
DONE_BY_HAND, IS_OUTCOME = (
    Cell(0, "recorded `done` for `greet", 0, None),
    Cell(8, "`plan resolve RUN lost done|again|abort`", None, RunConflictError),
)

TABLE: Mapping[str, Mapping[str, Cell]] = {
    "plan": {
        "approve": APPROVED,
        "reject": REJECTED,
        "request_changes": ASKED_AGAIN,
        "answer": Cell(8, "step `greet` of run RUN does not wait yet; the plan itself does", None, NotApprovedError),
        "resolve": DONE_BY_HAND._replace(resumed=6),  # the plan still needs its approval
    },
    "step": dict(zip(DECISIONS, (APPROVED, REJECTED, ASKED_AGAIN, NO_QUESTION, DONE_BY_HAND), strict=True)),
    "item": dict(zip(DECISIONS, (APPROVED, REJECTED, ASKED_AGAIN, NO_QUESTION, DONE_BY_HAND), strict=True)),
    "question": {
        "approve": Cell(2, "this gate asks a question: `plan answer RUN decide --digest", None, NotApprovedError),
        "reject": REJECTED,
        "request_changes": ASKED_AGAIN,
        "answer": Cell(0, "answered", 0, None),
        "resolve": Cell(8, "`decide` asks a question: answer it with `plan answer RUN decide`", None, RunConflictError),
    },
    "outcome": {**dict.fromkeys(DECISIONS, IS_OUTCOME), "resolve": Cell(0, "done", 0, None)},
}
CELLS = [pytest.param(kind, decision, id=f"{kind}-{decision}") for kind in PLACES for decision in DECISIONS]


def waiting_at(kind: str, plan: Plan) -> str:
    """Return the id of a run that waits at a gate of this kind, without a process."""
    result = plan("run", PLACES[kind].document(), "--offline", "--json", *TOOLS)
    assert result.code == PLACES[kind].code, result.err
    return result.run["id"]


def command(decision: str, run_id: str, place: Place) -> list[str]:
    """Return the command that gives this answer at this place."""
    item = [] if place.item is None else ["--item", str(place.item + 1)]  # people count from 1
    at = [] if place.step is None else ["--step", place.step, *item]
    return {
        "approve": ["approve", run_id, *at, "--yes"],
        "reject": ["reject", run_id, *at],
        "request_changes": ["reject", run_id, *at, "--changes", "--note", "other"],
        "answer": ["answer", run_id, place.step or "greet", *(f"{name}={value}" for name, value in ANSWER.items())],
        "resolve": ["resolve", run_id, place.step or "greet", *item, "done"],
    }[decision]


@pytest.mark.parametrize(("kind", "decision"), CELLS)
def test_an_answer_on_the_command_line(kind: str, decision: str, plan: Plan) -> None:
    run_id, place, cell = waiting_at(kind, plan), PLACES[kind], TABLE[kind][decision]
    before = plan("gates", "--json").lines
    result = plan(*command(decision, run_id, place))
    assert (result.code, cell.message.replace("RUN", run_id) in result.out + result.err) == (cell.code, True), result.err
    assert "\\" not in plan("show", run_id).out + plan("runs").out  # no escapes of Markdown
    if cell.resumed is None:
        assert plan("gates", "--json").lines == before, "a refused answer leaves the gate open"
    else:
        assert resumed(plan, run_id).code == cell.resumed


async def answer_from_python(run_id: str, decision: Any, place: Place, gate: Gate | None, store: PlanStore) -> None:
    """Give this answer as a process that has opened the store does."""
    if decision == "resolve":
        await aresolve_step(run_id, place.step or "greet", "done", item=place.item, store=store)
        return
    if gate is None:
        raise RunConflictError("no gate is open")
    is_answer = decision == "answer"
    given = answer_to(request_of(gate), decision="approve" if is_answer else decision, by="ana", known_by="os_user")
    await store.gates.answer(gate.id, replace(given, result=ANSWER if is_answer else None))


@pytest.mark.parametrize(("kind", "decision"), CELLS)
def test_an_answer_from_python(kind: str, decision: str, plan: Plan) -> None:
    run_id, place, cell = waiting_at(kind, plan), PLACES[kind], TABLE[kind][decision]

    async def give() -> None:
        async with PlanStore() as store:
            gate = next(iter(await store.gates.find(run_id=run_id)), None)
            with nullcontext() if cell.python is None else pytest.raises(cell.python):
                await answer_from_python(run_id, decision, place, gate, store)
            if cell.python is not None:
                assert await store.gates.find(run_id=run_id) == ([] if gate is None else [gate]), "a refused answer leaves the gate open"

    asyncio.run(give())
    if cell.resumed is not None:
        assert resumed(plan, run_id).code == cell.resumed


@pytest.mark.parametrize("kind", PLACES)
def test_an_agent_has_no_tool_that_answers(kind: str, plan: Plan, tmp_path: Path) -> None:
    run_id = waiting_at(kind, plan)

    async def try_each() -> None:
        async with Harness(tmp_path).agent() as agent, PlanStore() as store:
            before = await store.gates.find(run_id=run_id)
            for decision in DECISIONS:
                refused = await agent.refused(f"{decision}_run", run=run_id, step=PLACES[kind].step)
                assert f"there is no tool `{decision}_run`" in refused["message"]
            assert await store.gates.find(run_id=run_id) == before

    asyncio.run(try_each())
