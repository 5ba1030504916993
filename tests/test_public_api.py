"""What `from plan_adapter import …` offers, and what it costs."""

import subprocess
import sys

import pytest

import plan_adapter

NAMES = [
    "Approval",
    "ApprovalRequest",
    "Approver",
    "CallbackApprover",
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
    "RunConflictError",
    "RunContext",
    "RunFailedError",
    "RunReason",
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
    "acancel_run",
    "approve",
    "aresolve_step",
    "aresume_run",
    "arevise_run",
    "arun_plan",
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

HEAVY = (
    "prefect",
    "sqlalchemy",
    "alembic",
    "httpx",
    "rich",
    "cyclopts",
    "yaml",
    "cel_expr_python",
    "plan_adapter.engine",
    "plan_adapter.store",
)


def test_the_public_names_are_these_and_sorted() -> None:
    assert list(plan_adapter.__all__) == NAMES


def test_every_public_name_is_there_and_is_listed() -> None:
    assert set(NAMES) <= set(dir(plan_adapter))


def test_every_public_name_has_a_docstring_of_its_own() -> None:
    documented = {name: getattr(plan_adapter, name) for name in NAMES}
    inherited = {name: {getattr(base, "__doc__", None) for base in getattr(one, "__mro__", ())[1:]} for name, one in documented.items()}
    assert [name for name, one in documented.items() if not one.__doc__ or one.__doc__ in inherited[name]] == []


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        plan_adapter.no_such_name  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_package_imports_no_heavy_library() -> None:
    heavy = loaded_after("import plan_adapter")
    assert heavy == set()


def test_building_a_plan_imports_no_heavy_library() -> None:
    heavy = loaded_after(
        "from plan_adapter import ExecutionPlan, tool\n"
        "plan = ExecutionPlan(description='Check the site')\n"
        "plan.add_step('fetch_page', 'Fetch it', {'url': 'http://127.0.0.1/'})\n"
    )
    assert heavy == set()


def loaded_after(code: str) -> set[str]:
    """Run `code` in a fresh interpreter and return which of the heavy modules it loaded."""
    report = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(ended.stdout.split())
