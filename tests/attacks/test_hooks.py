"""Tests of hooks, listeners and approvers that modify or delete their arguments, or raise: the run stays unchanged."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, run_plan, tool
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.approvals import ApprovalRequest, Gate
from plan_adapter.model.hooks import Event
from plan_adapter.model.record import StepRun
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.plans import Input
from plan_adapter.runs import Hooks, aresume_run
from tests.execution.support import Execution
from tests.gates.world import World

STEP_HOOKS = ("on_step_start", "on_step_complete", "on_step_failed")
HOOKS = tuple(field.name for field in fields(Hooks))


def _steps(given: tuple[Any, ...]) -> list[StepRun]:
    return [argument for argument in given if isinstance(argument, StepRun)]


def _set_status(run: PlanRun, *given: Any) -> None:
    run.status, run.reason, run.message = PlanStatus.COMPLETED, None, "all is well"
    for step in [*run.steps, *_steps(given)]:
        step.status, step.outcome, step.error = StepStatus.COMPLETED, Outcome.SUCCEEDED, None


def _fail(run: PlanRun, *given: Any) -> None:
    run.status = PlanStatus.FAILED
    for step in [*run.steps, *_steps(given)]:
        step.status, step.outcome, step.error, step.reason = StepStatus.FAILED, Outcome.UNKNOWN, "a hook says so", "unknown"


def _clear_steps(run: PlanRun, *_: Any) -> None:
    run.steps.clear()


def _reverse_steps(run: PlanRun, *_: Any) -> None:
    run.steps.reverse()
    run.steps = run.steps[:1]


def _write_results(run: PlanRun, *given: Any) -> None:
    for step in [*run.steps, *_steps(given)]:
        if isinstance(step.result, dict):
            step.result["deep"]["list"].append("by a hook")
            step.result.pop("name", None)
        step.result = {"by": "a hook"}


def _write_inputs(run: PlanRun, *_: Any) -> None:
    run.inputs["nodes"].clear()  # type: ignore[union-attr]
    run.inputs.clear()


def _write_metadata(run: PlanRun, *given: Any) -> None:
    run.metadata["owner"]["team"] = "a hook"  # type: ignore[index, call-overload]
    run.outputs["all"] = "by a hook"
    for step in _steps(given):
        step.metadata["note"] = [step.metadata.get("note")]
        step.metadata["self"] = step.metadata  # type: ignore[assignment]


def _change_identity(run: PlanRun, *given: Any) -> None:
    run.id, run.digest, run.approval_digest, run.flow_run_id, run.tenant_id = "x", "x", "x", "x", "x"
    for step in [*run.steps, *_steps(given)]:
        step.id, step.index, step.depends_on, step.attempts, step.rolled_back = "x", 99, ("x",), 99, True


def _delete(run: PlanRun, *given: Any) -> None:
    for target in (*_steps(given), *run.steps, run):
        for field in fields(target):
            with contextlib.suppress(AttributeError):
                delattr(target, field.name)


def _overwrite_frozen(_run: PlanRun, *given: Any) -> None:
    for gate in given:
        if isinstance(gate, Gate):
            for name, value in {"approval_digest": "x", "end": "answered", "step_id": None, "run_id": "x"}.items():
                object.__setattr__(gate, name, value)


def _raise(*_: Any) -> None:
    raise RuntimeError("a hook is broken: 坏了")


def _raise_cancelled(*_: Any) -> None:
    raise asyncio.CancelledError


def _raise_group(*_: Any) -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


async def _await_cancelled(*_: Any) -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


async def _write_later(run: PlanRun, *given: Any) -> None:
    await asyncio.sleep(0)
    _delete(run, *given)


def _return_future_of_another_loop(*_: Any) -> Any:
    return asyncio.new_event_loop().create_future()


MUTATIONS: dict[str, Callable[..., Any]] = {
    "statuses are set": _set_status,
    "all are failed": _fail,
    "steps are cleared": _clear_steps,
    "steps are reordered": _reverse_steps,
    "results are written into": _write_results,
    "inputs are cleared": _write_inputs,
    "metadata is written into": _write_metadata,
    "ids and digests are changed": _change_identity,
    "every attribute is deleted": _delete,
    "frozen fields are overwritten": _overwrite_frozen,
    "an exception": _raise,
    "a cancellation of its own": _raise_cancelled,
    "a group of exceptions": _raise_group,
    "something it awaits is cancelled": _await_cancelled,
    "written into after an await": _write_later,
    "a future of another loop": _return_future_of_another_loop,
}
mutations = pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)


@tool(effect="read")
def give(name: str, nodes: list[str] | None = None) -> dict[str, Any]:
    """Return a nested value."""
    return {"name": name, "deep": {"list": list(nodes or [])}}


@tool(effect="read")
def fall(name: str) -> None:
    """Fail."""
    raise ValueError(f"{name} fell")


def _plan() -> ExecutionPlan:
    plan = ExecutionPlan(description="Give", inputs={"nodes": Input(type="array", default=["a"])}, metadata={"owner": {"team": "sre"}})
    plan.options.require_approval, plan.options.stop_on_error = False, False
    plan.add_step("give", "first", {"name": "first", "nodes": "${{ inputs.nodes }}"}, id="first", metadata={"note": {"a": 1}})
    plan.add_step("fall", "broken", {"name": "broken"}, id="broken", depends_on=["first"])
    plan.add_step("give", "each", {"name": "${{ item }}"}, id="each", for_each="${{ steps.first.result.deep.list }}")
    plan.add_step("give", "last", {"name": "${{ steps.first.result.name }}", "nodes": "${{ inputs.nodes }}"}, id="last")
    plan.outputs = {"all": "${{ steps.last.result }}"}
    return plan


_TIMES = ("id", "created_at", "updated_at", "started_at", "completed_at", "approved_at", "duration_ms", "total_duration_ms")


def _comparable(run: PlanRun) -> dict[str, Any]:
    """Return the record of a run without the values that differ between runs."""
    record = {name: value for name, value in asdict(run).items() if name not in (*_TIMES, "plan_id", "steps")}
    return {**record, "steps": [{name: value for name, value in asdict(step).items() if name not in _TIMES[1:]} for step in run.steps]}


@mutations
@pytest.mark.parametrize("hook", STEP_HOOKS)
async def test_step_hooks_cannot_change_the_run(hook: str, mutation: Callable[..., Any]) -> None:
    untouched = await Execution(_plan(), [give, fall]).go()
    called = list[str]()

    def attack(run: PlanRun, step: StepRun, *error: str) -> Any:
        called.append(step.id)
        return mutation(run, step, *error)

    run = await Execution(_plan(), [give, fall], hooks=Hooks(**{hook: attack})).go()  # type: ignore[arg-type]
    assert called
    assert _comparable(run) == _comparable(untouched)


@mutations
async def test_listeners_cannot_change_the_run(mutation: Callable[..., Any]) -> None:
    untouched = await Execution(_plan(), [give, fall]).go()

    def attack(event: Event) -> None:
        if not asyncio.iscoroutinefunction(mutation):
            mutation(event.run, *([event.step] if event.step else []))

    run = await Execution(_plan(), [give, fall], listener=attack).go()
    assert _comparable(run) == _comparable(untouched)


RECORDED = ("statuses are set", "steps are cleared", "ids and digests are changed", "every attribute is deleted")
RECORDED += ("frozen fields are overwritten", "a cancellation of its own", "written into after an await")


@pytest.mark.parametrize("mutation", [MUTATIONS[name] for name in RECORDED], ids=RECORDED)
async def test_hooks_cannot_change_a_recorded_run_with_a_gate(mutation: Callable[..., Any], world: World) -> None:
    called = set[str]()

    def attack(name: str) -> Callable[..., Any]:
        def hook(*given: Any) -> Any:
            called.add(name)
            return mutation(*given)

        return hook

    plan = world.plan(gated=True)
    plan.metadata, plan.options.stop_on_error = {"owner": {"team": "sre"}}, False
    plan.inputs["nodes"] = Input(type="array", default=["a"])
    plan.add_step("look", "Look at nothing", {"target": "${{ [][size(steps.strike.result)] }}"}, id="broken")
    going = world.start(plan, hooks=Hooks(**{name: attack(name) for name in HOOKS}))
    await world.answer(await world.gate(step="strike"))
    run = await going
    assert called == set(HOOKS)
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, "step_failed")
    assert [(step.id, step.status, step.result) for step in run.steps] == [
        ("look", "completed", "a"),
        ("strike", "completed", "a!"),
        ("broken", "failed", None),
    ]
    assert (run.inputs, run.metadata) == ({"target": "a", "nodes": ["a"]}, {"owner": {"team": "sre"}})
    assert world.struck == ["a"]
    kept = await world.store.run(run.id)
    assert _comparable(kept) == _comparable(run)
    assert [receipt.outcome for receipt in await world.store.receipts(run.id)] == ["succeeded", "succeeded"]
    assert (await world.store.verify(run.id)).ok


@pytest.mark.parametrize("name", ["approval_digest", "step_id", "run_id", "gate_id", "text", "gate_policy"])
async def test_approvers_cannot_change_their_request(name: str, world: World) -> None:
    seen = list[ApprovalRequest]()

    def answer(request: ApprovalRequest) -> bool:
        seen.append(request)
        object.__setattr__(request, name, "0" * 64)
        return True

    going = world.start(approver=CallbackApprover(answer, by="ana"))
    await asyncio.wait({going})
    (gate,) = await world.store.gates.find(open_only=False)
    assert gate.approval_digest == world.bound().approval_digest
    changes_the_answer = name in ("approval_digest", "step_id", "run_id", "gate_id")
    if going.exception() is not None:  # its answer covers other content, so it opens no gate
        assert changes_the_answer
        assert world.struck == []
    else:
        assert going.result().status is PlanStatus.COMPLETED
        (used,) = [row for row in await world.store.approvals(going.result().id) if row.used_at is not None]
        assert (used.approval_digest, used.step_id, used.run_id) == (gate.approval_digest, None, gate.run_id)


@pytest.mark.parametrize("hook", STEP_HOOKS[:2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_run_can_be_resumed_after_a_hook_ends_the_process(hook: str, error: type[BaseException], store_url: str) -> None:
    struck = list[str]()

    @tool(effect="write")
    def strike(name: str) -> str:
        """Strike."""
        struck.append(name)
        return name

    def attack(_run: PlanRun, step: StepRun) -> None:
        if step.id == "a":
            raise error

    plan = ExecutionPlan(description="Strike twice")
    plan.options.require_approval = False
    plan.add_step("strike", "a", {"name": "a"}, id="a")
    plan.add_step("strike", "b", {"name": "b"}, id="b", depends_on=["a"])
    tools = ToolRegistry([strike])
    with pytest.raises(error):
        run_plan(plan, tools=tools, store=PlanStore(store_url), hooks=Hooks(**{hook: attack}), offline=True)  # type: ignore[arg-type]

    async def look() -> tuple[str, list[str], PlanRun]:
        async with PlanStore(store_url) as store:
            (run,) = await store.runs()
            outcomes = [receipt.outcome for receipt in await store.receipts(run.id)]
            return run.id, outcomes, run

    run_id, outcomes, _ = asyncio.run(look())
    assert outcomes in ([], ["succeeded"])  # receipts of steps that end together share a transaction, which may follow the hook

    async def resume() -> PlanRun:
        async with PlanStore(store_url) as store:
            return await aresume_run(run_id, tools=tools, store=store, offline=True)

    if hook == "on_step_complete":
        run = asyncio.run(resume())
        assert struck.count("a") == 1  # its receipt may be committed after the hook; without one, the outcome is unknown
        assert run.status is PlanStatus.COMPLETED or (run.reason is RunReason.UNKNOWN and not outcomes)


def test_hooks_get_copies_that_share_no_mutable_value_with_the_run(tmp_path: Path) -> None:
    seen = list[tuple[PlanRun, StepRun]]()
    run = run_plan(
        _plan(),
        tools=ToolRegistry([give, fall]),
        store=PlanStore(f"sqlite:///{tmp_path / 'plans.db'}"),
        hooks=Hooks(on_step_complete=lambda run, step: seen.append((run, step))),
        offline=True,
    )
    own = {id(part) for part in _parts(run)}
    assert seen
    assert not own & {id(part) for arguments in seen for argument in arguments for part in _parts(argument)}


def _parts(value: Any) -> list[Any]:
    """Return every mutable value in `value`."""
    if isinstance(value, PlanRun | StepRun):
        return [value, *(part for field in fields(value) for part in _parts(getattr(value, field.name)))]
    if isinstance(value, dict):
        return [value, *(part for member in value.values() for part in _parts(member))]
    return [value, *(part for member in value for part in _parts(member))] if isinstance(value, list) else []
