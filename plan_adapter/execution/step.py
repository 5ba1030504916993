"""`Call`: what every step does, from slot and parameters through intent and tool call to the receipt."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.execution.call_arguments import CallArguments, CallTarget
from plan_adapter.execution.calling import CallStoppedError, CallTimedOutError, ToolCoroutine, ask_probe, complete, prepare_call
from plan_adapter.execution.limits import Slots
from plan_adapter.execution.ports import AttemptEnd, GatedCall
from plan_adapter.execution.previewing import show_preview
from plan_adapter.execution.printing import prints_of_call
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.worker import call_on_cluster
from plan_adapter.expressions import Template, Variables
from plan_adapter.local import telemetry
from plan_adapter.local.crash_points import reached
from plan_adapter.local.secrets import SecretUnavailableError
from plan_adapter.model.approvals import Approval
from plan_adapter.model.canonical import call_digest
from plan_adapter.model.errors import NotApprovedError, ToolError, UnknownOutcomeError, error_text
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.options import Effect, Isolation
from plan_adapter.model.plan import Step, new_id
from plan_adapter.model.readable import call_name
from plan_adapter.model.record import Attempt, PlanRun, Receipt, StepRun
from plan_adapter.model.status import Outcome
from plan_adapter.model.values import has_unknown
from plan_adapter.text.call_text import call_summary
from plan_adapter.tools.probing import Done, Failed, NotDone, ProbeAnswer
from plan_adapter.tools.tool import Tool, ToolContext, as_json, code_digest


def why_not_met(done_when: Template, variables: Variables) -> str | None:
    """Return why `done_when` is not met, with the parts of the result that it uses. None if it is met."""
    if done_when.resolve(variables) is True:
        return None
    used = done_when.describe_used_result(variables)
    return f"done_when is not met: {done_when.source}" + (f"; {used}" if used else "")


def call_key(name: str, item: int | None) -> str:
    """Return the unique key of a call of the step or rollback `name` within its run. An item counts from 0 here."""
    return name if item is None else f"{name}[{item}]"


class Call:
    """One unit of work: a step, one item of its `for_each`, or the rollback of either. Implements `ports.StepCall`."""

    def __init__(
        self,
        scope: RunScope,
        step: Step,
        step_run: StepRun,
        *,
        urgency: float,
        item: int | None,
        value: JsonValue,
        label: str | None = None,
        target: CallTarget | None = None,
        upstream: tuple[str, ...] | None = None,
    ) -> None:
        """Create the call of `step`, or of `target` if given. Expressions see `value` as `item`; `label` is the item's name.

        `upstream` overrides which steps or calls it waited for. The caller must hold a slot for the first attempt.
        """
        self.step = step
        self.step_run = step_run
        self.item = item
        self._label = label
        self._target = target or CallTarget.of_step(step, scope.approved.bound.validated)
        self.upstream = self._target.upstream if upstream is None else upstream
        self._scope = scope
        self._value = value
        self.urgency = urgency
        self._tool: Tool[..., Any] = self._target.tool
        self._arguments = CallArguments(scope, self._target, step_run, item=item, value=value, name=self.name)
        self._policy = self._target.retry
        self._has_slot = True
        self._has_reserved = False
        self._without_prefect = False
        self._attempts_made = 0
        self._retry_decision: tuple[AttemptEnd, float | None] | None = None
        self._number = scope.history.calls(self._target.kind).attempts.get((step.id, item), 0)
        self.approval: Approval | None = None  # of exactly this call, if its step has a gate of its own
        self.allowed_by: Approval | None = None  # the plan's approval, if its `always_execute` lets a model make this call without a gate
        self._begun: Attempt | None = None  # the attempt that this call makes now
        self.unknown_attempt: Attempt | None = None  # the last attempt, if its outcome is unknown

    @property
    def run(self) -> PlanRun:
        """The run that the call belongs to."""
        return self._scope.run

    @property
    def slots(self) -> Slots:
        """The slots of the plan that the call belongs to."""
        return self._scope.slots

    @property
    def name(self) -> str:
        """The name of the step or rollback, with `for_each` followed by the item's label."""
        return call_name(self.step.id, self.item, self._label, kind=self._target.kind)

    @property
    def is_of_group(self) -> bool:
        """Whether this is the call of a group's step for one of the group's items."""
        return self._target.kind == "step" and self.item is not None and self.step.group is not None

    @property
    def key(self) -> str:
        """The unique key of the call within its run, independent of the item's label. It names files and task runs."""
        return call_key(self._target.name, self.item)

    @property
    def timeout_seconds(self) -> float | None:
        """The limit of one attempt, or None for no limit: the shortest limit of the step, the tool and the call itself."""
        milliseconds = self._scope.approved.bound.validated.plan.timeout_ms_of(self.step)
        limits = [milliseconds / 1000] if milliseconds else []
        return min(limits + [limit for limit in (self._tool.timeout_seconds, self._target.timeout_seconds) if limit], default=None)

    @property
    def tool_name(self) -> str:
        """The name of the tool."""
        return self._tool.name

    @property
    def task(self) -> object | None:
        """The Prefect task behind the tool, or None for any other tool."""
        return self._tool.task

    @property
    def retry_delays(self) -> list[float]:
        """The planned seconds between attempts, one per retry."""
        return self._policy.planned_delays()

    @property
    def effect(self) -> Effect:
        """The effect of the call."""
        return self._target.effect

    @property
    def _crash_point_detail(self) -> str:
        """The effect, with the kind of call unless it is a step, or with `finally`. Labels the crash points."""
        if self._target.kind != "step":
            return f"{self._target.kind} {self.effect}"
        is_finally = self.step.id in self._scope.approved.bound.validated.finally_order
        return f"finally {self.effect}" if is_finally else self.effect

    @property
    def command_marker(self) -> str:
        """The id of the attempt that this call makes now. Part of `tools.tool.CommandLog`."""
        return "" if self._begun is None else self._begun.id

    def command_started(self, pid: int) -> None:
        """Record that process `pid` is a command of the attempt that this call makes now. Part of `tools.tool.CommandLog`."""
        if self._begun is not None:  # from any thread
            loop = self._scope.stop.future.get_loop()
            loop.call_soon_threadsafe(self._scope.recorder.command_started, self._begun, HostProcess.of(pid))

    async def gated_call(self) -> GatedCall:
        """Return the call as it would be made now, for an approval. Raise ToolError with the reason if it cannot be made at all."""
        try:
            parameters = self._arguments.parameters()
            if self._scope.assume is None:  # a dry run asks nobody
                self._tool.bind(await self._arguments.with_secrets(parameters), self._context(parameters))
            digest = self._digest(parameters)
        except Exception as error:
            raise ToolError(self._error_text(error)) from None
        return GatedCall(
            step=self.step,
            step_run=self.step_run,
            name=self.name,
            item=self.item,
            effect=self.effect,
            parameters=parameters,
            approval_digest=digest,
            label=self._label,
            before=self._siblings(),
        )

    def _siblings(self) -> dict[str, dict[str, JsonValue]]:
        """Return how the steps of the same item ended that the step depends on. Empty outside of groups."""
        validated = self._scope.approved.bound.validated
        if self.step.group is None:
            return {}
        before = [validated.steps[step_id] for step_id in validated.dependencies[self.step.id]]
        return {step.id: self._scope.values[step.local_id] for step in before if step.group == self.step.group}

    def _digest(self, parameters: dict[str, JsonValue]) -> str:
        folder = self._scope.approved.bound.folder
        return call_digest(self.step, self.item, parameters, self._tool.definition(), None if folder is None else folder.content)

    def retry_delay(self, end: AttemptEnd) -> float | None:
        """Return the seconds to wait before another attempt, or None if `end` is final."""
        if self._retry_decision is None or self._retry_decision[0] is not end:  # once per end, because the delay has jitter
            self._retry_decision = (end, self._policy.delay_after(end, self._attempts_made))
        return None if self._scope.stop.is_set else self._retry_decision[1]

    async def stopped(self) -> AttemptEnd:
        """Return when the run stops, with the end of the attempt that is no longer made."""
        await asyncio.shield(self._scope.stop.future)
        return self._stopped_end()

    def parameters(self) -> dict[str, JsonValue]:
        """Return the parameters as the tool gets them; secrets are expressions. Raises ExpressionError."""
        return self._arguments.parameters()

    async def rehearse(self, answer: Callable[[dict[str, JsonValue], ToolContext], Awaitable[JsonValue]]) -> AttemptEnd:
        """End the call with what `answer` returns for its parameters and context, in place of its tool. Nothing is recorded as attempted.

        Secrets stay expressions. If the parameters cannot be resolved or do not fit the tool, or `answer` raises, the call has failed.
        """
        try:
            parameters = self._arguments.parameters()
            self.step_run.started_at = self.step_run.started_at or self._scope.recorder.now()
            context = replace(self._context(parameters), commands=None)
            if not (has_unknown(parameters) or self._target.parameters.secrets):
                self._tool.bind(parameters, context)
            result = await answer(parameters, context)
        except Exception as error:
            return AttemptEnd("failed", self._number, error=self._error_text(error), can_retry=False)
        finally:
            self._has_slot = False
            self.slots.release()
        return AttemptEnd("succeeded", self._number, result=result)

    async def attempt(self, *, without_prefect: bool = False) -> AttemptEnd:
        """Make the next attempt. Never raises for what a tool does. Raises StoreError if the intent cannot be written.

        With `without_prefect`, a Prefect flow is called as its plain function.
        """
        self._without_prefect = without_prefect
        if not self._has_slot:
            await self.slots.acquire(self.urgency)
        try:
            if self._scope.stop.is_set:
                return self._stopped_end()
            self._attempts_made += 1
            end = await self._attempt_once()
            if end.not_done and not self._scope.stop.is_set:  # an attempt that did nothing costs no retry, a second one in a row does
                self._scope.notify("attempt_failed", self.step_run, end.error, 0, name=self.name)
                end = await self._attempt_once()
            if end.outcome == "failed" and self._fails_item and self.retry_delay(end) is None:
                self._has_reserved = True
                self._scope.slots.reserve()  # until the scheduler knows how the call ended; Prefect is told first
        finally:
            self._has_slot = False
            self.slots.release()
        delay = self.retry_delay(end)
        if delay is not None:
            self.step_run.retry_count += 1
            telemetry.count("plan.retries", {"plan.tool": self._tool.name})
            self._scope.notify("attempt_failed", self.step_run, end.error, round(delay * 1000), name=self.name)
        return end

    @property
    def _fails_item(self) -> bool:
        """Whether a failure of this call has its item of a group rolled back at once."""
        plan = self._scope.approved.bound.validated.plan
        group = plan.find_step(self.step.group) if self.is_of_group else None
        return group is not None and plan.rolls_back_failed_items(group)

    def end_reservation(self) -> None:
        """Give back the slot that a failure has reserved for the rollback of the item, which has one of its own now."""
        if self._has_reserved:
            self._has_reserved = False
            self._scope.slots.unreserve()

    async def _attempt_once(self) -> AttemptEnd:
        try:
            parameters = self._arguments.parameters()
            context = self._context(parameters)
            arguments = self._tool.bind(await self._arguments.with_secrets(parameters), context)
        except Exception as error:  # nothing was called: no intent, and another attempt would usually fail the same way
            may_pass = isinstance(error, SecretUnavailableError)
            return AttemptEnd("failed", self._number, error=self._error_text(error), can_retry=may_pass)
        if self._scope.stop.is_set:  # the run stopped while a secret was looked up
            return self._stopped_end()
        self._number += 1
        self._begun = intent = self._intent(parameters, context.idempotency_key)
        reached("before-intent", self._crash_point_detail)
        try:
            await self._scope.recorder.intent(intent)
        except NotApprovedError as error:  # the approval is checked there, at the moment of writing
            self._number -= 1
            return AttemptEnd("failed", self._number, error=error_text(error), can_retry=False)
        reached("after-intent", self._crash_point_detail)
        self.step_run.attempts += 1
        if self._scope.stop.is_set:  # stopped during the write, which an unreachable database delays; nothing was called
            end = self._stopped_end()
            self._scope.recorder.receipt(self._receipt(intent, end, 0))
            return end
        if self.step_run.started_at is None:
            await self._report_start(intent)
        elif self.is_of_group and self._attempts_made == 1:
            self._scope.notify("call_started", self.step_run, name=self.name)
        if self.allowed_by is not None:
            text = call_summary(self._scope.approved.bound, self.step, effect=self.effect, parameters=parameters)
            context.logger.info("nobody is asked, because the plan always executes `%s`\n%s", self._tool.name, text)
        started = time.monotonic()
        about: dict[str, str | int | None] = {"plan.step.id": self.step.id, "plan.tool": self._tool.name, "plan.attempt": self._number}
        if self._scope.approved.bound.validated.steps[self.step.id].goal is not None:  # a model asks for it
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": self._tool.name}
        with prints_of_call(context.logger), telemetry.span(f"plan attempt {self._tool.name}", about) as opened:
            end = await self._call_tool(arguments, context)
            opened.end(end.outcome, is_ok=end.outcome == "succeeded")
        reached("after-effect", self._crash_point_detail)
        self.unknown_attempt = None
        if not end.was_interrupted or self.effect == "read":
            self._scope.recorder.receipt(self._receipt(intent, end, round((time.monotonic() - started) * 1000)))
            if end.outcome == "succeeded" and self._tool.preview is not None:
                await show_preview(self._scope, self._tool.preview, self.name, parameters, context)
        elif end.outcome == "unknown" and (found := await self.probe_attempt(intent)) is not None:
            return found
        elif end.outcome == "unknown":
            self.unknown_attempt = intent
            telemetry.count("plan.unknown_outcomes", {"plan.tool": self._tool.name})
        return end

    def take_slot(self) -> None:
        """Take over the caller's slot for the next attempt."""
        self._has_slot = True

    @property
    def has_probe(self) -> bool:
        """Whether the tool has a probe that can report how an attempt with an unknown outcome ended."""
        return self._tool.probe is not None

    def count_earlier_attempt(self) -> None:
        """Count an attempt of an earlier start as the first of this call."""
        self._attempts_made += 1

    async def probe_attempt(self, attempt: Attempt) -> AttemptEnd | None:
        """Ask the tool's probe how `attempt`, whose outcome is unknown, ended. Record the receipt and return that end.

        Returns None if the probe cannot tell. The caller must hold a slot.
        """
        if self._tool.probe is None:
            return None
        context = replace(self._context(attempt.parameters), attempt=attempt.number, idempotency_key=attempt.idempotency_key, commands=None)
        try:
            parameters = await self._arguments.parameters_of(attempt)
            answer = await ask_probe(
                self._tool.probe, parameters, context, timeout=self.timeout_seconds, stop=self._scope.stop, describe=self._error_text
            )
            end = None if answer is None else self._end_from_probe(answer, attempt)
        except Exception as error:
            context.logger.warning("the outcome of attempt %d is unknown: %s", attempt.number, self._error_text(error))
            return None
        if answer is None or end is None:
            return None
        receipt = self._receipt(attempt, end, 0)
        note = self._scope.secrets.redactor.text(answer.note) if answer.note else None
        self._scope.recorder.receipt(replace(receipt, by=self._tool.name, known_by="probe", note=note))
        context.logger.info("the probe of `%s` says that attempt %d was %s", self._tool.name, attempt.number, _PROBE_FINDINGS[type(answer)])
        return end

    def _end_from_probe(self, answer: ProbeAnswer, attempt: Attempt) -> AttemptEnd:
        if isinstance(answer, NotDone):
            error = "its probe reports that it was not done"
            return AttemptEnd("failed", attempt.number, error=error, not_done=True)
        if isinstance(answer, Failed):
            return AttemptEnd("failed", attempt.number, error=self._scope.secrets.redactor.text(answer.error))
        result = self._scope.secrets.redactor.value(as_json(answer.result))
        if (failure := self._why_not_met(result)) is not None:
            return AttemptEnd("failed", attempt.number, error=failure)
        reason = f"the probe of `{self._tool.name}` reports that it was done"
        return AttemptEnd("succeeded", attempt.number, result=self._store_result(result), reason=reason)

    async def _report_start(self, intent: Attempt) -> None:
        self.step_run.started_at = intent.started_at
        self._scope.notify("step_started", self.step_run, name=self.name if self.is_of_group else None)
        await self._scope.call_hook(self._scope.hooks.on_step_start, self.run, self.step_run)

    async def _call_tool(self, arguments: dict[str, Any], context: ToolContext) -> AttemptEnd:
        """Call the tool and evaluate its result."""
        number = self._number
        interrupted = "unknown" if self.effect == "write" else "failed"
        # Prefect would store the parameters of a flow run in plain text.
        without_prefect = self._without_prefect or bool(self._target.parameters.secrets)
        try:
            work = self._work_on_cluster(arguments, context) or prepare_call(
                self._tool, arguments, isolation=self._isolation, without_prefect=without_prefect
            )
            value = await complete(work, self._tool.name, timeout=self.timeout_seconds, stop=self._scope.stop)
            await self._scope.secrets.look_up_created(self.step.creates_secrets)
            result = self._scope.secrets.redactor.value(as_json(value))
            failure = self._why_not_met(result)
        except CallStoppedError:
            return self._stopped_end(was_interrupted=True)
        except CallTimedOutError:
            return AttemptEnd(interrupted, number, error=self._timeout_text(), was_interrupted=True)
        except UnknownOutcomeError as error:
            return AttemptEnd(interrupted, number, error=self._error_text(error), was_interrupted=True)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            return AttemptEnd("failed", number, error=self._error_text(error))
        if failure is not None:
            return AttemptEnd("failed", number, error=failure)
        return AttemptEnd("succeeded", number, result=self._store_result(result), reason=self._answered_by)

    @property
    def _answered_by(self) -> str | None:
        answer = self.approval
        return None if self.step.ask is None or answer is None else f"answered by {answer.by} ({answer.known_by})"

    def _error_text(self, error: BaseException) -> str:
        """Return the text of an exception with secrets redacted."""
        return error_text(error, self._scope.secrets.redactor.text)

    def _why_not_met(self, result: JsonValue) -> str | None:
        template = self._target.done_when
        return None if template is None else why_not_met(template, self._scope.variables(item=self._value, result=result))

    def _store_result(self, result: JsonValue) -> JsonValue:
        if self._target.kind in ("decision", "check"):  # the next start reads them again
            return result
        return self._scope.limit.keep(result, run_id=self.run.id, name=f"{self.key}-{self._number}")

    def _timeout_text(self) -> str:
        limit = f"no answer within {self.timeout_seconds:g} s"
        return f"{limit}; it writes, so its outcome is unknown" if self.effect == "write" else limit

    def _stopped_end(self, *, was_interrupted: bool = False) -> AttemptEnd:
        stop = self._scope.stop
        outcome = "timed_out" if stop.kind == "timed_out" else "cancelled"
        return AttemptEnd(outcome, self._number, error=stop.message, was_interrupted=was_interrupted)

    def _intent(self, parameters: dict[str, JsonValue], key: str) -> Attempt:
        return Attempt(
            id=new_id(),
            run_id=self.run.id,
            step_id=self.step.id,
            kind=self._target.kind,
            item=self.item,
            number=self._number,
            tool_name=self._tool.name,
            effect=self.effect,
            parameters=cast("dict[str, JsonValue]", self._scope.secrets.redactor.value(parameters)),
            idempotency_key=key,
            started_at=self._scope.recorder.now(),
            approval_id=self.approval.id if self.approval is not None else None,
            approval_digest=self._digest(parameters) if self.approval is not None else None,
            code_digest=code_digest(self._tool),
            label=self._label,
            allowed_by=self.allowed_by,
        )

    def _receipt(self, intent: Attempt, end: AttemptEnd, duration_ms: int) -> Receipt:
        return Receipt(
            attempt_id=intent.id,
            run_id=intent.run_id,
            step_id=intent.step_id,
            kind=intent.kind,
            item=intent.item,
            number=intent.number,
            outcome=Outcome.SUCCEEDED if end.outcome == "succeeded" else Outcome.FAILED,
            result=end.result,
            error=end.error,
            ended_at=self._scope.recorder.now(),
            duration_ms=duration_ms,
            **self._answer_fields(),
        )

    def _answer_fields(self) -> dict[str, str]:
        """Return the fields of a question's receipt that say who answered."""
        answer = self.approval
        if self.step.ask is None or answer is None:
            return {}
        note = {"note": self._scope.secrets.redactor.text(answer.note)} if answer.note else {}
        return {"by": answer.by, "known_by": answer.known_by, **note}

    def _context(self, parameters: dict[str, JsonValue]) -> ToolContext:
        answer = None if self.approval is None else self.approval.result
        number, limit = self._number + 1, self.timeout_seconds
        return self._arguments.context(parameters, attempt=number, timeout_seconds=limit, answer=answer, commands=self)

    def _work_on_cluster(self, arguments: dict[str, Any], context: ToolContext) -> ToolCoroutine | None:
        """Return the call on the cluster that the step names, not yet started. None if this process makes the call, as for stand-ins."""
        is_here = self._scope.approved.bound.validated.runner_of(self.step.id) is None or self.step.ask is not None
        if self._scope.cluster is None or is_here or self._tool.import_string is None:
            return None
        limit, logger = self.timeout_seconds, context.logger
        return call_on_cluster(self._scope.cluster, self._tool, arguments, timeout=limit, logger=logger)

    @property
    def _isolation(self) -> Isolation:
        if self._tool.is_async:  # it can be cancelled; killing its process would skip its cleanup and leave a command running
            return self._tool.isolation
        return self._scope.approved.bound.validated.plan.isolation_of(self.step) or self._tool.isolation


_PROBE_FINDINGS = {Done: "done", Failed: "made, and failed", NotDone: "not done"}
