"""The arguments that all attempts of a call share, and its retry policy. Builds idempotency keys and tool contexts."""

import hashlib
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.execution.scope import RunScope, step_logger
from plan_adapter.expressions import Template, Variables
from plan_adapter.model.errors import ExpressionError, ToolError
from plan_adapter.model.options import CallKind, Effect
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import MASK, call_name
from plan_adapter.model.record import Attempt, StepRun
from plan_adapter.model.values import has_unknown
from plan_adapter.tools.tool import CommandLog, Tool, ToolContext
from plan_adapter.validation import ValidatedPlan


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a step is retried, and how long each wait is.

    The first wait is `delay` seconds. Each further wait is multiplied by `backoff` and varies by the share `jitter`.
    """

    retries: int
    delay: float
    backoff: float
    jitter: float

    @classmethod
    def of(cls, step: Step) -> "RetryPolicy":
        """Return the policy declared by `step`."""
        return cls(step.max_retries, step.retry_delay_ms / 1000, step.retry_backoff, step.retry_jitter)

    def planned_delays(self) -> list[float]:
        """Return the seconds before each retry, without jitter."""
        return [self.delay * self.backoff**number for number in range(self.retries)]

    def delay_after(self, end: AttemptEnd, tries: int) -> float | None:
        """Return the seconds until the next attempt after `tries` attempts, or None if there is none.

        Only known failures are retried. A person must resolve an unknown outcome, and a stopped run makes no more attempts.
        """
        if end.outcome != "failed" or not end.can_retry or tries > self.retries:
            return None
        planned = self.delay * self.backoff ** (tries - 1)
        return planned * (1 + random.uniform(-self.jitter, self.jitter)) if self.jitter else planned  # noqa: S311  # not used for security


NO_RETRY = RetryPolicy(retries=0, delay=0.0, backoff=1.0, jitter=0.0)


@dataclass(frozen=True, slots=True)
class CallTarget:
    """What a call invokes: the tool, its parameters and its retry policy. `kind` separates a rollback from its step."""

    step_id: str
    tool: Tool[..., Any]
    parameters: Template
    effect: Effect
    retry: RetryPolicy
    upstream: tuple[str, ...]
    done_when: Template | None = None
    result: JsonValue = None  # what a rollback's parameters see as `result`
    kind: CallKind = "step"
    timeout_seconds: float | None = None  # a limit in addition to the step's and the tool's

    @property
    def name(self) -> str:
        """The call's name in Prefect, in hooks and in messages."""
        return call_name(self.step_id, None, kind=self.kind)

    @classmethod
    def of_step(cls, step: Step, validated: ValidatedPlan) -> "CallTarget":
        """Return the call that `step` itself makes. Its effect is the declared one, else that of its tool."""
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
    """The arguments that one call passes to its tool. All its attempts get the same."""

    def __init__(self, scope: RunScope, target: CallTarget, step_run: StepRun, *, item: int | None, value: JsonValue, name: str) -> None:
        """Prepare to resolve `target` with `value` as its `item`. `name` is shown to people."""
        self._scope = scope
        self._target = target
        self._step_run = step_run
        self._item = item
        self._value = value
        self._name = name

    def parameters(self) -> dict[str, JsonValue]:
        """Return the parameters as the tool gets them, but without secret values: the expression that uses a secret is in its place."""
        given = _require_mapping(self._target.parameters.resolve_except_secrets(self._variables()))
        return given if self._scope.assume is not None and has_unknown(given) else self._target.tool.normalized(given)

    async def with_secrets(self, parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Return what the tool receives for `parameters`, with secret values filled in."""
        template = self._target.parameters
        if not template.secrets:
            return parameters
        values = await self._scope.secrets.values(template.secrets)
        return _require_mapping(template.resolve(self._variables(values)))

    async def parameters_of(self, attempt: Attempt) -> dict[str, JsonValue]:
        """Return what the tool received in `attempt`, with secret values filled in.

        The record holds only the names of secrets, and `***` for a value. Raises ToolError if the parameters would differ now.
        """
        if not self._target.parameters.secrets and MASK not in json.dumps(attempt.parameters):
            return attempt.parameters
        parameters = self.parameters()
        if self._scope.secrets.redactor.value(parameters) != attempt.parameters:
            raise ToolError("its parameters would now be different")
        return await self.with_secrets(parameters)

    def context(
        self,
        parameters: dict[str, JsonValue],
        *,
        attempt: int,
        timeout_seconds: float | None,
        answer: JsonValue,
        commands: CommandLog | None = None,
    ) -> ToolContext:
        """Return the tool's context for attempt number `attempt` with `parameters`. The attempt may take `timeout_seconds` from now.

        `answer` is what a person answered, if the step asks a question. `commands` records the commands that the tool starts.
        """
        run = self._scope.run
        # The seed covers only this call, so the receiver recognizes a repeat even after a new version changed the rest of the plan.
        target, validated = self._target, self._scope.approved.bound.validated
        history, unit = self._scope.history.calls(target.kind), (target.step_id, self._item)
        parts = [run.id, target.kind, target.step_id, self._item, target.tool.name, parameters]
        if unit in history.outdated:  # a new call, not a repeat of the one that succeeded
            parts.append(history.outdated[unit])
        seed = json.dumps(parts, sort_keys=True)
        begun = history.repeatable.get(unit) or history.interrupted_reads.get(unit)
        limits = [time.monotonic() + timeout_seconds] if timeout_seconds else []
        if self._scope.clock is not None and self._scope.clock.deadline is not None:
            limits.append(self._scope.clock.deadline)
        return ToolContext(
            run_id=run.id,
            step_id=target.step_id,
            kind=target.kind,
            attempt=attempt,
            idempotency_key=hashlib.sha256(seed.encode()).hexdigest() if begun is None else begun.idempotency_key,
            agent_id=run.agent_id,
            org_id=run.org_id,
            tenant_id=run.tenant_id,
            logger=step_logger(self._scope, self._step_run, self._name),
            deadline=min(limits, default=None),
            redaction=self._scope.secrets.redactor,
            answer=answer,
            permissions=frozenset(validated.permissions_at(validated.steps[target.step_id]).names),
            commands=commands,
        )

    def _variables(self, secrets: Mapping[str, str] | None = None) -> Variables:
        return self._scope.variables(item=self._value, result=self._target.result, secrets=secrets)


def _require_mapping(resolved: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(resolved, dict):
        raise ExpressionError(f"the parameters are {type(resolved).__name__}, not a mapping")
    return resolved
