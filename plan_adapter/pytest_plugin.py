"""The pytest plugin: collects the cases of test files (`restart.test.yaml`) that have a plan of the same name beside them.

pytest imports this module whenever it starts, so everything else is imported only once there is such a file.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from plan_adapter.testing import Case, CaseResult, CaseRunner

_RUNNER_KEY = pytest.StashKey["CaseRunner"]()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "PlanTestFile | None":
    """Collect a test file with a plan beside it. Files of other programs may have such names, too."""
    if not file_path.name.lower().endswith((".test.yaml", ".test.yml")):
        return None
    from plan_adapter.testing.case_files import plan_file_of

    if not plan_file_of(file_path).is_file():
        return None
    return PlanTestFile.from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType]  # pytest leaves **kw untyped


class PlanTestFile(pytest.File):
    """A test file, with an item for each case."""

    def collect(self) -> Iterable[pytest.Item]:
        """Return the cases. A file with problems is a collection error that lists them all."""
        from plan_adapter.model.errors import InvalidPlanError
        from plan_adapter.testing import load_cases

        try:
            cases = load_cases(self.path)
        except InvalidPlanError as error:
            raise self.CollectError(str(error)) from None
        create = PlanTestItem.from_parent  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # as above
        return [create(self, name=case.name, case=case) for case in cases]


class CaseFailedError(Exception):
    """The run of a case was not as expected."""

    def __init__(self, result: "CaseResult") -> None:
        """Store `result`."""
        self.result = result
        super().__init__(result.report())


class PlanTestItem(pytest.Item):
    """One case."""

    def __init__(self, *, case: "Case", **arguments: Any) -> None:
        super().__init__(**arguments)  # pyright: ignore[reportUnknownMemberType]  # as above
        self.case = case

    def runtest(self) -> None:
        """Run the case. Raises CaseFailedError if it is not as expected."""
        result = _runner_of(self.config).run(self.case)
        if not result.passed:
            raise CaseFailedError(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the report of the case, without a traceback; for any other error, what pytest shows."""
        return excinfo.value.result.report() if isinstance(excinfo.value, CaseFailedError) else str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the file, the line from 0, and the name."""
        return self.path, self.case.line - 1, self.name


def _runner_of(config: pytest.Config) -> "CaseRunner":
    """Return the runner of this pytest session. It is closed at the end."""
    if _RUNNER_KEY not in config.stash:
        from plan_adapter.testing import CaseRunner

        config.stash[_RUNNER_KEY] = runner = CaseRunner()
        config.add_cleanup(runner.close)
    return config.stash[_RUNNER_KEY]
