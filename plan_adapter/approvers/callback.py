"""`CallbackApprover`: a function that answers."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from plan_adapter.approval import answer_to
from plan_adapter.errors import NotApprovedError
from plan_adapter.record import Approval, ApprovalRequest, Decision

Said: TypeAlias = Decision | bool | str | Approval
"""`True` approves, `False` rejects, `"approve"`, `"reject"` and `"request_changes"` say what they are, any other text rejects with
that note, and an `Approval` is taken as it is."""


class CallbackApprover:
    """Asks `answer`, a function, sync or async, that is given the request; what it says counts as the word of `by`, unverified.

    A sync function runs in the event loop: one that waits for somebody should be async.
    """

    def __init__(self, answer: Callable[[ApprovalRequest], Said | Awaitable[Said]], *, by: str = "callback") -> None:
        """Keep the function, which nobody calls before a gate opens."""
        self._answer = answer
        self._by = by

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the function's answer; raises NotApprovedError where it gives none, and whatever it raises."""
        said: object = self._answer(request)
        if inspect.isawaitable(said):
            said = await said
        if isinstance(said, Approval):
            return said
        decision, note = self._read(said)
        return answer_to(request, decision=decision, by=self._by, known_by="unverified", note=note)

    def _read(self, said: object) -> tuple[Decision, str]:
        if isinstance(said, bool):
            return ("approve" if said else "reject"), ""
        if isinstance(said, str):
            decision = _DECISIONS.get(said)
            return (decision, "") if decision is not None else ("reject", said)
        name = getattr(self._answer, "__qualname__", type(self._answer).__name__)
        raise NotApprovedError(f"the approver `{name}` gave no answer but {said!r:.100}: return True, False, a decision or a reason")


_DECISIONS: Mapping[str, Decision] = {"approve": "approve", "reject": "reject", "request_changes": "request_changes"}
