"""Tests of the public API: its names, the methods of the store, and the cost of importing it."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import plan_adapter

NAMES = [
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

STORE_METHODS = [
    "add_approval",
    "approvals",
    "attempts",
    "audit",
    "cancel",
    "changed",
    "close",
    "export",
    "get",
    "names",
    "now",
    "patient",
    "read_export",
    "receipts",
    "run",
    "runs",
    "save",
    "upgrade",
    "verify",
    "versions",
    "versions_problem",
]
STORE_PARTS = [
    "codes",
    "drafts",
    "gates",
    "operator_requests",
    "outcomes",
    "policy",
    "retention",
    "revisions",
    "standing",
]  # in addition to the internal ledger

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


def test_the_public_names_are_listed_in_order() -> None:
    assert list(plan_adapter.__all__) == NAMES


def test_every_public_name_is_in_dir() -> None:
    assert set(NAMES) <= set(dir(plan_adapter))


def test_every_public_name_has_its_own_docstring() -> None:
    documented = {name: getattr(plan_adapter, name) for name in NAMES}
    inherited = {name: {getattr(base, "__doc__", None) for base in getattr(value, "__mro__", ())[1:]} for name, value in documented.items()}
    assert [name for name, value in documented.items() if not value.__doc__ or value.__doc__ in inherited[name]] == []


def test_the_store_has_these_methods_and_parts(tmp_path: Path) -> None:
    store = plan_adapter.PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")
    methods = [name for name in public_of(store) if callable(getattr(store, name))]
    assert methods == STORE_METHODS
    assert set(public_of(store)) - set(methods) == {"label", "tenant_id", "ledger", *STORE_PARTS}


@pytest.mark.parametrize("part", STORE_PARTS)
def test_every_method_of_a_store_part_has_a_docstring_and_takes_no_connection(tmp_path: Path, part: str) -> None:
    store = plan_adapter.PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")
    assert f"- `{part}`: " in (plan_adapter.PlanStore.__doc__ or "")
    for name in public_of(getattr(store, part)):
        if name != "tenant_id":
            method = getattr(getattr(store, part), name)
            assert method.__doc__, f"{part}.{name} has no docstring"
            assert "connection" not in inspect.signature(method).parameters, f"{part}.{name} takes a connection"


def test_an_unknown_name_raises_an_attribute_error_with_the_name() -> None:
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


def public_of(value: object) -> list[str]:
    """Return the public attributes of `value`, sorted."""
    return [name for name in dir(value) if not name.startswith("_")]


def loaded_after(code: str) -> set[str]:
    """Return the heavy modules that `code` loads in a new interpreter."""
    report = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(ended.stdout.split())


def test_who_answers_revises_and_saves_is_the_account_of_the_process_by_default() -> None:
    from plan_adapter.gates.approval import os_user

    plan = plan_adapter.ExecutionPlan(description="x")
    plan.add_step("read_file", "Read", {"path": "x"})
    tools = plan_adapter.ToolRegistry.with_builtins()
    assert plan_adapter.approve(plan, tools=tools).by == plan_adapter.reject(plan, tools=tools).by == os_user()
    session = plan_adapter.PlanSession
    functions = (
        *(plan_adapter.approve, plan_adapter.reject, plan_adapter.resolve_step, plan_adapter.aresolve_step, plan_adapter.revise_run),
        *(plan_adapter.arevise_run, plan_adapter.run_plan, plan_adapter.cancel_run, session.approve, session.reject, session.revise),
    )
    assert {inspect.signature(function).parameters["by"].default for function in functions} == {None}
    assert inspect.signature(plan_adapter.PlanStore.save).parameters["author"].default is None
