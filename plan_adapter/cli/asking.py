"""Questions at the terminal: missing inputs, fields, confirmations and gates. `--yes` or the form in Prefect may answer a gate instead."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.execution.redactor import Redactor
from plan_adapter.gates.approval import Approver, answer_to, os_user, refusal
from plan_adapter.gates.conversation import Conversation, ask_fields, ask_value
from plan_adapter.gates.identity import identity_of_account
from plan_adapter.gates.terminal import Edit, TerminalApprover
from plan_adapter.local.secrets import known_values
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval, ApprovalRequest, Decision, GatePolicy, Resolution
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError
from plan_adapter.model.readable import as_text, counted, one_line
from plan_adapter.model.values import join
from plan_adapter.text.commands import Question, answer_command
from plan_adapter.validation.inputs import read_values

if TYPE_CHECKING:
    from pydantic import JsonValue

    from plan_adapter.model.options import Input
    from plan_adapter.model.plan import ExecutionPlan


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


async def ask_missing_inputs(plan: "ExecutionPlan", given: Mapping[str, object]) -> dict[str, object]:
    """Return `given` with the texts of the required inputs that it lacks or that do not fit, asked for at the terminal one by one.

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
        name for name, definition in plan.inputs.items() if name not in asked and name not in given and definition.default is not None
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


def refuse_mismatched_answer(asked: Question, decision: Decision | Resolution, fields: Sequence[str] | None, *, api: bool = False) -> None:
    """Raise UsageError for a bare approval at a gate that asks a question, and for an answer with `fields` at any other gate."""
    if decision == "approve" and (asked.kind == "question") != (fields is not None):
        asks = "asks a question" if asked.kind == "question" else "asks for an approval, not a question"
        raise UsageError(f"this gate {asks}: `{answer_command(asked, api=api)}`")


async def read_field_values(given: Sequence[str], fields: "Mapping[str, Input]", *, may_ask: bool) -> "dict[str, JsonValue]":
    """Return the values of a question's fields from `field=value` texts. Without any, ask at the terminal if there is one and `may_ask`.

    Raises InvalidPlanError with every problem of the values, and UsageError if the input ends.
    """
    if not given and may_ask and is_at_terminal():
        answer = await ask_fields(fields, Conversation())
        if answer is None:
            raise UsageError("nothing was answered")
        return answer
    values, problems = read_values(fields, _field_texts(given), from_text=True, what="field")
    if problems:
        redact = Redactor.of(await known_values(Settings(), ())).text
        shown = [replace(each, at=redact(each.at), message=redact(each.message), hint=redact(each.hint)) for each in problems]
        raise InvalidPlanError(shown)
    return values


def _field_texts(pairs: Sequence[str]) -> dict[str, str]:
    texts = dict[str, str]()
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"`{pair}`: write field=value")
        if name in texts:
            raise UsageError(f"the field `{name}` is given twice")
        texts[name] = value
    return texts
