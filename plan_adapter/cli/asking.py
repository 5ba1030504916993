"""What is asked at the terminal: the inputs that a run lacks, and gates, which `--yes` or only the form may answer instead."""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import Approver, answer_to, os_user, refusal
from plan_adapter.gates.terminal import Conversation, Edit, TerminalApprover
from plan_adapter.readable import counted, is_secret_name, one_line
from plan_adapter.record import Approval, ApprovalRequest, GatePolicy
from plan_adapter.validation.inputs import read_values, type_in_words

if TYPE_CHECKING:
    from plan_adapter.plan import ExecutionPlan, Input


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


async def ask_missing_inputs(plan: "ExecutionPlan", given: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of `given` and of the required inputs that it lacks, asked for at the terminal one by one.

    Nothing is asked if a text of `given` does not fit. The end of the input leaves the rest missing.
    """
    texts, problems = dict(given), read_values(plan.inputs, given, from_text=True)[1]
    if not problems or any(problem.code != "missing-input" for problem in problems):
        return texts
    missing = {name: definition for name, definition in plan.inputs.items() if definition.is_required and name not in given}
    conversation = Conversation()
    conversation.say(f"{one_line(plan.name)} needs {counted(len(missing), 'input')}; Ctrl-C ends the command, and nothing starts")
    for name, definition in missing.items():
        text = await _ask_input(name, definition, conversation)
        if text is None:
            break
        texts[name] = text
    return texts


async def _ask_input(name: str, definition: "Input", conversation: Conversation) -> str | None:
    """Return a text that fits the input, or None at the end of the input."""
    choices = _choices(definition)
    conversation.say("\n".join(_about_input(name, definition, choices)))
    while (typed := await conversation.ask(f"{name}: ", hidden=is_secret_name(name))) is not None:
        text = choices.get(typed, typed)
        problems = read_values({name: definition}, {name: text}, from_text=True)[1]
        if typed and not problems:
            return text
        for problem in problems:
            hint = f"; {problem.hint}" if problem.hint and problem.hint != definition.description else ""
            conversation.say(f"  {problem.message}{hint}")
        if not problems:
            conversation.say(f"  an empty text is not taken here; `--input {name}=` gives one")
    return None


def _about_input(name: str, definition: "Input", choices: Mapping[str, str]) -> Iterator[str]:
    """Yield what a person sees of an input, as in the form: its title, type, description and choices."""
    named = f"{one_line(definition.title)} ({name})" if definition.title else name
    yield f"{named}: {type_in_words(definition)}"
    if definition.description:
        yield f"  {one_line(definition.description)}"
    for key, text in choices.items():
        yield f"  {one_line(text)}" if key == text else f"  {key}) {one_line(text)}"


def _choices(definition: "Input") -> dict[str, str]:
    """Return the texts of the choices by what selects them besides their text: their number, unless a choice is a number itself."""
    texts = [member if isinstance(member, str) else json.dumps(member, ensure_ascii=False) for member in definition.enum or ()]
    if any(text.isdecimal() for text in texts):
        return {text: text for text in texts}
    return {str(number): text for number, text in enumerate(texts, start=1)}


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
