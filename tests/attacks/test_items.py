"""Tests of items with hostile, ambiguous or altered labels, and of rollbacks in the middle of a `for_each`."""

import unicodedata
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.cli.answering import GateSelector, item_of
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.engine.states import state_of_run
from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.execution.items import MAX_LABEL_CHARACTERS
from plan_adapter.model.plan import Rollback
from plan_adapter.model.readable import call_name, item_option, means_item
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.plans import Input, format_plan
from plan_adapter.runner import acancel_run, aresolve_step, arun_plan
from tests.execution.support import Execution
from tests.gates.world import World
from tests.store.conftest import on_both_databases

HOSTILE = {
    "a line break": "web-1\nweb-2",
    "a carriage return": "web-1\rweb-2",
    "a line separator": "web-1\u2028web-2",
    "an escape sequence": "\x1b[2J\x1b[31mweb-1",
    "a bell": "web\x07",
    "a backspace": "web\x08\x08\x08db",
    "text that runs backwards": "web\u202e1-bd",
    "an invisible character": "web\u200b-1",
    "a long text": "x" * 100_000,
    "white space": " \t ",
    "nothing": "",
    "code": "`rm -rf /`",
    "a link": "](http://evil.example)",
    "HTML": "<script>alert(1)</script>",
    "a shell command": "web-1; rm -rf ~ #",
    "a substitution": "$(reboot)",
    "an option": "--yes",
    "a format string": "{flow_run.name} {0.__class__}",
    "a percent format": "%s%n%(name)s",
    "an expression": "${{ secrets.token }}",
    "a bracket": "web-1] drain[x",
    "an object": {"name": {"deep": "x"}, "id": ["y"]},
    "an object with a hostile name": {"name": "a\nb\x1b"},
    "a list": [["web-1"]],
    "null": None,
    "true": True,
    "a huge number": 2**53 - 1,
    "an unpaired surrogate": "web-\ud800",
}


@tool(effect="read")
def look(value: Any) -> str:
    """Look at it."""
    return "seen"


def loop(values: list[Any], **fields: Any) -> ExecutionPlan:
    plan = ExecutionPlan(description="Look at all", inputs={"values": Input(type="array")})
    plan.options.require_approval = False
    plan.add_step("look", "Look", {"value": 1}, id="each", for_each="${{ inputs.values }}", **fields)
    return plan


async def call_names(values: list[Any], **fields: Any) -> list[str]:
    execution = Execution(loop(values, **fields), [look], inputs={"values": values})
    run = await execution.go()
    assert run.status is PlanStatus.COMPLETED
    return [call_name(attempt.step_id, attempt.item, attempt.label) for attempt in execution.recorder.attempts]


