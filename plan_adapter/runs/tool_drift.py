"""Tool drift: resuming a run whose tools differ from the approved ones, as a new version whose approval covers the changes."""

from dataclasses import replace

from plan_adapter.gates.tool_changes import ToolChange, code_drift_notices, tool_change_lines, tool_changes
from plan_adapter.model.approvals import Approval
from plan_adapter.model.canonical import approval_digest
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun, RunFolder
from plan_adapter.model.status import StepStatus
from plan_adapter.runs.folders import in_folder, move_text
from plan_adapter.store.revisions import Revision
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import code_digest
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate_recorded

OTHER_TOOLS = (
    "the run was created with other tools than these: pass the same ones again (`--tools package.module:name`, PLAN_ADAPTER_TOOLS)"
)
"""The hint for a recorded plan that calls a tool this process does not have."""


def bind_recorded_plan(run: PlanRun, plan: ExecutionPlan, tools: ToolRegistry, *, moved_to: RunFolder | None = None) -> BoundPlan:
    """Return the recorded `plan` of `run`, bound to its inputs and the current tools. Raises InvalidPlanError.

    If the run was moved before, or is `moved_to` a folder now, the result covers that folder.
    """
    folder = moved_to or (run.folder if run.folder is not None and run.folder.is_moved else None)
    try:
        return in_folder(bind_inputs(validate_recorded(plan, tools, digest=run.digest), run.inputs), folder)
    except InvalidPlanError as error:
        problems = [replace(found, hint=OTHER_TOOLS) if found.code == "unknown-tool" else found for found in error.problems]
        raise InvalidPlanError(problems) from None


def has_same_plan_and_inputs(bound: BoundPlan, run: PlanRun) -> bool:
    """Return whether the plan and inputs of `bound` are those of `run`. The tools may differ."""
    validated = bound.validated
    recorded = approval_digest(run.digest, run.inputs, validated.definitions, permissions=validated.decided_permissions)
    return bound.approval_digest == recorded


async def find_changed_tools(validated: ValidatedPlan, run: PlanRun, store: PlanStore) -> list[ToolChange]:
    """Return the tools whose definitions differ from those recorded with `run`. Raises NotApprovedError if the record was altered."""
    kept = await store.ledger.definitions(run.id)
    folder = run.folder.content if run.folder is not None and run.folder.is_moved else None
    if approval_digest(run.digest, run.inputs, kept, folder, permissions=validated.decided_permissions) != run.approval_digest:
        raise NotApprovedError(
            f"the approval digest of run {run.id} does not match its plan, inputs and tools: its record was altered "
            f"(`plan verify {run.id}` shows where)"
        )
    return tool_changes(kept, validated.definitions)


async def adopt_tools(bound: BoundPlan, run: PlanRun, store: PlanStore, *, by: str) -> PlanRun:
    """Make the plan with its current tools and folder the new version of `run`, and return the run, which waits for an approval of it.

    Completed steps stay completed. Approvals of single calls stay good if their tool and folder are unchanged. Raises RunConflictError as
    `revise_run` does.
    """
    note = await _describe_differences(bound, run, store, "tools changed")
    return await store.revisions.revise(run.id, bound.validated, bound.approval_digest, by=by, note=note, folder=bound.folder)


async def _describe_differences(bound: BoundPlan, run: PlanRun, store: PlanStore, tools_changed: str) -> str:
    """Return a description of how the tools and the folder differ from those of `run`."""
    changes = describe_tool_changes(await find_changed_tools(bound.validated, run, store))
    moved = None if bound.folder is None else move_text(run.folder, bound.folder)
    return "; ".join(([f"{tools_changed}: {changes}"] if changes else []) + ([moved] if moved is not None else []))


async def refuse_changed_tools(bound: BoundPlan, run: PlanRun, store: PlanStore, *, then: str) -> None:
    """Raise NotApprovedError if the tools or folder of `bound` differ from those of `run`. The message ends with `then`."""
    if bound.approval_digest != run.approval_digest:
        why = await _describe_differences(bound, run, store, f"tools of run {run.id} have changed since it was approved")
        raise NotApprovedError(f"{why}; {then}")


def describe_tool_changes(changes: list[ToolChange]) -> str:
    """Return the changed tools in words, each with its changes."""
    return "; ".join(f"`{change.name}` ({change.summary})" for change in changes)


def version_to_compare(revisions: list[Revision], answers: list[Approval]) -> Revision | None:
    """Return the version to compare the current one with: the last approved one, or else the last one answered, or else the first.

    Several versions may have followed the last answer. The next approver has to see everything that changed since.
    """
    answered = [answer for answer in answers if answer.step_id is None]
    approved = {answer.approval_digest for answer in answered if answer.used_at is not None}
    for seen in (approved, {answer.approval_digest for answer in answered}):
        if (last := next((revision for revision in reversed(revisions) if revision.approval_digest in seen), None)) is not None:
            return last
    return revisions[0] if revisions else None


def tool_drift_lines(bound: BoundPlan, run: PlanRun, replaced: Revision | None) -> list[str]:
    """Return lines for a gate's text about the tools that changed since the `replaced` version."""
    if replaced is None:
        return []
    done = {step.id for step in run.steps if step.status is StepStatus.COMPLETED}
    changes = tool_changes(replaced.definitions, bound.validated.definitions)
    return tool_change_lines(changes, bound.validated.plan, bound.validated.definitions, done=done)


async def code_notices(validated: ValidatedPlan, run: PlanRun, store: PlanStore) -> list[str]:
    """Return notices about tools whose code has changed since the run last called them, whatever their definitions say."""
    attempts = await store.attempts(run.id)
    if not attempts:
        return []
    return code_drift_notices(attempts, {name: code_digest(tool) for name, tool in validated.used_tools.items()})
