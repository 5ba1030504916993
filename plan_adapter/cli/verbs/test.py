"""`plan test`."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.readable import duration

if TYPE_CHECKING:
    from plan_adapter.model.problems import Problem
    from plan_adapter.testing import Case, CaseResult
    from plan_adapter.tools.registry import ToolRegistry


def test(
    *paths: Annotated[Path, Parameter(name="PATH")],
    only: Annotated[str | None, Parameter(name=["--only", "-k"])] = None,
    tools: list[str] | None = None,
    record: str | None = None,
    json: bool = False,
) -> int:
    """Run the test cases of plans, offline: nothing is called, and nobody is asked. `plan guide testing` describes the files.

    With `--record`, a run becomes a case in the test file beside the plan, with the answers that its calls and people gave, and is run.

    Args:
        paths: Test files (NAME.test.yaml), plans with a test file beside them, or folders. Default: the current folder.
        only: Run only the cases whose file or name contains this text.
        tools: `package.module:name` of a tool or registry that the plans use; may be repeated.
        record: The id of a run that has ended. Give its plan as PATH.
        json: Print one JSON object per case.
    """
    from plan_adapter.testing import CaseRunner, find_test_files  # imports SQLAlchemy

    if record is not None:
        only = asyncio.run(_record(record, paths))
    try:
        files = find_test_files(paths or [Path()])
    except FileNotFoundError as error:
        raise UsageError(str(error)) from None
    filter_text = (only or "").casefold()
    cases = [case for case in _load_all_cases(files, tools_of(tools or [])) if filter_text in f"{case.file} {case.name}".casefold()]
    if not cases:
        raise UsageError(f"no case contains `{only}`")
    started, failed = time.perf_counter(), 0
    with CaseRunner() as runner:
        for case in cases:
            result = runner.run(case)
            failed += not result.passed
            _print_result(result, as_json=json)
    if not json:
        took = duration((time.perf_counter() - started) * 1000)
        output.note(f"{len(cases) - failed} passed" + (f", {failed} failed" if failed else "") + f" in {took}")
    return ExitCode.FAILED if failed else ExitCode.DONE


async def _record(run_id: str, paths: Sequence[Path]) -> str:
    """Add the case of a run to the test file beside its plan. Return its name."""
    # These import SQLAlchemy.
    from plan_adapter.testing import add_case, record_case
    from plan_adapter.testing.case_files import test_file_of

    if len(paths) != 1 or not paths[0].is_file():
        raise UsageError("--record needs the document of the plan: `plan test --record RUN restart.yaml`")
    async with open_store(Settings()) as store:
        run = await store.run(run_id)
        if not run.has_ended:
            raise UsageError(f"run {run.id} has not ended yet: record it when it has")
        case = await record_case(run, store)
    name = f"run {run.id[-6:]} of {run.created_at:%Y-%m-%d}"
    file = test_file_of(paths[0])
    try:
        add_case(file, name, case)
    except ValueError as error:
        raise UsageError(str(error)) from None
    output.note(f"added the case `{name}` to {file}")
    return name


def _load_all_cases(files: Iterable[Path], tools: "ToolRegistry") -> "list[Case]":
    """Return the cases of all files. Raises InvalidPlanError with the problems of all files."""
    from plan_adapter.testing import load_cases  # imports SQLAlchemy

    cases, problems = list["Case"](), list["Problem"]()
    for file in files:
        try:
            cases += load_cases(file, tools=tools)
        except InvalidPlanError as error:
            problems += error.problems
    if problems:
        raise InvalidPlanError(problems)
    return cases


def _print_result(result: "CaseResult", *, as_json: bool) -> None:
    if as_json:
        output.json_line("test_case", _result_json(result))
    elif result.passed:
        output.line(f"ok    {result.case} ({duration(result.duration_ms)})")
    else:
        first, *others = result.report().splitlines()
        for text in (f"FAIL  {first}", *others):
            output.line(text)


def _result_json(result: "CaseResult") -> dict[str, Any]:
    return {
        "file": str(result.case.file),
        "line": result.case.line,
        "name": result.case.name,
        "passed": result.passed,
        "duration_ms": round(result.duration_ms),
        "status": result.run.status,
        "reason": result.run.reason,
        "mismatches": [asdict(mismatch) for mismatch in result.mismatches],
        "unanswered": list(result.unanswered),
    }
