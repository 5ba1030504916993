"""`plan validate`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import documents_in, plan_of, tools_of
from plan_adapter.documents import is_test_file
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import counted
from plan_adapter.validation import lint

if TYPE_CHECKING:
    from plan_adapter.tools.registry import ToolRegistry


def validate(*plans: Annotated[str, Parameter(name="PLAN")], tools: list[str] | None = None, json: bool = False) -> int:
    """Find every problem in a plan before it runs: file:line:column, the code of the problem, what is wrong and how to fix it.

    Args:
        plans: Plans, named as for `plan run`, and folders of plan documents. Test files (NAME.test.yaml) are checked as well.
        tools: `package.module:name` of a tool or registry that the plans use; may be repeated.
        json: Print each problem as a JSON object, and one line per plan.
    """
    if not plans:
        raise UsageError("give at least one plan: `plan validate plan.yaml`")
    registry = tools_of(tools or [])
    failed = False
    for source in [document for name in plans for document in _expand_folder(name)]:
        found = _find_problems(source, registry)
        errors = sum(problem.severity == "error" for problem in found)
        failed = failed or errors > 0
        output.problems(found, as_json=json, to_stdout=True)
        _print_verdict(source, errors=errors, warnings=len(found) - errors, as_json=json)
    return ExitCode.USAGE if failed else ExitCode.DONE


def _expand_folder(name: str) -> list[str]:
    """Return the paths of the documents in the folder `name`, or `name` itself if it is no folder."""
    folder = Path(name)
    return [str(path) for path in documents_in(folder)] if folder.is_dir() else [name]


def _find_problems(source: str, registry: "ToolRegistry") -> list[Problem]:
    if is_test_file(source):
        return _test_file_problems(source, registry)
    try:
        return lint(asyncio.run(plan_of(source)), registry)
    except InvalidPlanError as error:
        return error.problems


def _test_file_problems(source: str, registry: "ToolRegistry") -> list[Problem]:
    from plan_adapter.testing.case_files import load_cases  # imports SQLAlchemy

    try:
        load_cases(source, tools=registry)
    except InvalidPlanError as error:
        return error.problems
    return []


def _print_verdict(source: str, *, errors: int, warnings: int, as_json: bool) -> None:
    if as_json:
        output.json_line("validation", {"plan": source, "valid": not errors, "errors": errors, "warnings": warnings})
        return
    counts = ", ".join(counted(count, noun) for count, noun in ((errors, "error"), (warnings, "warning")) if count)
    output.note(f"{source}: {'invalid' if errors else 'valid'}" + (f" ({counts})" if counts else ""))
