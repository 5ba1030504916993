"""Tests of plans: cases in `NAME.test.yaml` beside a plan, run offline with recorded answers in place of tools and people."""

from plan_adapter.testing.case import Answer, Answers, Case
from plan_adapter.testing.case_files import find_test_files, load_cases
from plan_adapter.testing.expectations import Expectation
from plan_adapter.testing.recording import add_case, record_case
from plan_adapter.testing.result import CaseResult, Mismatch
from plan_adapter.testing.running import CaseRunner, run_case

__all__ = [
    "Answer",
    "Answers",
    "Case",
    "CaseResult",
    "CaseRunner",
    "Expectation",
    "Mismatch",
    "add_case",
    "find_test_files",
    "load_cases",
    "record_case",
    "run_case",
]
