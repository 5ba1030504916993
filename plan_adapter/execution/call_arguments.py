"""The arguments that every attempt of a call shares."""

import hashlib
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from plan_adapter.errors import ExpressionError, ToolError
from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.execution.scope import RunScope, step_logger
from plan_adapter.expressions import Template, Variables
from plan_adapter.plan import CallKind, Effect, Step
from plan_adapter.readable import call_name
from plan_adapter.record import Attempt, StepRun
from plan_adapter.tools.tool import Tool, ToolContext
from plan_adapter.validation import ValidatedPlan


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a step is tried again, and the seconds between: `delay`, times `backoff` each time, give or take `jitter` (a share)."""

    retries: int
    delay: float
    backoff: float
    jitter: float

    @classmethod
    def of(cls, step: Step) -> "RetryPolicy":
        """Return the policy that `step` writes."""
        return cls(step.max_retries, step.retry_delay_ms / 1000, step.retry_backoff, step.retry_jitter)

    def planned(self) -> list[float]:
        """Return the seconds before each retry, without jitter."""
        return [self.delay * self.backoff**number for number in range(self.retries)]

    def delay_after(self, end: AttemptEnd, tries: int) -> float | None:
        """Return the seconds until the next attempt after `tries` of them, or None where none follows.

        Only known failures are tried again: an unknown outcome is a person's matter, and a stopped run makes no attempts.
        """
        if end.outcome != "failed" or not end.can_retry or tries > self.retries:
            return None
        planned = self.delay * self.backoff ** (tries - 1)
        return planned * (1 + random.uniform(-self.jitter, self.jitter)) if self.jitter else planned  # noqa: S311  # no secret


@dataclass(frozen=True, slots=True)
class Called:
    """What a call makes: which tool it calls with what, and how often, for which step; `kind` tells what undoes the step from the step."""

    step_id: str
    tool: Tool[..., Any]
    parameters: Template
    effect: Effect
    retry: RetryPolicy
    upstream: tuple[str, ...]
    done_when: Template | None = None
    result: JsonValue = None  # what the parameters of a rollback may use as `result`
    kind: CallKind = "step"

    @property
    def name(self) -> str:
        """What it is called in Prefect, in hooks and in messages."""
        return call_name(self.step_id, None, kind=self.kind)

    @classmethod
    def by(cls, step: Step, validated: ValidatedPlan) -> "Called":
        """Return what `step` itself calls; its effect is what it declares, else that of its tool."""
        tool = validated.tools[step.id]
        return cls(
            step_id=step.id,
            tool=tool,
            parameters=validated.parameters[step.id],
            effect=step.effect or tool.effect,
            retry=RetryPolicy.of(step),
            upstream=validated.reduced[step.id],
            done_when=validated.done_when.get(step.id),
        )


class CallArguments:
    """What one call hands its tool, of which each attempt is given the same."""

    def __init__(self, scope: RunScope, called: Called, step_run: StepRun, *, item: int | None, value: JsonValue, name: str) -> None:
        """Resolve what is `called` with `value` as its `item`; `name` is what people are shown."""
        self._scope = scope
        self._called = called
        self._step_run = step_run
        self._item = item
        self._value = value
        self._name = name

    def parameters(self) -> dict[str, JsonValue]:
        """Return the parameters as everybody but the tool sees them: for a secret the expression stands that uses it."""
        return _as_mapping(self._called.parameters.resolve_openly(self._variables()))

    async def with_secrets(self, parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Return what the tool is handed for `parameters`."""
        template = self._called.parameters
        if not template.secrets:
            return parameters
        values = await self._scope.secrets.values(template.secrets)
        return _as_mapping(template.resolve(self._variables(values)))

    async def parameters_of(self, lost: Attempt) -> dict[str, JsonValue]:
        """Return what the tool was handed in `lost`; the record holds the names of its secrets only."""
        if not self._called.parameters.secrets:
            return lost.parameters
        parameters = self.parameters()
        if parameters != lost.parameters:
            raise ToolError("its parameters would be others now")
        return await self.with_secrets(parameters)

    def context(self, parameters: dict[str, JsonValue], *, attempt: int, timeout_seconds: float | None) -> ToolContext:
        """Return what the tool may know of an attempt with `parameters`, of this number, which may take `timeout_seconds` from now."""
        run = self._scope.run
        # Of the call alone: whoever is called sees a repeat also where a new version changed the rest of the plan.
        called = self._called
        seed = json.dumps([run.id, called.kind, called.step_id, self._item, called.tool.name, parameters], sort_keys=True)
        history, unit = self._scope.history.calls(called.kind), (called.step_id, self._item)
        begun = history.repeatable.get(unit) or history.cut_reads.get(unit)
        limits = [time.monotonic() + timeout_seconds] if timeout_seconds else []
        if self._scope.clock is not None and self._scope.clock.deadline is not None:
            limits.append(self._scope.clock.deadline)
        return ToolContext(
            run_id=run.id,
            step_id=called.step_id,
            kind=called.kind,
            attempt=attempt,
            idempotency_key=hashlib.sha256(seed.encode()).hexdigest() if begun is None else begun.idempotency_key,
            agent_id=run.agent_id,
            org_id=run.org_id,
            tenant_id=run.tenant_id,
            logger=step_logger(self._scope, self._step_run, self._name),
            deadline=min(limits, default=None),
            redaction=self._scope.secrets.redactor,
        )

    def _variables(self, secrets: Mapping[str, str] | None = None) -> Variables:
        return self._scope.variables(item=self._value, result=self._called.result, secrets=secrets)


def _as_mapping(resolved: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(resolved, dict):
        raise ExpressionError(f"the parameters are {type(resolved).__name__}, not a mapping")
    return resolved
