"""Who is asked when `plan run` or `plan resume` comes to a gate: a person at the terminal, `--yes`, or only the form."""

import sys
from typing import TYPE_CHECKING

from plan_adapter.approval import answer_to, os_user, refusal
from plan_adapter.errors import NotApprovedError
from plan_adapter.record import Approval, ApprovalRequest, GateRules

if TYPE_CHECKING:
    from plan_adapter.approval import Approver
    from plan_adapter.approvers.conversation import Conversation
    from plan_adapter.approvers.terminal import Edit


class YesRefusedError(NotApprovedError):
    """The operating system's user may not approve what `--yes` would approve; nothing was begun."""


class YesApprover:
    """Approves what it is asked, in the name of the operating system's user: `--yes`."""

    is_beforehand = True
    """Its word was given before anything was there to read: what a model drafts meanwhile is not approved by it."""

    def foresee(self, rules: GateRules) -> None:
        """Raise YesRefusedError where the approval would not be taken."""
        if (reason := refusal(rules, by=os_user(), known_by="os_user", decision="approve")) is not None:
            raise YesRefusedError(reason)

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the approval."""
        return answer_to(request, decision="approve", by=os_user(), known_by="os_user", note="--yes")


def is_at_terminal() -> bool:
    """Return whether a person can be asked here."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # closed: None


def asks_in_form(*, yes: bool, detach: bool, has_server: bool) -> bool:
    """Return whether a form in the Prefect UI is opened as well."""
    return has_server and not yes and not detach


def approver_for(*, yes: bool, detach: bool, conversation: "Conversation", edit: "Edit", is_alone: bool) -> "Approver | None":
    """Return who answers here when an approval is needed, None where nobody is there; `is_alone`: nor is there a form."""
    if yes:
        return YesApprover()
    if detach or not is_at_terminal():
        return None
    from plan_adapter.approvers.terminal import TerminalApprover

    return TerminalApprover(edit=edit, conversation=conversation, is_alone=is_alone)
