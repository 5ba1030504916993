"""`PolicyApprover`: rules that answer, in their order, and another approver for what no rule fits."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from plan_adapter.approval import Approver, answer_to
from plan_adapter.record import Approval, ApprovalRequest, Decision


@dataclass(frozen=True, slots=True)
class Rule:
    """What a policy answers to the requests that fit all of what the rule says.

    Whoever writes a plan chooses its name: `digests` and `requested_by` are what an approval should rest on.
    """

    decision: Decision = "approve"
    digests: Collection[str] | None = None  # approval digests, of plans with their inputs or of calls; None: any
    requested_by: Collection[str] | None = None  # who started the run; None: anybody
    plan: str = "*"  # the plan's name, with * and ?
    step: str | None = "*"  # the step's id, with * and ?; a `*` fits the whole plan, too; None: only that
    when: Callable[[ApprovalRequest], bool] | None = None  # anything else
    note: str = ""

    def fits(self, request: ApprovalRequest) -> bool:
        """Return whether the rule says something about `request`."""
        return (
            (self.digests is None or request.approval_digest in self.digests)
            and (self.requested_by is None or request.rules.requested_by in self.requested_by)
            and fnmatchcase(request.name, self.plan)
            and self._fits_step(request.step_id)
            and (self.when is None or self.when(request))
        )

    def _fits_step(self, step_id: str | None) -> bool:
        if step_id is None or self.step is None:
            return step_id is None and self.step in (None, "*")
        return fnmatchcase(step_id, self.step)


class PolicyApprover:
    """Answers by the first of `rules` that fits; where none does, `otherwise` is asked, and without one the answer is a rejection.

    Its answers are unverified, in the name of `by`: a policy of the plan or the settings can refuse them.
    """

    def __init__(self, rules: Sequence[Rule], *, by: str = "policy", otherwise: Approver | None = None) -> None:
        """Keep the rules as they are now."""
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
        return answer_to(request, decision="reject", by=self._by, known_by="unverified", note="no rule of the policy fits")
