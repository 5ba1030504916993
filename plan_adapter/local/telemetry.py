"""OpenTelemetry spans and metrics of runs. They cost almost nothing unless the process has configured an SDK.

Spans: a run, inside it each wait at a gate and each step or other call, inside a call its attempts, and each request to a model. Calls
that models make follow the GenAI conventions. No attribute has a parameter, a result, an error text or a prompt: those may hold secrets.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import metrics, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

_TRACER = trace.get_tracer("plan_adapter")
_METER = metrics.get_meter("plan_adapter")

RUNS = _METER.create_counter("plan.runs", unit="{run}", description="Runs that ended, by outcome")
RETRIES = _METER.create_counter("plan.retries", unit="{attempt}", description="Attempts that failed and were followed by another")
UNKNOWN_OUTCOMES = _METER.create_counter("plan.unknown_outcomes", unit="{attempt}", description="Writes whose outcome is unknown")
GATE_WAIT = _METER.create_histogram("plan.gate.wait", unit="s", description="Time from the opening of a gate to its end")
MODEL_SECONDS = _METER.create_histogram("gen_ai.client.operation.duration", unit="s", description="Time of a question to a model")
MODEL_TOKENS = _METER.create_histogram("gen_ai.client.token.usage", unit="{token}", description="Tokens of a question to a model")


@contextmanager
def span(name: str, attributes: Mapping[str, str | int | None], *, is_client: bool = False) -> Generator[Span]:
    """Open a span as the current one. Attributes that are None are left out. An exception marks it as failed, by its type only."""
    kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
    given = {key: value for key, value in attributes.items() if value is not None}
    with _TRACER.start_as_current_span(name, kind=kind, attributes=given, record_exception=False, set_status_on_exception=False) as opened:
        try:
            yield opened
        except BaseException as error:
            opened.set_attribute("error.type", type(error).__name__)
            opened.set_status(Status(StatusCode.ERROR))
            raise


def end_span(opened: Span, outcome: str, *, is_ok: bool) -> None:
    """Set how the work of a span ended. Its status is an error unless `is_ok`."""
    opened.set_attribute("plan.outcome", outcome)
    if not is_ok:
        opened.set_status(Status(StatusCode.ERROR))
