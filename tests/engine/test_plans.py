"""Tests of whole plans on a Prefect server: what its API shows after they ran."""

import asyncio
import pickle
from pathlib import Path
from uuid import UUID

import cloudpickle
import pytest
from prefect import Flow, get_client, tags
from prefect.client.schemas.objects import TaskRun

from plan_adapter.checks import approve
from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import acancel_run, aresume_run, arun_plan, compile_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import ToolContext, tool
from plan_adapter.validation import validate
from tests.engine.calls import flow_run, logs_of, states_of, task_runs

pytestmark = pytest.mark.usefixtures("prefect_server")


@tool(effect="read")
def give(value: object = None) -> object:
    """Return the value."""
    return value


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


def a_plan(**options: object) -> ExecutionPlan:
    plan = ExecutionPlan(name="a plan", description="Say it twice")
    plan.options.require_approval = False
    for name, value in options.items():
        setattr(plan.options, name, value)
    return plan


async def test_steps_are_task_runs_connected_by_their_dependencies(store: PlanStore) -> None:
    plan = a_plan(allow_parallel=True)
    plan.add_step("give", "names", {"value": ["a", "b"]}, id="names")
    plan.add_step("give", "each", {"value": "${{ item }}"}, id="each", for_each="${{ steps.names.result }}")
    plan.add_step("give", "no", {"value": 1}, id="never", when="${{ steps.names.status == 'failed' }}")
    plan.add_step("give", "all", {"value": "${{ steps.each.result }}"}, id="all", depends_on=["never", "names"])
    run = await arun_plan(plan, tools=ToolRegistry([give]), store=store)
    assert (run.status, run.step("all").result) == (PlanStatus.COMPLETED, ["a", "b"])
    shown = await _shown(run, "names", "each[a]", "each[b]", "never", "all")
    assert {name: (run.state_name, _upstream(run, shown)) for name, run in shown.items()} == {
        "names": ("Completed", set()),
        "each[a]": ("Completed", {"names"}),
        "each[b]": ("Completed", {"names"}),
        "never": ("Skipped", {"names"}),
        "all": ("Completed", {"each[a]", "each[b]", "never"}),
    }


async def test_flow_run_names_combine_plan_and_run_id_even_if_several_start_at_once(store: PlanStore) -> None:
    names = ["{flow_run.id} <b>50%</b> a/b", "发布", "x" * 300]
    plans = [ExecutionPlan(name=name, description="Say it") for name in names]
    for plan in plans:
        plan.options.require_approval = False
        plan.add_step("give", "once", {"value": 1})
    runs = await asyncio.gather(*(arun_plan(plan, tools=ToolRegistry([give]), store=store) for plan in plans))
    shown = [(await flow_run(UUID(run.flow_run_id or ""))).name for run in runs]
    expected = ["{flow_run.id} b 50 b a b", "发布", "x" * 187]
    assert shown == [f"{name} {run.id[:13]}" for name, run in zip(expected, runs, strict=True)]


async def test_a_failed_step_is_shown_with_its_retries_and_skipped_dependents(store: PlanStore) -> None:
    @tool(effect="read")
    async def fall(context: ToolContext) -> None:
        """Fall."""
        context.logger.info("falling %d", context.attempt)
        raise ValueError(f"fell {context.attempt}")

    plan = a_plan()
    plan.add_step("give", "first", {"value": 1}, id="first")
    plan.add_step("fall", "second", id="second", max_retries=1, retry_delay_ms=1, depends_on=["first"])
    plan.add_step("give", "third", {"value": 1}, id="third", depends_on=["second"])
    run = await arun_plan(plan, tools=ToolRegistry([give, fall]), store=store)
    shown = await _shown(run, "first", "second", "third")
    second, third = shown["second"], shown["third"]
    states = [(state.name, state.message or None) for state in await states_of(second, 4)]
    assert states == [
        ("Running", None),
        ("AwaitingRetry", None),
        ("Retrying", None),
        ("Failed", "ValueError: fell 2"),
    ]
    assert (second.run_count, second.empirical_policy.retries, second.empirical_policy.retry_delay) == (2, 1, [0.001])
    assert third.state is not None
    assert (third.state_name, third.state.message) == ("Skipped", run.step("third").reason)
    messages = [message for _, message in await logs_of(second, 4)]
    assert [message for message in messages if message.startswith("falling")] == ["falling 1", "falling 2"]
    assert run.flow_run_id is not None
    final = (await flow_run(UUID(run.flow_run_id))).state
    assert final is not None
    message, _, link = str(final.message).partition("; report: ")
    assert (final.name, message) == ("Partial", f"1 of 3 steps done, 1 failed, 1 skipped: {run.message}")
    assert "/artifacts/artifact/" in link


