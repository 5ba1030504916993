"""OpenTelemetry spans and metrics of runs. They cost almost nothing unless the process has configured an SDK.

Spans: a run, inside it each wait at a gate and each step or other call, inside a call its attempts, and each request to a model. Calls
that models make follow the GenAI conventions. No attribute has a parameter, a result, an error text or a prompt: those may hold secrets.
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram
    from opentelemetry.trace import Span

CounterName: TypeAlias = Literal["plan.runs", "plan.retries", "plan.unknown_outcomes"]
HistogramName: TypeAlias = Literal["plan.gate.wait", "gen_ai.client.operation.duration", "gen_ai.client.token.usage"]
Attributes: TypeAlias = Mapping[str, str | int | None]

_COUNTERS: dict[CounterName, tuple[str, str]] = {
    "plan.runs": ("{run}", "Runs that ended, by outcome"),
    "plan.retries": ("{attempt}", "Attempts that failed and were followed by another"),
    "plan.unknown_outcomes": ("{attempt}", "Writes whose outcome is unknown"),
}
_HISTOGRAMS: dict[HistogramName, tuple[str, str]] = {
    "plan.gate.wait": ("s", "Time from the opening of a gate to its end"),
    "gen_ai.client.operation.duration": ("s", "Time of a question to a model"),
    "gen_ai.client.token.usage": ("{token}", "Tokens of a question to a model"),
}


class OpenSpan:
    """A span that is open, or nothing if the process does not use OpenTelemetry."""

    def __init__(self, span: "Span | None") -> None:
        """Wrap `span`."""
        self._span = span

    def set(self, name: str, value: str | int) -> None:
        """Set an attribute."""
        if self._span is not None:
            self._span.set_attribute(name, value)

    def end(self, outcome: str, *, is_ok: bool) -> None:
        """Set how the work ended. The status is an error unless `is_ok`."""
        self.set("plan.outcome", outcome)
        if not is_ok:
            self.fail()

    def fail(self) -> None:
        """Set the status to an error."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode  # as in `_is_used`

            self._span.set_status(Status(StatusCode.ERROR))


_is_off: ContextVar[bool] = ContextVar("telemetry is off", default=False)


@contextmanager
def nothing_counted() -> Generator[None]:
    """Open no span and count nothing while the block runs, and in every task that it starts: a dry run is no run."""
    token = _is_off.set(True)
    try:
        yield
    finally:
        _is_off.reset(token)


def _is_used() -> bool:
    """Return whether this process uses OpenTelemetry. Importing it takes 50 ms, and only who has imported it can have configured it."""
    return "opentelemetry.trace" in sys.modules and not _is_off.get()


@contextmanager
def span(name: str, attributes: Attributes, *, is_client: bool = False) -> Generator[OpenSpan]:
    """Open a span as the current one. Attributes that are None are left out. An exception marks it as failed, by its type only."""
    if not _is_used():
        yield OpenSpan(None)
        return
    from opentelemetry import trace  # as in `_is_used`

    kind = trace.SpanKind.CLIENT if is_client else trace.SpanKind.INTERNAL
    tracer, given = trace.get_tracer("plan_adapter"), {key: value for key, value in attributes.items() if value is not None}
    with tracer.start_as_current_span(name, kind=kind, attributes=given, record_exception=False, set_status_on_exception=False) as opened:
        wrapped = OpenSpan(opened)
        try:
            yield wrapped
        except BaseException as error:
            wrapped.set("error.type", type(error).__name__)
            wrapped.fail()
            raise


def count(name: CounterName, attributes: Attributes) -> None:
    """Add one to a counter."""
    if _is_used():
        _counter(name).add(1, {key: value for key, value in attributes.items() if value is not None})


def record(name: HistogramName, value: float, attributes: Attributes) -> None:
    """Record a value in a histogram."""
    if _is_used():
        _histogram(name).record(value, {key: value for key, value in attributes.items() if value is not None})


@cache
def _counter(name: CounterName) -> "Counter":
    from opentelemetry import metrics  # as in `_is_used`

    unit, description = _COUNTERS[name]
    return metrics.get_meter("plan_adapter").create_counter(name, unit=unit, description=description)


@cache
def _histogram(name: HistogramName) -> "Histogram":
    from opentelemetry import metrics  # as in `_is_used`

    unit, description = _HISTOGRAMS[name]
    return metrics.get_meter("plan_adapter").create_histogram(name, unit=unit, description=description)
