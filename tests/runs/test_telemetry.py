"""Tests of OpenTelemetry spans and metrics, read from in-memory exporters: what is in them, how they nest, and that no secret is."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from plan_adapter import ExecutionPlan, PlanStore
from plan_adapter.agent.goal_model import PromptedGoalModel
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.plan import Step
from plan_adapter.runs import arun_plan
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import bind_inputs, validate
from tests.agent.goal_players import playing, writes
from tests.agent.server import ScriptedServer
from tests.runs.cluster import Cluster

EXPORTER, READER = InMemorySpanExporter(), InMemoryMetricReader()


@pytest.fixture(scope="module", autouse=True)
def sdk() -> None:
    """Configure the SDK, as a user's process does. A process can do so only once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([READER]))


@pytest.fixture(autouse=True)
def no_earlier_spans() -> Iterator[None]:
    """Forget the spans of other tests."""
    EXPORTER.clear()
    yield
    EXPORTER.clear()


def spans() -> dict[str, ReadableSpan]:
    """Return the ended spans by name."""
    return {span.name: span for span in EXPORTER.get_finished_spans()}


def parents() -> dict[str, str]:
    """Return the name of the span around each span."""
    names = {span.context.span_id: span.name for span in EXPORTER.get_finished_spans()}
    return {span.name: names.get(span.parent.span_id, "") if span.parent else "" for span in EXPORTER.get_finished_spans()}


def measured() -> dict[str, dict[tuple[Any, ...], Any]]:
    """Return the values of every metric by the values of its attributes: sums, and the counts of histograms."""
    data = READER.get_metrics_data()
    found = dict[str, dict[tuple[Any, ...], Any]]()
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points: Any = metric.data.data_points
                found[metric.name] = {
                    tuple(sorted((point.attributes or {}).values())): getattr(point, "value", getattr(point, "count", None))
                    for point in points
                }
    return found


def two_steps(**options: Any) -> ExecutionPlan:
    plan = ExecutionPlan(name="move", description="Move", options=ExecutionOptions(require_approval=True, **options))
    first = plan.add_step("do", "Drain", {"what": "s3cr3t-value"}, id="drain")
    plan.add_step("do", "Restart", {"what": "web-1"}, id="restart", depends_on=[first.id])
    return plan


async def test_a_run_is_a_span_around_its_gate_and_its_steps(cluster: Cluster, store: PlanStore) -> None:
    run = await arun_plan(two_steps(), tools=cluster.tools, store=store, offline=True, approver=CallbackApprover(lambda _: True))
    assert parents() == {
        "plan run move": "",
        "plan gate plan": "plan run move",
        "plan step drain": "plan run move",
        "plan step restart": "plan run move",
        "plan attempt do": "plan step restart",
    } | {"plan attempt do": parents()["plan attempt do"]}
    attempts = [span for span in EXPORTER.get_finished_spans() if span.name == "plan attempt do"]
    assert [dict(span.attributes or {}) for span in attempts] == [
        {"plan.step.id": step, "plan.tool": "do", "plan.attempt": 1, "plan.outcome": "succeeded"} for step in ("drain", "restart")
    ]
    of_run = spans()["plan run move"]
    assert (of_run.attributes or {})["plan.run.id"] == run.id
    assert ((of_run.attributes or {})["plan.outcome"], of_run.status.status_code) == ("Completed", StatusCode.UNSET)
    assert "s3cr3t" not in "".join(span.to_json() for span in EXPORTER.get_finished_spans())
    found = measured()
    assert found["plan.runs"]["Completed", "move"] >= 1
    assert found["plan.gate.wait"]["answered", "approval"] >= 1


async def test_retries_failures_and_their_spans(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("s3cr3t-value")
    plan = two_steps()
    plan.options.require_approval = False
    plan.step("drain").max_retries = 1
    plan.step("drain").effect = "idempotent_write"
    await arun_plan(plan, tools=cluster.tools, store=store, offline=True)
    attempts = [span for span in EXPORTER.get_finished_spans() if span.name == "plan attempt do"]
    assert [((span.attributes or {})["plan.attempt"], span.status.status_code) for span in attempts] == [
        (1, StatusCode.ERROR),
        (2, StatusCode.ERROR),
    ]
    assert spans()["plan run move"].status.status_code is StatusCode.ERROR
    assert measured()["plan.retries"][("do",)] >= 1
    assert "is broken" not in "".join(span.to_json() for span in EXPORTER.get_finished_spans())


async def test_an_unknown_outcome_is_counted(cluster: Cluster, store: PlanStore) -> None:
    plan = ExecutionPlan(name="hang", description="Hang", options=ExecutionOptions(require_approval=False))
    plan.add_step("hang", "Hang", {"what": "a"}, id="a", timeout_ms=50)
    await arun_plan(plan, tools=cluster.tools, store=store, offline=True)
    assert (spans()["plan step a"].attributes or {})["plan.outcome"] == "unknown"
    assert measured()["plan.unknown_outcomes"][("hang",)] == 1
    assert measured()["plan.runs"]["UnknownOutcome", "hang"] == 1


async def test_the_calls_of_a_model_follow_the_conventions_for_generative_ai(store: PlanStore) -> None:
    @tool(effect="write")
    def post(note: str) -> str:
        """Post a note."""
        return note

    plan = ExecutionPlan(name="tell", description="Tell", options=ExecutionOptions(require_approval=False))
    plan.steps.append(Step(id="tell", goal="Tell them", tools=["post"], done_when="They were told"))

    def play(seen: Any) -> Any:
        done = seen.proof("post")
        return seen.end(done) if done else writes("post", note="hello")

    with ScriptedServer([playing(play)]) as server:
        model = OpenAIModel("scripted", base_url=server.url, api_key="k3y-s3cr3t")
        bound = bind_inputs(validate(plan, ToolRegistry([post])))
        request = RunRequest(goal_model=PromptedGoalModel(model, ToolRegistry([post])), approver=CallbackApprover(lambda _: True))
        run = await execute_plan(bound, run_request=request, store=store, offline=True)
    assert run.outcome == "Completed", run.message
    chat = dict(spans()["chat scripted"].attributes or {})
    assert (chat["gen_ai.operation.name"], chat["gen_ai.request.model"]) == ("chat", "scripted")
    assert isinstance(chat["gen_ai.usage.input_tokens"], int)
    call = dict(spans()["plan attempt post"].attributes or {})
    assert (call["gen_ai.operation.name"], call["gen_ai.tool.name"]) == ("execute_tool", "post")
    assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"} <= measured().keys()
    everything = "".join(span.to_json() for span in EXPORTER.get_finished_spans())
    assert not any(text in everything for text in ("k3y-s3cr3t", "hello", "Tell them"))


async def test_a_cancelled_run_ends_its_spans(cluster: Cluster, store: PlanStore) -> None:
    cluster.hanging = asyncio.Event()
    plan = ExecutionPlan(name="stuck", description="Stuck", options=ExecutionOptions(require_approval=False))
    plan.add_step("hang", "Hang", {"what": "a"}, id="a")
    work = asyncio.ensure_future(arun_plan(plan, tools=cluster.tools, store=store, offline=True))
    await cluster.hanging.wait()
    (run,) = await store.runs()
    await store.ledger.request_cancel(run.id, "stop it")
    ended = await work
    assert ended.outcome == "Cancelled", ended.message
    assert {"plan run stuck", "plan step a", "plan attempt hang"} <= spans().keys()
