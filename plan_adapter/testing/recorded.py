"""Recorded answers in place of tools and people: everything else of a run is real."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

from pydantic import JsonValue

from plan_adapter.execution.calling import CallTimedOutError
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.ports import AttemptEnd, StepCall
from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import Approval, ApprovalRequest
from plan_adapter.model.errors import ToolError
from plan_adapter.model.options import CallKind
from plan_adapter.model.readable import call_name
from plan_adapter.store.store import PlanStore
from plan_adapter.testing.case import Case, find_result_uses
from plan_adapter.testing.expectations import PLAN
from plan_adapter.validation import ValidatedPlan

STARTED_BY = "plan test"
"""Who starts the runs of cases, and answers at their gates."""

_next_result: ContextVar[Callable[[], JsonValue]] = ContextVar("answer")


async def _return_recorded(**_arguments: object) -> JsonValue:
    return _next_result.get()()


def with_recorded_tools(validated: ValidatedPlan) -> ValidatedPlan:
    """Return `validated` with tools that call nothing. They keep their signatures, effects and permissions. A goal is one call."""
    return validated.with_tools(lambda tool: tool.with_function(_return_recorded))


class RecordedStepRunner(DirectStepRunner):
    """Makes attempts that get the answers of `case`, without delays between retries. Implements `ports.StepRunner`."""

    def __init__(self, case: Case) -> None:
        """Answer the calls of one run of `case`."""
        self.unanswered: dict[str, str] = {}  # by step: what to write
        self._case = case
        self._uses = find_result_uses(case.plan.validated)
        self._attempt_counts = Counter[tuple[CallKind, str, int | None]]()

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until one succeeds, no retry is left, or the run stops."""
        _next_result.set(partial(self._next_answer, call))
        while True:
            end = await call.attempt(without_prefect=True)
            if call.retry_delay(end) is None:
                return end

    def _next_answer(self, call: StepCall) -> JsonValue:
        """Return the result of the next attempt of `call`. Raises the error of a tool that fails or times out."""
        kind: CallKind = "step" if call.step_run.undoes is None else "rollback"
        unit = (kind, call.step.id, call.item)
        number = self._attempt_counts[unit]
        self._attempt_counts[unit] += 1
        answers = self._case.calls.get((kind, call.step.id))
        answer = None if answers is None else answers.find(call.item, number)
        if answer is None:
            return self._unanswered_result(call, kind, is_short=answers is not None)
        if answer.is_timeout:
            raise CallTimedOutError
        if answer.failure is not None:
            raise ToolError(answer.failure)
        return answer.result

    def _unanswered_result(self, call: StepCall, kind: CallKind, *, is_short: bool) -> JsonValue:
        """Return null for a call whose result nothing uses. Raise ToolError for any other."""
        step_id = call.step.id
        if is_short:
            why = f"`{call.name}` was called, and the list of answers ends before it: write one for each item"
        elif kind == "step" and step_id in self._uses:
            why = f"`{step_id}` was called, and {self._uses[step_id]} uses its result: write `steps: {{{step_id}: {{result: …}}}}`"
        else:
            return None
        self.unanswered.setdefault(step_id, why)
        raise ToolError("the case has no answer to this call")


class RecordedApprover:
    """Answers at the gates of `case`, and approves at all others. Implements `approval.Approver`."""

    def __init__(self, case: Case, store: PlanStore) -> None:
        """Answer at the gates of one run of `case`, which `store` records."""
        self.opened = list[str]()  # the names of the gates, in the order in which they opened
        self.unanswered: dict[str, str] = {}  # by step: what to write
        self._case = case
        self._store = store

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the answer. Never returns for a gate that expires."""
        step_id = request.step_id or PLAN
        self.opened.append(call_name(step_id, request.item, request.label))
        answers = self._case.gates.get(step_id, ("approve",))
        answer = answers[min(request.item or 0, len(answers) - 1)]
        if answer == "expire":
            await self._store.gates.close(request.gate_id or "", "expired")
            return await asyncio.get_running_loop().create_future()
        if request.kind == "question" and answer == "approve":
            return self._answer_question(step_id, request)
        return answer_to(request, decision=answer, by=STARTED_BY, known_by="unverified")

    def _answer_question(self, step_id: str, request: ApprovalRequest) -> Approval:
        """Answer a question as the case says, else with the defaults of its fields."""
        answer = self._case.answers.get(step_id, {})
        required = [name for name, field in request.fields.items() if field.is_required]
        if step_id not in self._case.answers and required:
            self.unanswered[step_id] = f"`{step_id}` asks a question: write `answers: {{{step_id}: {{{required[0]}: …}}}}`"
            return answer_to(
                request, decision="reject", by=STARTED_BY, known_by="unverified", note="the case has no answer to this question"
            )
        return answer_to(request, decision="approve", by=STARTED_BY, known_by="unverified", result=answer)


class MadeUpSecrets:
    """A made-up value for every secret, which does not look like a secret. Implements `secrets.SecretPlace`."""

    def place(self, name: str) -> str:
        """Return a phrase for messages."""
        return f"the made-up value of {name}"

    async def secret(self, name: str) -> str | None:
        """Return a text that contains the name."""
        return f"value of {name}"
