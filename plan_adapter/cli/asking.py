"""Questions at the terminal: the inputs that a run lacks, and its gates. `--yes` or the form in Prefect may answer a gate instead."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from plan_adapter.approvals import Approval, ApprovalRequest, GatePolicy
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import Approver, answer_to, os_user, refusal
from plan_adapter.gates.conversation import Conversation
from plan_adapter.gates.fields import ask_value
from plan_adapter.gates.identity import identity_of_account
from plan_adapter.gates.terminal import Edit, TerminalApprover
from plan_adapter.readable import as_text, counted, one_line
from plan_adapter.validation.inputs import read_values
from plan_adapter.values import join

if TYPE_CHECKING:
    from plan_adapter.plan import ExecutionPlan


class YesRefusedError(NotApprovedError):
    """The policy refuses `--yes` from this account; nothing has started."""


class YesApprover:
    """Approves every gate as the account that runs the command: `--yes`."""

    approves_in_advance = True
    """The approval was given before the content existed, so it does not cover what a model drafts during the run."""

    def check_policy(self, gate_policy: GatePolicy) -> None:
        """Raise YesRefusedError if the policy would refuse the approval."""
        if (reason := refusal(gate_policy, identity_of_account(), decision="approve")) is not None:
            raise YesRefusedError(reason)

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the approval."""
        return answer_to(request, decision="approve", by=os_user(), known_by="os_user", note="--yes")


def is_at_terminal() -> bool:
    """Return whether the user can be asked at this terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # closed: None


async def ask_to_confirm(question: str) -> bool:
    """Ask `question` at the terminal and return whether the answer is yes. The end of the input means no."""
    return (await Conversation().ask(f"{question} [y]es, [n]o ", drop_typeahead=True) or "").casefold() in ("y", "yes")


async def ask_missing_inputs(plan: "ExecutionPlan", given: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of `given` and of the required inputs that it lacks or that do not fit, asked for at the terminal one by one.

    Nothing is asked if `given` names an input that the plan does not have. The end of the input leaves the rest as it is.
    """
    texts, problems = dict(given), read_values(plan.inputs, given, from_text=True)[1]
    wrong = {name: [problem for problem in problems if problem.at == join("inputs", name)] for name in plan.inputs}
    asked = {name: definition for name, definition in plan.inputs.items() if wrong[name]}
    if not asked or sum(map(len, wrong.values())) < len(problems):
        return texts
    conversation = Conversation()
    conversation.say(f"{one_line(plan.name)} needs {counted(len(asked), 'input')}; Ctrl-C ends the command, and nothing starts")
    if defaults := [
        name for name, definition in plan.inputs.items() if name not in asked and name not in given and not definition.is_required
    ]:
        shown = ", ".join(f"{name}={one_line(as_text(plan.inputs[name].default))}" for name in defaults)
        conversation.say(f"defaults, which `--input NAME=VALUE` changes: {shown}")
    for name, definition in asked.items():
        for problem in wrong[name] if name in given else ():
            conversation.say(f"--input {name}: {problem.message}")
        text = await ask_value(name, definition, conversation, empty=f"`--input {name}=` gives one")
        if text is None:
            break
        texts[name] = text
    return texts


def asks_in_form(*, yes: bool, detach: bool, has_server: bool) -> bool:
    """Return whether gates also open a form in the Prefect UI."""
    return has_server and not yes and not detach


def approver_for(*, yes: bool, detach: bool, conversation: "Conversation", edit: "Edit", is_alone: bool) -> "Approver | None":
    """Return the approver of this process; None if nobody answers here. `is_alone`: no form in Prefect is open, either."""
    if yes:
        return YesApprover()
    if detach or not is_at_terminal():
        return None
    return TerminalApprover(edit=edit, conversation=conversation, is_alone=is_alone)
