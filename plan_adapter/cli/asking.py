"""Who answers at a gate of `plan run` or `plan resume`: the user at the terminal, `--yes`, or only the form."""

import sys

from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import Approver, answer_to, os_user, refusal
from plan_adapter.gates.terminal import Conversation, Edit, TerminalApprover
from plan_adapter.record import Approval, ApprovalRequest, GatePolicy


class YesRefusedError(NotApprovedError):
    """The policy refuses `--yes` from this account; nothing has started."""


class YesApprover:
    """Approves every gate as the account that runs the command: `--yes`."""

    is_beforehand = True
    """The approval was given before the content existed, so it does not cover what a model drafts during the run."""

    def check_policy(self, rules: GatePolicy) -> None:
        """Raise YesRefusedError if the policy would refuse the approval."""
        if (reason := refusal(rules, by=os_user(), known_by="os_user", decision="approve")) is not None:
            raise YesRefusedError(reason)

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the approval."""
        return answer_to(request, decision="approve", by=os_user(), known_by="os_user", note="--yes")


def is_at_terminal() -> bool:
    """Return whether the user can be asked here."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # closed: None


async def agrees(question: str) -> bool:
    """Return whether the user at the terminal answers `question` with yes. The end of the input is a no."""
    return (await Conversation().ask(f"{question} [y]es, [n]o ", forget=True) or "").casefold() in ("y", "yes")


def asks_in_form(*, yes: bool, detach: bool, has_server: bool) -> bool:
    """Return whether gates also open a form in the Prefect UI."""
    return has_server and not yes and not detach


def approver_for(*, yes: bool, detach: bool, conversation: "Conversation", edit: "Edit", is_alone: bool) -> "Approver | None":
    """Return the approver of this process; None if nobody answers here. `is_alone`: no form is open either."""
    if yes:
        return YesApprover()
    if detach or not is_at_terminal():
        return None
    return TerminalApprover(edit=edit, conversation=conversation, is_alone=is_alone)
