"""Tests of answers to agents: how long ones are truncated, and what is redacted."""

import json

import pytest
from pydantic import JsonValue

from plan_adapter.cli.mcp.operations import CUT_NOTE, cut, model_output

DEEP: dict[str, object] = {}
for _ in range(40):
    DEEP = {str(number): DEEP for number in range(2 if len(json.dumps(DEEP)) < 50_000 else 1)}

ANSWERS = {
    "a text": {"a": "字" * 9000},
    "many texts": {"a": ["x" * 90] * 900},
    "many keys": {str(number): number for number in range(9000)},
    "deep": DEEP,
    "nested lists": {"a": [[["x" * 20] * 20] * 20] * 20},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("most", [300, 2000, 40_000])
def test_an_answer_never_exceeds_its_limit(answer: dict[str, JsonValue], most: int) -> None:
    shown = cut(answer, max_characters=most)
    assert shown == answer or (shown["note"] == CUT_NOTE and len(json.dumps(shown, ensure_ascii=False)) <= most + len(CUT_NOTE) + 40)


def test_a_truncated_answer_says_how_much_is_missing_and_keeps_ids_whole() -> None:
    shown = cut({"run": "01a2", "result": "字" * 100_000, "rows": list(range(1000))})
    assert shown["run"] == "01a2"
    assert str(shown["result"]).endswith("more characters)")
    assert shown["note"] == CUT_NOTE


def test_secrets_are_redacted_by_name_and_by_value() -> None:
    shown = model_output({"inputs": {"password": "abc-def"}, "error": "cannot reach https://ana:geheim@host/x for org-9"}, hidden=["org-9"])
    assert json.dumps(shown).count("***") == 3
