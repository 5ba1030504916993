"""Shared by the drafting verbs: questions of the model, the file to write, and the report on a draft."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.agent.prompts import problem_line
from plan_adapter.cli import output
from plan_adapter.cli.asking import is_at_terminal
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import drafting_tools_of
from plan_adapter.documents import dump_plan
from plan_adapter.gates.conversation import Conversation
from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.model.readable import counted, duration, one_line
from plan_adapter.text.draft_text import check_status, cost_of

if TYPE_CHECKING:
    from plan_adapter.model.drafts import Draft, ModelCall, PlanRequest
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.tools.registry import ToolRegistry


class TerminalAsker:
    """Asks the model's questions at the terminal, and keeps a question that nobody answered."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.unanswered: str | None = None

    async def __call__(self, question: str) -> str | None:
        """Return the answer; None without a terminal."""
        if is_at_terminal():
            conversation = Conversation()
            conversation.say(f"the model asks: {question}")
            while (reply := await conversation.ask("your answer: ", drop_typeahead=True)) is not None:
                if reply:
                    return reply
        self.unanswered = question
        return None


async def ask_for_tools(imports: Sequence[str]) -> "ToolRegistry":
    """Ask at the terminal which built-in tools a model may plan with, and return them; none without a terminal."""
    from plan_adapter.tools.registry import ToolRegistry  # builds the schemas of all tools

    built_in = ToolRegistry.with_builtins()
    if not is_at_terminal():
        return drafting_tools_of(imports, [])
    conversation = Conversation()
    conversation.say("you named no tools that the model may plan with; these are built in:")
    for tool in built_in:
        conversation.say(f"  {tool.name} ({tool.effect}): {one_line(tool.description.strip().splitlines()[0])}")
    chosen, question = list[str](), "which of them may it use? NAME …, or Enter for none: "
    while (reply := await conversation.ask(question, drop_typeahead=True)) is not None:
        names, faults = reply.replace(",", " ").split(), list[str]()
        for name in names:
            try:
                drafting_tools_of(imports, [name])
                chosen.append(name)
            except ToolDefinitionError as error:
                faults.append(str(error))
        if not faults:
            break
        for fault in faults:
            conversation.say(fault)
        if chosen:
            question = f"it may use {', '.join(dict.fromkeys(chosen))}; which others? NAME …, or Enter for no more: "
    return drafting_tools_of(imports, [*dict.fromkeys(chosen)])


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the result goes: a file, or stdout if `path` is None."""

    path: Path | None
    force: bool
    tools: tuple[str, ...]  # import strings that the plan needs

    def resume_command(self, draft_id: str) -> str:
        """Return the command that continues a draft and writes its plan here."""
        tools = [part for name in self.tools for part in ("--tools", name)]
        return shlex.join(["plan", "draft", "--resume", draft_id, *tools, *(("-o", str(self.path)) if self.path is not None else ())])

    def faults(self) -> list[str]:
        """Return why the file cannot be written, before the model is asked."""
        path = self.path
        if path is None:
            return []
        if path.is_dir():
            return [output.folder_message(path)]
        if path.exists() and not self.force:
            return [output.exists_message(path)]
        return [] if path.parent.is_dir() else [f"there is no folder {path.parent}"]

    def write(self, text: str) -> None:
        """Write `text`. If that fails, print it, because it cost money, then raise UsageError."""
        path = self.path
        if path is None:
            output.document(text)
            return
        try:
            if self.force:
                output.write_file(path, text)
            else:
                with path.open("x", encoding="utf-8", newline="\n") as file:
                    file.write(text)
        except FileExistsError:
            output.document(text)
            raise UsageError(output.exists_message(path)) from None
        except OSError as error:
            output.document(text)
            raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
        except UsageError:
            output.document(text)
            raise
        output.note(f"wrote {path}")

    def write_plan(self, plan: "ExecutionPlan", *, comments: Mapping[str, str] | None = None) -> None:
        """Write `plan` as YAML, with `comments` above the paths they name, or as JSON, which has none.

        It is JSON if the file name ends in .json, or if stdout shows only ASCII.
        """
        if self.path is None and not output.is_unicode(sys.stdout):
            self.write(output.json_text(plan.to_document(), is_ascii=True, indent=2) + "\n")
        elif self.path is not None and self.path.suffix.lower() == ".json":
            self.write(output.json_text(plan.to_document(), indent=2) + "\n")
        else:
            self.write(dump_plan(plan, comments=comments))
        if self.path is not None:
            command = ["plan", "preview", str(self.path), *(part for name in self.tools for part in ("--tools", name))]
            output.note(f"next: {shlex.join(command)}")


@dataclass(frozen=True, slots=True)
class DraftJob:
    """A draft to make: the request, the tools to plan with, and where the plan goes."""

    request: "PlanRequest"
    tools: "ToolRegistry"
    destination: Destination
    as_json: bool


def call_line(call: "ModelCall") -> str:
    """Return a line about one round: how it was asked, what it cost, and what must be corrected."""
    cost = f"{counted(call.usage.total, 'token')}, {duration(call.seconds * 1000)}"
    problems = "; ".join(_shorten_problem(problem) for problem in call.problems)
    return f"round {call.number}: {call.phase}, {call.rung}, {cost}" + (f"; to correct: {one_line(problems)}" if problems else "")


def _shorten_problem(problem: str) -> str:
    """Return the place and code of a problem, or its message if it has no place."""
    at, _, message = problem.partition("] ")
    return message.partition("; ")[0] if at.startswith("[") else f"{at}]"


def draft_json(draft: "Draft", *, question: str | None) -> dict[str, Any]:
    """Return a draft as `--json` prints it; `question`: what the model asked and nobody answered."""
    return {
        "id": draft.id,
        "model": draft.model,
        "plan": None if draft.plan is None else draft.plan.to_document(),
        "speak": draft.speak,
        "complexity": draft.complexity,
        "constraints": [asdict(kept) for kept in draft.constraints],
        "notes": draft.notes,
        "calls": [_call_json(call) for call in draft.calls],
        "problems": [output.problem_json(problem) for problem in draft.problems],
        "question": question,
        "failure": draft.failure,
    }


def _call_json(call: "ModelCall") -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(call, name) for name in ("number", "model", "phase", "rung", "seconds")}
    return {**fields, "tokens": call.usage.total, "problems": list(call.problems)}


def report(draft: "Draft", destination: Destination, *, as_json: bool) -> ExitCode:
    """Write the plan, print the report, and return the exit code. With `as_json` the draft is already printed."""
    if draft.plan is not None and (not as_json or destination.path is not None):
        destination.write_plan(draft.plan)
    print_report(draft)
    return ExitCode.DONE if draft.plan is not None else ExitCode.FAILED


def print_report(draft: "Draft") -> None:
    """Print the report on a draft: constraints, notes, problems, why it has no plan, and its cost."""
    if draft.speak:
        output.note(f"the model says: {one_line(draft.speak)}")
    for kept in draft.constraints:
        output.note(f"constraint {kept.number} ({one_line(kept.text)}): {check_status(kept)}: {one_line(kept.how)}")
    for text in draft.notes:
        output.note(f"note: {one_line(text)}")
    if draft.failure is not None:
        output.note(f"plan: {draft.failure}")
        _print_problems(draft)
    if draft.usage.total:
        output.note(f"{cost_of(draft)}, by {one_line(draft.calls[-1].model)}")


def _print_problems(draft: "Draft") -> None:
    for problem in draft.problems:
        output.note(f"  {one_line(problem_line(problem))}")
