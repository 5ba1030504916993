"""Editing the plan of a run in the user's editor, until it is valid or they give up."""

import asyncio
import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.cli.records import difference_lines, difference_title
from plan_adapter.documents import dump_plan, read_document
from plan_adapter.gates.approval import os_user
from plan_adapter.gates.conversation import Conversation
from plan_adapter.model.errors import InvalidPlanError, PlanAdapterError
from plan_adapter.validation import bind_inputs, validate

if TYPE_CHECKING:
    from plan_adapter.model.approvals import ApprovalRequest
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.model.record import PlanRun
    from plan_adapter.store.store import PlanStore
    from plan_adapter.tools.registry import ToolRegistry

HEADER = "# The plan of run {run}. Save and quit to propose your changes; quit without changes to go back.\n"


@dataclass(frozen=True, slots=True)
class PlanEditor:
    """Lets the user edit a plan at its gate."""

    store: "PlanStore"
    tools: "ToolRegistry"

    async def __call__(self, request: "ApprovalRequest", conversation: Conversation) -> bool:
        """Open the editor, and return whether a new version replaced the plan."""
        from plan_adapter.runner import arevise_run  # imports SQLAlchemy

        assert request.run_id is not None
        try:
            run = await self.store.run(request.run_id)
            plan = await edited_plan(run, self.store, self.tools, conversation)
            if plan is None:
                return False
            note = await conversation.ask("Why? (one line, may be empty) ")
            await arevise_run(run.id, plan, tools=self.tools, by=os_user(), note=note or "", store=self.store)
        except (PlanAdapterError, UsageError) as error:
            conversation.say(f"the plan is unchanged: {error}")
            return False
        conversation.say("the new version replaces it and is asked about now")
        return True


async def edited_plan(run: "PlanRun", store: "PlanStore", tools: "ToolRegistry", conversation: Conversation) -> "ExecutionPlan | None":
    """Let the user edit the plan of `run`. Return a plan that is valid with its inputs, or None if nothing changes."""
    old = await store.get(run.digest)
    with tempfile.TemporaryDirectory(prefix="plan-edit-") as folder:
        path = Path(folder, "plan.yaml")
        output.write_file(path, HEADER.format(run=run.id) + dump_plan(old))
        while True:
            await _open_editor(path)
            plan, findings = _read_edited_plan(path, run, tools)
            if plan is None:
                conversation.say("\n".join(findings))
                if not await _ask_yes_no(conversation, "Edit it again? [Y/n] ", default=True):
                    return None
                continue
            lines = difference_lines(old, plan)
            if not lines:
                conversation.say("nothing was changed")
                return None
            conversation.say("\n".join([difference_title(lines), *lines]))
            if await _ask_yes_no(conversation, "Use this version? [y/N] ", default=False):
                return plan
            if not await _ask_yes_no(conversation, "Edit it again? [y/N] ", default=False):
                return None


def _read_edited_plan(path: Path, run: "PlanRun", tools: "ToolRegistry") -> "tuple[ExecutionPlan | None, list[str]]":
    plan, problems = read_document(path.read_text(encoding="utf-8", errors="replace"), file=path.name)
    if plan is None:
        return None, [str(problem) for problem in problems]
    try:
        bind_inputs(validate(plan, tools), run.inputs)
    except InvalidPlanError as error:
        return None, [str(problem) for problem in error.problems]
    return plan, []


async def _open_editor(path: Path) -> None:
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        editor = await asyncio.create_subprocess_exec(*command, str(path))
    except OSError as error:
        raise UsageError(f"the editor `{command[0]}` cannot be started ({error.strerror}): set VISUAL or EDITOR") from error
    try:
        code = await editor.wait()
    except asyncio.CancelledError:
        editor.terminate()  # somebody answered elsewhere meanwhile
        await editor.wait()
        raise
    if code != 0:
        raise UsageError(f"the editor `{command[0]}` ended with code {code}")


async def _ask_yes_no(conversation: Conversation, question: str, *, default: bool) -> bool:
    answer = await conversation.ask(question)
    if answer is None:
        return False
    return default if not answer else answer.casefold() in ("y", "yes")