async def test_a_resumed_run_keeps_its_flow_run_and_shows_carried_steps(store: PlanStore) -> None:
    broken = [True]

    @tool(effect="read")
    def fail_once() -> str:
        """Fail the first time."""
        if broken.pop() if broken else False:
            raise ValueError("not yet")
        return "done"

    plan = a_plan()
    plan.add_step("give", "first", {"value": 1}, id="first")
    plan.add_step("fail_once", "second", id="second", depends_on=["first"])
    tools = ToolRegistry([give, fail_once])
    before = await arun_plan(plan, tools=tools, store=store)
    old = await _shown(before, "first", "second")
    after = await aresume_run(before.id, tools=tools, store=store)
    assert (before.status, after.status, after.flow_run_id) == (PlanStatus.PARTIAL, PlanStatus.COMPLETED, before.flow_run_id)
    while (new := await _shown(after, "first", "second"))["second"].state_name == "Failed":
        await asyncio.sleep(0.1)
    assert {name: (run.id, run.state_name) for name, run in new.items()} == {
        "first": (old["first"].id, "Carried"),
        "second": (old["second"].id, "Completed"),
    }


async def test_a_cancelled_run_ends_as_cancelled_with_the_reason(store: PlanStore) -> None:
    started = asyncio.Event()

    @tool(effect="read")
    async def wait(context: ToolContext) -> None:
        """Wait forever."""
        run_ids.append(context.run_id)
        started.set()
        await asyncio.Event().wait()

    run_ids: list[str] = []
    plan = a_plan()
    plan.add_step("wait", "wait", id="wait")
    running = asyncio.ensure_future(arun_plan(plan, tools=ToolRegistry([wait]), store=store))
    await started.wait()
    await acancel_run(run_ids[0], reason="ana: wrong host", store=store)
    run = await running
    shown = (await _shown(run, "wait"))["wait"]
    assert run.flow_run_id is not None
    final = (await flow_run(UUID(run.flow_run_id))).state
    assert final is not None
    assert (run.status, final.name, str(final.message).partition("; report: ")[0]) == (
        PlanStatus.CANCELLED,
        "Cancelled",
        "0 of 1 step done, 1 failed: ana: wrong host",
    )
    assert shown.state_name == "Cancelled"


async def test_a_compiled_plan_is_a_flow_that_returns_its_run(store: PlanStore) -> None:
    plan = a_plan()
    plan.inputs = {"who": plan_input("string")}
    plan.add_step("give", "greet", {"value": "hello ${{ inputs.who }}"}, id="greet")
    compiled = compile_plan(validate(plan, ToolRegistry([give])), store=store)
    with tags("nightly"):
        run = await compiled(who="世界")
    assert run.step("greet").result == "hello 世界"
    shown = (await _shown(run, "greet"))["greet"]
    assert (shown.state_name, shown.tags) == ("Completed", ["nightly"])


async def test_plan_tags_are_on_the_flow_run_and_step_tags_on_the_task_runs(store: PlanStore) -> None:
    plan = a_plan()
    plan.tags = ["web", "生产"]
    plan.add_step("give", "tagged", {"value": 1}, id="tagged", tags=["db limit"])
    plan.add_step("give", "plain", {"value": 2}, id="plain")
    run = await arun_plan(plan, tools=ToolRegistry([give]), store=store)
    shown = await _shown(run, "tagged", "plain")
    assert {name: task_run.tags for name, task_run in shown.items()} == {"tagged": ["db limit"], "plain": []}
    assert (await flow_run(UUID(run.flow_run_id or ""))).tags == ["web", "生产"]


async def test_plan_tags_are_added_to_the_callers_tags(store: PlanStore) -> None:
    plan = a_plan()
    plan.tags = ["web", "nightly"]
    plan.add_step("give", "greet", {"value": 1}, id="greet")
    with tags("nightly"):
        run = await compile_plan(validate(plan, ToolRegistry([give])), store=store)()
    assert (await flow_run(UUID(run.flow_run_id or ""))).tags == ["nightly", "web"]


NAMES = [
    ("restart ${{ inputs.host }} / ${{ inputs.times + 1 }} × 50%", "restart 网-1 / 3 × 50%"),
    ("log in with ${{ inputs.password }} at ${{ inputs.address }}", "log in with *** at db://ana:***@db-1"),
    ("one\nline \u202e{flow_run.name}", "one line \\u202e{flow_run.name}"),
    ("${{ inputs.times }}", "2"),
    ("x" * 199 + "e\u0301y", "x" * 199),
]


