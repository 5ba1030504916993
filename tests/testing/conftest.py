"""Provides a plan, and fixtures that write test cases for it and run them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plan_adapter import ToolRegistry
from plan_adapter.errors import InvalidPlanError
from plan_adapter.testing import Case, CaseResult, CaseRunner, load_cases

RESTART = """\
description: Restart one web node
inputs:
  host: {type: string, pattern: "^web-[0-9]+$"}
options: {approval_timeout_ms: 60000}
steps:
  - id: drain
    tool_name: run_command
    description: Take it out of the pool
    parameters: {argv: [lbctl, drain, "${{ inputs.host }}"]}
    rollback: {tool_name: run_command, parameters: {argv: [lbctl, undrain, "${{ inputs.host }}"]}}
  - id: restart
    tool_name: run_command
    description: Restart it
    parameters: {argv: [systemctl, restart, web]}
    depends_on: [drain]
    requires_approval: true
    timeout_ms: 60000
  - id: verify
    tool_name: http_get
    description: It answers
    parameters: {url: "https://${{ inputs.host }}/health", headers: {authorization: "Bearer ${{ secrets.token }}"}}
    done_when: ${{ result.status == 200 }}
    depends_on: [restart]
    max_retries: 2
    retry_delay_ms: 3600000
finally:
  - {id: tell, tool_name: run_command, description: Tell the channel, parameters: {argv: [notify, "${{ run.status }}"]}}
outputs: {status: "${{ steps.verify.result.status }}"}
"""

SHARED = """\
inputs: {host: web-1}
steps:
  verify: {result: {status: 200}}
"""

WriteCases = Callable[..., list[Case]]
RunCase = Callable[..., CaseResult]


@pytest.fixture(scope="session")
def runner() -> Iterator[CaseRunner]:
    """Yield one runner for all tests, as `plan test` has one for all cases."""
    with CaseRunner() as opened:
        yield opened


@pytest.fixture
def write_cases(tmp_path: Path) -> WriteCases:
    """Return a function that writes a test file beside a plan and returns its cases."""

    def write(cases: str, *, plan: str = RESTART, tools: ToolRegistry | None = None) -> list[Case]:
        (tmp_path / "restart.yaml").write_text(plan, encoding="utf-8")
        (tmp_path / "restart.test.yaml").write_text(cases, encoding="utf-8")
        return load_cases(tmp_path / "restart.test.yaml", tools=tools or ToolRegistry.with_builtins())

    return write


@pytest.fixture
def run(write_cases: WriteCases, runner: CaseRunner) -> RunCase:
    """Return a function that runs one case with the given content."""

    def call(case: str, *, shared: str = SHARED, plan: str = RESTART, tools: ToolRegistry | None = None) -> CaseResult:
        indented = "".join(f"    {line}\n" for line in case.splitlines())
        (only,) = write_cases(f"{shared}cases:\n  it works:\n{indented}", plan=plan, tools=tools)
        return runner.run(only)

    return call


@pytest.fixture
def problems(write_cases: WriteCases) -> Callable[..., list[str]]:
    """Return a function that lists the problems of a test file as `line:column code message; hint`."""

    def find(cases: str, *, plan: str = RESTART) -> list[str]:
        with pytest.raises(InvalidPlanError) as caught:
            write_cases(cases, plan=plan)
        return [f"{problem.line}:{problem.column} {problem.code} {problem.message}; {problem.hint}" for problem in caught.value.problems]

    return find
