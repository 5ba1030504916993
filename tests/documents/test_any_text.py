"""Reading any text gives a plan or problems with places, and never fails in another way."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plan_adapter.documents import read_document
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems
from tests.documents.generated import keys, values
from tests.documents.test_dumping import FULL
from tests.documents.test_key_styles import GO
from tests.documents.test_refusals import FAULTY

DOCUMENTS = (FULL, FAULTY, json.dumps(GO, ensure_ascii=False))
PIECES = st.sampled_from(
    ["\n", " ", "  ", "\t", ":", "- ", "{", "}", "[", "]", ",", '"', "'", "#", "|\n", "&a", "*a", "!t", "? ", "null", "\\", "%", "字"]
)
FIELDS = st.sampled_from(
    ["description", "steps", "inputs", "options", "finally", "rollback", "parameters", "depends_on", "id", "effect", "type"]
)


def check(text: str) -> None:
    plan, problems = read_document(text, file="plan.yaml")
    assert all(problem.message and problem.file == "plan.yaml" for problem in problems)
    assert all(problem.line is not None for problem in problems)
    if plan is None:
        assert len(problems) == 1
        return
    found = find_problems(plan, ToolRegistry())
    assert {(problem.code, problem.at) for problem in problems} <= {(problem.code, problem.at) for problem in found}


@settings(max_examples=75)
@given(st.text())
def test_any_text(text: str) -> None:
    check(text)


@settings(max_examples=75, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(DOCUMENTS), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 30), PIECES), min_size=1, max_size=3))
def test_documents_with_a_few_slips(text: str, slips: list[tuple[int, int, str]]) -> None:
    for at, removed, written in slips:
        text = text[:at] + written + text[at + removed :]
    check(text)


trees = st.recursive(values, lambda inner: st.dictionaries(FIELDS | keys, inner, max_size=4) | st.lists(inner, max_size=3), max_leaves=12)


@settings(max_examples=75, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(FIELDS, trees, max_size=5))
def test_fields_that_hold_anything(document: dict[str, object]) -> None:
    check(json.dumps(document))
