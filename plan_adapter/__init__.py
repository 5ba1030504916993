"""Execution plans as dynamically built Prefect flows: checked, approved, run, resumed and recorded.

A name is imported when it is first used: `import plan_adapter` alone imports neither Prefect nor a database.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plan_adapter.agent.model import Model
    from plan_adapter.agent.openai_model import OpenAIModel
    from plan_adapter.agent.plan_tools import plan_tool, tool_inputs
    from plan_adapter.agent.planner import Planner
    from plan_adapter.documents import dump_plan, read_document
    from plan_adapter.gates.approval import Approver, approve, reject
    from plan_adapter.gates.approvers import CallbackApprover, PolicyApprover, PrefectApprover
    from plan_adapter.gates.terminal import TerminalApprover
    from plan_adapter.loading import aload_plan, load_plan
    from plan_adapter.model.approvals import Approval, ApprovalRequest, Gate, StandingApproval
    from plan_adapter.model.drafts import Draft, PlanRequest
    from plan_adapter.model.errors import (
        DraftError,
        ExpressionError,
        InvalidPlanError,
        ModelError,
        NoServerError,
        NotApprovedError,
        PlanAdapterError,
        RunConflictError,
        RunFailedError,
        StoreError,
        ToolError,
        UnknownOutcomeError,
    )
    from plan_adapter.model.hooks import Hooks
    from plan_adapter.model.options import ApprovalPolicy, Concurrency, ExecutionOptions, Input, Question, RunWindow
    from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
    from plan_adapter.model.problems import Problem
    from plan_adapter.model.record import PlanRun, PlanSummary, RunContext, StepRun
    from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
    from plan_adapter.runner import (
        acancel_run,
        aresolve_step,
        aresume_run,
        arevise_run,
        arun_plan,
        cancel_run,
        compile_plan,
        resolve_step,
        resume_run,
        revise_run,
        run_plan,
    )
    from plan_adapter.session import PlanSession
    from plan_adapter.store.store import PlanStore
    from plan_adapter.text.formatting import format_plan
    from plan_adapter.tool_functions import as_functions
    from plan_adapter.tools.order import OrderGuard
    from plan_adapter.tools.probing import Done, NotDone
    from plan_adapter.tools.registry import ToolRegistry
    from plan_adapter.tools.shell import command_tool
    from plan_adapter.tools.tool import Tool, ToolContext, as_tool, tool
    from plan_adapter.tools.working_copy import WorkingCopy
    from plan_adapter.validation import ValidatedPlan, find_problems, lint, validate

_EXPORTS = {
    "agent.model": ("Model",),
    "agent.openai_model": ("OpenAIModel",),
    "agent.plan_tools": ("plan_tool", "tool_inputs"),
    "agent.planner": ("Planner",),
    "model.approvals": ("Approval", "ApprovalRequest", "Gate", "StandingApproval"),
    "documents": ("dump_plan", "read_document"),
    "model.drafts": ("Draft", "PlanRequest"),
    "model.errors": (
        "DraftError",
        "ExpressionError",
        "InvalidPlanError",
        "ModelError",
        "NoServerError",
        "NotApprovedError",
        "PlanAdapterError",
        "RunConflictError",
        "RunFailedError",
        "StoreError",
        "ToolError",
        "UnknownOutcomeError",
    ),
    "text.formatting": ("format_plan",),
    "gates.approval": ("Approver", "approve", "reject"),
    "gates.approvers": ("CallbackApprover", "PolicyApprover", "PrefectApprover"),
    "gates.terminal": ("TerminalApprover",),
    "model.hooks": ("Hooks",),
    "loading": ("aload_plan", "load_plan"),
    "model.options": ("ApprovalPolicy", "Concurrency", "ExecutionOptions", "Input", "Question", "RunWindow"),
    "model.plan": ("ExecutionPlan", "Rollback", "Step"),
    "model.problems": ("Problem",),
    "model.record": ("PlanRun", "PlanSummary", "RunContext", "StepRun"),
    "runner": (
        "acancel_run",
        "aresolve_step",
        "aresume_run",
        "arevise_run",
        "arun_plan",
        "cancel_run",
        "compile_plan",
        "resolve_step",
        "resume_run",
        "revise_run",
        "run_plan",
    ),
    "session": ("PlanSession",),
    "model.status": ("PlanStatus", "RunReason", "StepStatus"),
    "store.store": ("PlanStore",),
    "tools.order": ("OrderGuard",),
    "tools.probing": ("Done", "NotDone"),
    "tools.registry": ("ToolRegistry",),
    "tools.shell": ("command_tool",),
    "tool_functions": ("as_functions",),
    "tools.tool": ("Tool", "ToolContext", "as_tool", "tool"),
    "tools.working_copy": ("WorkingCopy",),
    "validation": ("ValidatedPlan", "find_problems", "lint", "validate"),
}

_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "Approval",
    "ApprovalPolicy",
    "ApprovalRequest",
    "Approver",
    "CallbackApprover",
    "Concurrency",
    "Done",
    "Draft",
    "DraftError",
    "ExecutionOptions",
    "ExecutionPlan",
    "ExpressionError",
    "Gate",
    "Hooks",
    "Input",
    "InvalidPlanError",
    "Model",
    "ModelError",
    "NoServerError",
    "NotApprovedError",
    "NotDone",
    "OpenAIModel",
    "OrderGuard",
    "PlanAdapterError",
    "PlanRequest",
    "PlanRun",
    "PlanSession",
    "PlanStatus",
    "PlanStore",
    "PlanSummary",
    "Planner",
    "PolicyApprover",
    "PrefectApprover",
    "Problem",
    "Question",
    "Rollback",
    "RunConflictError",
    "RunContext",
    "RunFailedError",
    "RunReason",
    "RunWindow",
    "StandingApproval",
    "Step",
    "StepRun",
    "StepStatus",
    "StoreError",
    "TerminalApprover",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolRegistry",
    "UnknownOutcomeError",
    "ValidatedPlan",
    "WorkingCopy",
    "acancel_run",
    "aload_plan",
    "approve",
    "aresolve_step",
    "aresume_run",
    "arevise_run",
    "arun_plan",
    "as_functions",
    "as_tool",
    "cancel_run",
    "command_tool",
    "compile_plan",
    "dump_plan",
    "find_problems",
    "format_plan",
    "lint",
    "load_plan",
    "plan_tool",
    "read_document",
    "reject",
    "resolve_step",
    "resume_run",
    "revise_run",
    "run_plan",
    "tool",
    "tool_inputs",
    "validate",
]


def __getattr__(name: str) -> object:
    """Import the module that `name` lives in; raises AttributeError for other names."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