RARE_NAMES = [pytest.param(*name, marks=pytest.mark.thorough) for name in NAMES[2:]]


@pytest.mark.parametrize(("run_name", "name"), NAMES[:2] + RARE_NAMES, ids=["inputs", "secrets", "invisible", "a number", "too long"])
async def test_a_plan_can_name_its_flow_runs(store: PlanStore, run_name: str, name: str) -> None:
    plan = a_plan()
    plan.inputs = {"host": Input(), "times": Input(type="integer", default=2), "password": Input(default="hush-hush")}
    plan.inputs["address"] = Input(default="db://ana:hush@db-1")
    plan.run_name = run_name
    plan.add_step("give", "greet", {"value": 1}, id="greet")
    run = await arun_plan(plan, inputs={"host": "网-1"}, tools=ToolRegistry([give]), store=store)
    assert (await flow_run(UUID(run.flow_run_id or ""))).name == name
    run = await compile_plan(validate(plan, ToolRegistry([give])), store=store)(host="网-1")
    assert (await flow_run(UUID(run.flow_run_id or ""))).name == name, "a deployment names its flow runs when they start"


async def test_a_run_name_that_cannot_be_evaluated_falls_back_to_the_default(store: PlanStore) -> None:
    plan = a_plan()
    plan.inputs, plan.run_name = {"names": Input(type="array", default=[])}, "${{ inputs.names[0] }}"
    plan.add_step("give", "greet", {"value": 1}, id="greet")
    run = await arun_plan(plan, tools=ToolRegistry([give]), store=store)
    assert (await flow_run(UUID(run.flow_run_id or ""))).name == f"a plan {run.id[:13]}"


async def test_a_prefect_concurrency_limit_on_a_step_tag_is_respected(store: PlanStore) -> None:
    together, most = 0, 0

    @tool(effect="read")
    async def work() -> None:
        """Record how many calls run at once."""
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.05)
        together -= 1

    plan = a_plan(allow_parallel=True, max_parallel_steps=3)
    for name in ("a", "b", "c"):
        plan.add_step("work", name, id=name, tags=["one-at-a-time"])
    async with get_client() as client:
        await client.create_concurrency_limit(tag="one-at-a-time", concurrency_limit=1)
    run = await arun_plan(plan, tools=ToolRegistry([work]), store=store)
    assert (run.status, most) == (PlanStatus.COMPLETED, 1)


async def test_a_compiled_plan_without_an_approval_waits_for_one_before_its_first_step(store: PlanStore) -> None:
    plan = a_plan(require_approval=True)
    plan.add_step("give", "greet", {"value": 1}, id="greet")
    tools = ToolRegistry([give])
    running = asyncio.ensure_future(compile_plan(validate(plan, tools), store=store)())
    while not (gates := await store.gates.find()):
        await store.changed(0.5)
    assert await store.attempts(gates[0].run_id) == []
    request = ApprovalRequest(gates[0].approval_digest, plan.name, "", "", run_id=gates[0].run_id, gate_id=gates[0].id)
    await store.gates.answer(gates[0].id, answer_to(request, decision="approve", by="ana", known_by="os_user"))
    assert (await running).status is PlanStatus.COMPLETED
    run = await compile_plan(validate(plan, tools), store=store, approval=approve(plan, tools=tools, by="ana"))()
    assert run.status is PlanStatus.COMPLETED


def test_a_compiled_plan_can_be_pickled_for_the_process_that_serves_it() -> None:
    plan = a_plan()
    plan.inputs = {"who": plan_input("string")}
    plan.add_step("give", "greet", {"value": "hello ${{ inputs.who }}"}, id="greet")
    copy = pickle.loads(cloudpickle.dumps(compile_plan(validate(plan, ToolRegistry([give])))))
    assert isinstance(copy, Flow)
    assert copy.parameters.required == ["who"]


def plan_input(kind: str) -> object:
    from plan_adapter.model.options import Input

    return Input.model_validate({"type": kind})


async def _shown(run: PlanRun, *names: str) -> dict[str, TaskRun]:
    assert run.flow_run_id is not None
    return await task_runs(UUID(run.flow_run_id), names)


def _upstream(run: TaskRun, others: dict[str, TaskRun]) -> set[str]:
    names = {other.id: name for name, other in others.items()}
    return {names[edge.id] for edge in run.task_inputs.get("wait_for", []) if edge.input_type == "task_run"}
