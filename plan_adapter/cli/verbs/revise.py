"""`plan revise`."""

from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.asking import is_at_terminal
from plan_adapter.cli.drafting import TerminalAsker, call_line, draft_json, print_report
from plan_adapter.cli.editing import edited_plan
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import difference_lines, difference_title, run_json
from plan_adapter.cli.sources import drafting_tools_of, is_words, model_of, open_store, plan_of, tools_of
from plan_adapter.gates.approval import os_user
from plan_adapter.gates.conversation import Conversation
from plan_adapter.local.settings import Settings
from plan_adapter.text.commands import SHOWN_DIGITS, resume_command_after_gate

if TYPE_CHECKING:
    from plan_adapter.model.drafts import Draft
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.model.record import PlanRun
    from plan_adapter.store.store import PlanStore
    from plan_adapter.tools.registry import ToolRegistry


async def revise(
    run: str,
    plan: str | None = None,
    /,
    *,
    note: str = "",
    edit: bool = False,
    allow_tool: list[str] | None = None,
    secret: list[str] | None = None,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Replace the plan of a run that has not completed with a new version: show what differs, and ask for approval again.

    The run keeps its inputs, its results, and the approvals of steps that did not change. A step that has succeeded, or may have been
    done, must stay as it is; a failed step can be changed or removed.

    Give words instead of a plan, and the configured model redrafts the remaining steps from the record of the run.

    Args:
        run: The id of a run, its beginning or end, `last`, or the id of a flow run.
        plan: The new version, named as for `plan run`; or words that say what to change.
        note: Why; it is recorded with the version.
        edit: Open the current plan in your editor (VISUAL, EDITOR) instead.
        allow_tool: With words: a built-in tool that the model may use beside those of the plan; may be repeated.
        secret: With words: a name that the model may use as `${{ secrets.NAME }}` beside those of the plan; may be repeated.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        json: Print the run as a JSON object, with `changes`.
    """
    # These import SQLAlchemy.
    from plan_adapter.runner import arevise_run
    from plan_adapter.runs.replan import revision_note

    if edit == (plan is not None):
        raise UsageError("give the new version as a file or in words, or use --edit")
    instructions = plan if plan is not None and is_words(plan) else None
    if (allow_tool or secret) and instructions is None:
        raise UsageError("--allow-tool and --secret are for a model: say in words what to change")
    registry, named = tools_of(tools or []), _names_for_model(tools, allow_tool, secret)
    async with open_store(Settings()) as store:
        found = await store.run(run)
        old = await store.get(found.digest)
        draft = None if instructions is None else await _draft_with_model(found, instructions, store, registry, *named, as_json=json)
        new = draft.plan if draft is not None else await _read_new_version(found, plan, store, registry)
        if new is None:
            output.note(f"run {found.id} is unchanged")
            return ExitCode.DONE if draft is None else ExitCode.FAILED
        is_attended = any(gate.attended is not False for gate in await store.gates.find(run_id=found.id))
        why = note if draft is None else revision_note(draft, note or instructions or "")
        revised = await arevise_run(found.id, new, tools=registry, by=os_user(), note=why, store=store)
        is_asked = bool(await store.gates.find(run_id=revised.id))
    _print_changes(revised, difference_lines(old, new), draft, as_json=json)
    _print_next(revised, is_attended=is_attended, is_asked=is_asked)
    return ExitCode.DONE


def _names_for_model(tools: list[str] | None, names: list[str] | None, secrets: list[str] | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the tools and of the secrets that the model may use."""
    return drafting_tools_of(tools or [], names or []).names(), tuple(secrets or ())


async def _draft_with_model(
    run: "PlanRun",
    instructions: str,
    store: "PlanStore",
    tools: "ToolRegistry",
    names: list[str],
    secrets: tuple[str, ...],
    *,
    as_json: bool,
) -> "Draft":
    """Return the model's draft after printing the report on it; as JSON if the draft has no plan."""
    # Only where a model redrafts.
    from plan_adapter.agent.planner import Budget
    from plan_adapter.runner import draft_revision
    from plan_adapter.runs.replan import Replanner

    if not instructions.strip():
        raise UsageError("the words are empty: say what to change")
    settings, asker = Settings(), TerminalAsker()
    model = model_of(settings)
    budget = Budget.of(settings)
    replanner = Replanner(model, names, secrets, asker, budget, on_call=lambda call: output.note(call_line(call)))
    output.note(f"asking {model.name}, which redrafts the remaining steps of run {run.id}")
    try:
        draft = await draft_revision(run.id, instructions.strip(), replanner=replanner, tools=tools, by=os_user(), store=store)
    finally:
        await model.aclose()
    if as_json and draft.plan is None:
        output.json_line("draft", draft_json(draft, question=asker.unanswered))
    print_report(draft)
    return draft


async def _read_new_version(run: "PlanRun", source: str | None, store: "PlanStore", tools: "ToolRegistry") -> "ExecutionPlan | None":
    """Return the new version from a document, or from the editor if `source` is None."""
    if source is None:
        return await _edit_plan(run, store, tools)
    try:
        return await plan_of(source, store)
    except UsageError as error:
        raise UsageError(
            f'{error}; words for a model are more than one word, in quotes: plan revise {run.id} "retry on the other mirror"'
        ) from error


async def _edit_plan(run: "PlanRun", store: "PlanStore", tools: "ToolRegistry") -> "ExecutionPlan | None":
    if not is_at_terminal():
        raise UsageError("--edit needs a terminal", hint="give the new version as a file")
    return await edited_plan(run, store, tools, Conversation())


def _print_changes(run: "PlanRun", changes: list[str], draft: "Draft | None", *, as_json: bool) -> None:
    if as_json:
        output.json_line("run", {**run_json(run, steps=False), "changes": changes, **({} if draft is None else {"draft": draft.id})})
    else:
        output.line("\n".join([difference_title(changes), *changes]))
        output.line(f"run {run.id} has the new version: {run.status}")


def _print_next(run: "PlanRun", *, is_attended: bool, is_asked: bool) -> None:
    if is_attended:
        output.note("the waiting process now asks about the new version")
    elif not is_asked:
        output.note(f"it needs no approval: `{resume_command_after_gate(run)}` resumes the run")
    else:
        command = f"plan approve {run.id} --digest {run.approval_digest[:SHOWN_DIGITS]}"
        output.note(f"`{command}` approves it, then `{resume_command_after_gate(run)}` resumes the run")
