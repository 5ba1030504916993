"""Tests of the public API: its names, the methods of the store, and the cost of importing it."""

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import plan_adapter
from plan_adapter import gates, runs
from plan_adapter.agent import PlanSession

FIRST_PAGE = [
    "Approver",
    "ExecutionPlan",
    "PlanAdapterError",
    "PlanRun",
    "PlanStore",
    "Step",
    "ToolRegistry",
    "approve",
    "compile_plan",
    "resume_run",
    "run_plan",
    "tool",
]

MOVED = [
    "Approval",
    "ApprovalPolicy",
    "ApprovalRequest",
    "CallbackApprover",
    "Concurrency",
    "Done",
    "Draft",
    "DraftError",
    "ExecutionOptions",
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
    "PlanRequest",
    "PlanSession",
    "PlanStatus",
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
    "StepRun",
    "StepStatus",
    "StoreError",
    "TerminalApprover",
    "Tool",
    "ToolContext",
    "ToolError",
    "Trigger",
    "UnknownOutcomeError",
    "ValidatedPlan",
    "WorkingCopy",
    "acancel_run",
    "aload_plan",
    "aresolve_step",
    "aresume_run",
    "arevise_run",
    "arun_plan",
    "as_functions",
    "as_tool",
    "cancel_run",
    "command_tool",
    "dump_plan",
    "find_problems",
    "format_plan",
    "lint",
    "load_plan",
    "plan_tool",
    "read_document",
    "reject",
    "resolve_step",
    "revise_run",
    "tool_inputs",
    "validate",
]
"""The names that `plan_adapter` offered before, and that it offers with a warning for one more minor version."""

NEW = [
    *("ApprovalRequiredError", "NotStoredError", "Rule", "RunNotFoundError", "RunOutcome", "answer_to"),
    *("aanswer_gate", "acontinue_run", "aget_run", "alist_runs", "answer_gate", "aopen_gates", "arollback_run", "astart_run"),
    *("DryRun", "DryRunCall", "DryRunGate", "Simulation", "adry_run_plan", "dry_run_plan"),
    *("ContentChangedError", "Failed", "InvalidAnswerError", "NotVerifiedError"),
    *("Difference", "Replay", "ReplayFinding", "ReplayedRun", "areplay_runs", "replay_runs"),
    *("Escalation",),
    *("Plans", "continue_run", "get_run", "list_runs", "open_gates", "rollback_run", "start_run"),
]
"""Names that came after that."""

PLACES = [f"plan_adapter.{name}" for name in ("agent", "errors", "gates", "plans", "runs", "store", "tools")]

STORE_METHODS = [
    "add_approval",
    "approvals",
    "attempts",
    "attest",
    "audit",
    "authors",
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
    "change_records",
    "codes",
    "drafts",
    "gate_messages",
    "gates",
    "operator_requests",
    "outcomes",
    "policy",
    "retention",
    "revisions",
    "standing",
    "trigger_events",
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
    *("pydantic_ai", "langgraph", "langchain_core", "agents"),
    "plan_adapter.engine",
    "plan_adapter.store",
)


def public_names() -> dict[str, object]:
    """Return every public name with its value, read from the one module that offers it."""
    modules = [import_module(place) for place in ("plan_adapter", *PLACES)]
    return {name: getattr(module, name) for module in modules for name in module.__all__}


def test_the_first_page_has_twelve_names() -> None:
    assert list(plan_adapter.__all__) == FIRST_PAGE
    assert set(FIRST_PAGE) <= set(dir(plan_adapter))
    assert set(MOVED).isdisjoint(dir(plan_adapter))


def test_every_name_is_offered_by_one_module_and_is_no_submodule() -> None:
    names = [name for place in ("plan_adapter", *PLACES) for name in import_module(place).__all__]
    assert sorted(names) == sorted({*FIRST_PAGE, *MOVED, *NEW})
    for place in PLACES:
        module = import_module(place)
        assert set(module.__all__) <= set(dir(module))
        submodules = {found.name for found in iter_modules(getattr(module, "__path__", ()))}
        assert submodules.isdisjoint(module.__all__), place


@pytest.mark.parametrize("name", MOVED)
def test_a_name_that_moved_is_the_same_at_its_former_place_and_warns(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"`{name}` moved: write `from plan_adapter.[a-z]+ import {name}`") as found:
        value = getattr(plan_adapter, name)
    assert value is public_names()[name]
    assert found[0].filename == __file__
    with pytest.raises(DeprecationWarning, match=f"`{name}` moved"):  # as configured for these tests; it warns again
        exec(f"from plan_adapter import {name}", {})


def test_every_public_name_has_its_own_docstring() -> None:
    inherited = {
        name: {getattr(base, "__doc__", None) for base in getattr(value, "__mro__", ())[1:]} for name, value in public_names().items()
    }
    assert [name for name, value in public_names().items() if not value.__doc__ or value.__doc__ in inherited[name]] == []


def test_the_guide_lists_the_public_names_by_module() -> None:
    text = (Path(plan_adapter.__file__).parent / "guide/embedding.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(plan_adapter[.a-z]*)` \| (.*) \|$", text, re.MULTILINE))
    assert {place: re.findall(r"`(\w+)`", names) for place, names in rows.items()} == {
        place: import_module(place).__all__ for place in ("plan_adapter", *PLACES)
    }


TWINS = ["cancel_run", "load_plan", "resolve_step", "resume_run", "revise_run", "run_plan"]


@pytest.mark.parametrize("name", TWINS)
def test_a_sync_twin_has_the_signature_of_its_async_function(name: str) -> None:
    twin, function = public_names()[name], public_names()[f"a{name}"]
    assert callable(twin) and callable(function)
    assert (twin.__name__, twin.__qualname__, inspect.iscoroutinefunction(twin)) == (name, name, False)  # type: ignore[attr-defined]
    assert inspect.signature(twin) == inspect.signature(function)
    assert f"`a{name}`" in (inspect.getdoc(twin) or "")


async def test_a_sync_twin_in_a_running_event_loop_names_the_function_to_await() -> None:
    plan, tools = plan_adapter.ExecutionPlan(description="x"), plan_adapter.ToolRegistry()
    with pytest.raises(RuntimeError, match="an event loop is running here: await `arun_plan` instead"):
        plan_adapter.run_plan(plan, tools=tools)


@pytest.mark.thorough
def test_type_checkers_see_the_public_names_and_the_signatures_of_twins() -> None:
    file = Path(__file__).with_name("typed_names.py")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, str(file)]
    done = subprocess.run(command, cwd=file.parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
    assert plan_adapter.approve(plan, tools=tools).by == gates.reject(plan, tools=tools).by == os_user()
    functions = (
        *(plan_adapter.approve, gates.reject, runs.resolve_step, runs.aresolve_step, runs.revise_run, runs.arevise_run),
        *(plan_adapter.run_plan, runs.cancel_run, PlanSession.approve, PlanSession.reject, PlanSession.revise),
    )
    assert {inspect.signature(function).parameters["by"].default for function in functions} == {None}
    assert inspect.signature(plan_adapter.PlanStore.save).parameters["author"].default is None
