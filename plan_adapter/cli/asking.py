"""Approvers of the command line: a person at the terminal, or `--yes`."""

import os
import sys

from plan_adapter.approval import answer_to, os_user
from plan_adapter.cli import output
from plan_adapter.cli.aside import aside
from plan_adapter.record import Approval, ApprovalRequest


class YesApprover:
    """Approves what it is asked, in the name of the operating system's user: `--yes`."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the approval."""
        return answer_to(request, approve=True, by=os_user(), known_by="os_user", note="--yes")


class TerminalApprover:
    """Shows what would run and asks the person at the terminal; anything but a yes is a no."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.asked: ApprovalRequest | None = None

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the answer, in the name of the operating system's user."""
        self.asked = request
        output.note(request.text)
        user = os_user()
        word = await _ask_line(f"Run this plan, approved by {user}? [y/N] ")
        approve = word.strip().casefold() in ("y", "yes")
        return answer_to(request, approve=approve, by=user, known_by="os_user", note="" if approve else "answered no at the terminal")


async def _ask_line(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return await aside(_read_line)


def _read_line() -> str:
    # From the bare file descriptor: a thread that holds sys.stdin while the process ends is a fatal error.
    try:
        return os.read(sys.stdin.fileno(), 1024).decode(errors="replace")
    except OSError:
        return ""
