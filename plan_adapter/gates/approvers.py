"""Approvers for programs: a function, a fixed policy, and the form in the Prefect UI."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias, cast, get_args

from pydantic import JsonValue

from plan_adapter.gates.approval import Approver, answer_to
from plan_adapter.model.approvals import Approval, ApprovalRequest, Decision
from plan_adapter.model.errors import ApprovalRequiredError

CallbackAnswer: TypeAlias = Decision | bool | tuple[Decision, str] | Approval | Mapping[str, JsonValue]
"""An answer from a function.

`True` approves and `False` rejects. `"approve"`, `"reject"` and `"request_changes"` are decisions; `("reject", "too early")` adds a note. A
mapping answers a question, by field. An `Approval` is used as it is, apart from its proof. Anything else is no answer.
"""


class CallbackApprover:
    """Asks `answer`, a sync or async function that receives the request. Its answers are recorded as given by `by`, unverified.

    A sync function runs in the event loop. A function that waits for somebody should be async.
    """

    def __init__(self, answer: Callable[[ApprovalRequest], CallbackAnswer | Awaitable[CallbackAnswer]], *, by: str = "callback") -> None:
        """Store the function. It is called when a gate opens."""
        self._answer = answer
        self._by = by

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the function's answer. Raises TypeError if it returns none, and whatever the function raises."""
        answer: object = self._answer(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Approval):
            return answer
        if isinstance(answer, Mapping) and request.kind == "question":
            return answer_to(request, decision="approve", by=self._by, known_by="unverified", result=dict(answer))
        decision, note = self._parse(answer, request)
        return answer_to(request, decision=decision, by=self._by, known_by="unverified", note=note)

    def _parse(self, answer: object, request: ApprovalRequest) -> tuple[Decision, str]:
        parts = cast("tuple[object, ...]", answer) if isinstance(answer, tuple) else (answer, "")
        match parts:
            case (bool() as is_approved, str() as note):
                decision: Decision | None = "approve" if is_approved else "reject"
            case (str() as text, str() as note):
                decision = _DECISIONS.get(text)
            case _:
                decision, note = None, ""
        if decision is None or (decision == "approve" and request.kind == "question"):
            name = getattr(self._answer, "__qualname__", type(self._answer).__name__)
            fields = ", ".join(f"{field!r}: …" for field in request.fields)
            wanted = 'True, False, "approve", "reject", "request_changes", or ("reject", "why")'
            if request.kind == "question":
                wanted = f'its fields, {{{fields}}}, or "reject"'
            raise TypeError(f"the approver `{name}` returned {answer!r:.100}, which is not an answer here: return {wanted}")
        return decision, note


_DECISIONS: Mapping[str, Decision] = {decision: decision for decision in get_args(Decision)}


@dataclass(frozen=True, slots=True)
class Rule:
    """What a policy answers to requests that match every field of the rule.

    The author of a plan chooses its name, so base an approval on `digests` and `requested_by`.
    """

    decision: Decision = "approve"  # the answer
    digests: Collection[str] | None = None  # approval digests of plans with their inputs, or of calls; None: any
    requested_by: Collection[str] | None = None  # who started the run; None: anyone
    plan: str = "*"  # the plan's name, with the wildcards * and ?
    step: str | None = "*"  # the step's id, with * and ?; `*` also matches the whole plan; None: only the whole plan
    when: Callable[[ApprovalRequest], bool] | None = None  # any other condition
    note: str = ""  # what is recorded with the answer

    def fits(self, request: ApprovalRequest) -> bool:
        """Return whether the rule matches `request`."""
        return (
            (self.digests is None or request.approval_digest in self.digests)
            and (self.requested_by is None or request.gate_policy.requested_by in self.requested_by)
            and fnmatchcase(request.name, self.plan)
            and self._matches_step(request.step_id)
            and (self.when is None or self.when(request))
        )

    def _matches_step(self, step_id: str | None) -> bool:
        if step_id is None or self.step is None:
            return step_id is None and self.step in (None, "*")
        return fnmatchcase(step_id, self.step)


class PolicyApprover:
    """Answers with the first of `rules` that matches. If none does, asks `otherwise`, or rejects without one.

    Its answers are unverified, in the name of `by`. A policy of the plan or the settings can refuse them.
    """

    def __init__(self, rules: Sequence[Rule], *, by: str = "policy", otherwise: Approver | None = None) -> None:
        """Store a copy of the rules."""
        self._rules = tuple(rules)
        self._by = by
        self._otherwise = otherwise

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the answer."""
        rule = next((rule for rule in self._rules if rule.fits(request)), None)
        if rule is not None:
            return answer_to(request, decision=rule.decision, by=self._by, known_by="unverified", note=rule.note)
        if self._otherwise is not None:
            return await self._otherwise.ask(request)
        return answer_to(request, decision="reject", by=self._by, known_by="unverified", note="no rule of the policy matches")


class PrefectApprover:
    """Asks in the Prefect UI. The flow run pauses with a form; a step gate is a subflow run with its own form.

    Pass it to `run_plan` and similar functions, which open the form themselves. Flows from `compile_plan` and deployments do so anyway.
    """

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Raise NotApprovedError, because there is no form without a flow run."""
        raise ApprovalRequiredError(
            f"`{request.name}` needs an approval, and without a flow run there is no form to answer: run it with a Prefect server"
        )