@pytest.mark.parametrize("label", [None, "${{ item }}", "node ${{ item }}"], ids=["by itself", "as label", "in a label"])
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
async def test_call_names_of_hostile_items_are_one_short_visible_line(value: Any, label: str | None) -> None:
    if isinstance(value, str) and "\ud800" in value:
        pytest.skip("no JSON document can hold it, so no input can")
    (name, other) = await call_names([value, value], label=label)
    for shown in (name, other):
        inside = shown.removeprefix("each[").removesuffix("]")
        assert inside.strip()
        assert "`" not in inside
        assert len(inside) <= MAX_LABEL_CHARACTERS + len(" (2)")
        assert not [char for char in inside if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs")]
    assert name != other


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_item_options_in_commands_are_safe_in_a_shell(value: Any) -> None:
    if not isinstance(value, str):
        return
    option = item_option(1, value)
    assert option in (" --item 2", " --item :2") or option == f" --item {value}"
    assert not set(option) & set(";$`'\"\\|&<>(){}*?![]~#\n\r\t")
    assert means_item(option.removeprefix(" --item "), 1, value)


class Nodes:
    """Tools that restart nodes: `failing` nodes fail, `unknown` ones have an unknown outcome, `undone` records rollbacks."""

    def __init__(self, *, failing: tuple[str, ...] = (), unknown: tuple[str, ...] = ()) -> None:
        self.restarted = list[str]()
        self.undone = list[tuple[str, Any]]()

        @tool(effect="write")
        def restart(node: str) -> dict[str, str]:
            """Restart a node."""
            if node in failing:
                raise ValueError(f"{node} does not answer")
            if node in unknown:
                raise UnknownOutcomeError("the connection was lost")
            self.restarted.append(node)
            return {"node": node}

        @tool(effect="write")
        def undo(node: str, result: Any = None) -> None:
            """Undo what was done to a node."""
            self.undone.append((node, result))

        self.tools = ToolRegistry([restart, undo])


def nodes_plan(names: tuple[str, ...] = ("web-1", "web-2", "web-3"), *, drain: bool = False, **fields: Any) -> ExecutionPlan:
    plan = ExecutionPlan(description="Restart all nodes", inputs={"nodes": Input(type="array", default=list(names))})
    plan.options.require_approval = False
    if drain:
        undo = Rollback(tool_name="undo", parameters={"node": "pool"})
        plan.add_step("restart", "Drain", {"node": "pool"}, id="drain", rollback=undo)
    undo = Rollback(tool_name="undo", parameters={"node": "${{ item }}", "result": "${{ result }}"})
    plan.add_step(
        "restart", "Restart", {"node": "${{ item }}"}, id="restart", for_each="${{ inputs.nodes }}", rollback=undo,
        depends_on=["drain"] if drain else [], **fields,
    )  # fmt: skip
    return plan


CASES: dict[str, tuple[dict[str, Any], str, list[str], bool]] = {
    "one item failed": (
        {},
        "rolled back: web-1; not rolled back: web-2 (failed, check by hand); not started: web-3",
        ["web-1"],
        False,
    ),
    "the failed item, too": ({"rollback_failed": True}, "rolled back: web-1, web-2; not started: web-3", ["web-2", "web-1"], True),
    "two steps": (
        {"drain": True},
        "rolled back: restart[web-1], drain; not rolled back: restart[web-2] (failed, check by hand); not started: restart[web-3]",
        ["web-1", "pool"],
        False,
    ),
    "all items despite a failure": (
        {"on_error": "continue"},
        "rolled back: web-1, web-3; not rolled back: web-2 (failed, check by hand)",
        ["web-3", "web-1"],
        False,
    ),
    "a label of the plan": (
        {"label": "node ${{ item }}"},
        "rolled back: node web-1; not rolled back: node web-2 (failed, check by hand); not started: node web-3",
        ["web-1"],
        False,
    ),
}


@pytest.mark.parametrize(("fields", "rollback_text", "undone", "is_rolled_back"), CASES.values(), ids=CASES)
async def test_status_message_markdown_and_prefect_message_agree_on_each_item(
    fields: dict[str, Any], rollback_text: str, undone: list[str], is_rolled_back: bool, store_url: str
) -> None:
    nodes, plan = Nodes(failing=("web-2",)), nodes_plan(**fields)
    if fields.get("on_error") == "continue":  # another failed step ends the run
        plan.add_step("restart", "Fail", {"node": "web-2"}, id="last", depends_on=[])
        plan.options.max_parallel_steps = 1
    async with PlanStore(store_url) as store:
        run = await arun_plan(plan, tools=nodes.tools, store=store, offline=True)
        kept = await store.run(run.id)
        assert (await store.verify(run.id)).ok
    assert (run.message or "").endswith(rollback_text)
    assert kept.message == run.message
    assert rollback_text in (state_of_run(run).message or "")
    assert rollback_text in format_plan(kept).replace("\\", "")
    assert [node for node, _ in nodes.undone] == undone
    assert (kept.step("restart").status, kept.step("restart").rolled_back) == (StepStatus.FAILED, is_rolled_back)


@pytest.mark.parametrize("rollback_failed", [False, True])
async def test_a_later_rollback_reports_each_item(rollback_failed: bool, store_url: str) -> None:
    nodes = Nodes(failing=("web-2",))
    plan = nodes_plan(rollback_failed=rollback_failed, on_error="continue")  # the run ends without a rollback
    async with PlanStore(store_url) as store:
        run = await arun_plan(plan, tools=nodes.tools, store=store, offline=True)
        assert (run.status, nodes.undone) == (PlanStatus.FAILED, [])
        later = await acancel_run(run.id, rollback=True, tools=nodes.tools, store=store, offline=True)
    also = ", web-2" if rollback_failed else ""
    rest = "" if rollback_failed else "; not rolled back: web-2 (failed, check by hand)"
    assert (later.message or "").endswith(f"; rolled back: web-1{also}, web-3{rest}")


async def test_an_item_with_an_unknown_outcome_is_not_rolled_back_unless_resolved_as_done(store_url: str) -> None:
    nodes = Nodes(unknown=("web-2",))
    async with PlanStore(store_url) as store:
        run = await arun_plan(nodes_plan(rollback_failed=True), tools=nodes.tools, store=store, offline=True)
        assert nodes.undone == []
        assert f"the outcome of `restart[web-2]` is unknown: `plan resolve {run.id} restart done|again|abort --item web-2`" in (
            run.message or ""
        )
        resolved = await aresolve_step(run.id, "restart", "abort", by="ana", item=1, store=store)
        assert "ana recorded `abort` for `restart[web-2]`" in (resolved.message or "")
        later = await acancel_run(run.id, rollback=True, tools=nodes.tools, store=store, offline=True)
    assert [node for node, _ in nodes.undone] == ["web-1"]
    assert "; rolled back: web-1; not started: web-3; started, and possibly done: `restart[web-2]`" in (later.message or "")
    assert not later.step("restart").rolled_back


ITEM_REFERENCES: dict[tuple[str, ...], dict[str, int | None]] = {
    ("web-1", "web-2"): {"web-2": 1, "2": 1, ":2": 1, "web-3": None, "": None, "-1": None, "1.0": None, "٢": None, "web-1 ": None},
    ("节点 一", "节点 二"): {"节点 二": 1, "1": 0},
    ("a", "a"): {"a": 0, "a (2)": 1},
    ("2", "1"): {":2": 1, ":1": 0, "2": None, "1": None},  # the label of each is the number of the other
    ("7", "8"): {"8": 1, "2": 1},
}


@pytest.mark.parametrize("labels", ITEM_REFERENCES, ids=", ".join)
async def test_an_item_is_found_by_its_label_or_its_number_and_never_guessed(labels: tuple[str, ...], store_url: str) -> None:
    nodes = Nodes(unknown=labels)
    async with PlanStore(store_url) as store:
        run = await arun_plan(nodes_plan(labels, on_error="continue"), tools=nodes.tools, store=store, offline=True)
        for reference, item in ITEM_REFERENCES[labels].items():
            if item is not None:
                assert (await item_of(GateSelector(run.id, "restart", reference), run, store))[0] == item
                continue
            with pytest.raises(UsageError):
                await item_of(GateSelector(run.id, "restart", reference), run, store)


@pytest.mark.parametrize("table", ["attempts", "gates"])
@on_both_databases
async def test_verify_detects_an_altered_label(table: str, world: World) -> None:
    plan = world.plan(gated=True)
    plan.step("strike").for_each = "${{ ['web-1', 'web-2'] }}"
    plan.step("strike").parameters = {"target": "${{ item }}"}
    going = world.start(plan)
    for _ in range(2):
        gate = await world.gate(step="strike")
        assert gate.label in ("web-1", "web-2")
        await world.answer(gate)
    run = await going
    assert (await world.store.ledger.labels(run.id)) == {("strike", 0): "web-1", ("strike", 1): "web-2"}
    assert (await world.store.verify(run.id)).ok
    await world.sql(f"UPDATE {table} SET label = 'web-9' WHERE label = 'web-1'")
    found = await world.store.verify(run.id)
    assert (found.ok, found.problem is not None and found.problem.table) == (False, table)


async def test_a_secret_in_an_item_is_masked_in_its_label(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "correcthorsebattery")  # a plain word, which an input may contain
    calls = list[str]()

    @tool(effect="read")
    def use(token: str) -> str:
        """Use the token."""
        calls.append(token)
        return "used"

    plan = ExecutionPlan(description="Use it", inputs={"names": Input(type="array")})
    plan.options.require_approval = False
    plan.add_step("use", "Use", {"token": "${{ secrets.token }}"}, id="use")
    plan.add_step("use", "Each", {"token": "${{ item }}"}, id="each", for_each="${{ inputs.names }}", depends_on=["use"])
    async with PlanStore(store_url) as store:
        inputs = {"names": ["a", "correcthorsebattery"]}
        run = await arun_plan(plan, tools=ToolRegistry([use]), inputs=inputs, store=store, offline=True)
        labels, attempts = await store.ledger.labels(run.id), await store.attempts(run.id)
    assert sorted(calls) == ["a", "correcthorsebattery", "correcthorsebattery"]
    assert labels[("each", 0)] == "a"
    assert "correcthorse" not in f"{labels}{attempts}"
