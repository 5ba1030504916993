"""Tests of texts with several plans: each is read separately, with places in the whole text."""

import json

import pytest

from plan_adapter.documents import load_plan, locate, read_document, read_documents

ONE = {"description": "一", "steps": [{"tool_name": "t"}]}
TWO = {"Description": "two", "Steps": [{"ToolName": "u", "Parameters": {"a": [1, {"b": "}\n{"}]}}]}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([ONE, TWO]),
        json.dumps([ONE, TWO], indent=2),
        json.dumps(ONE) + "\n" + json.dumps(TWO) + "\n",
        "\ufeff\n\n" + json.dumps(ONE, indent=1) + "\n\n" + json.dumps(TWO, indent=4),
        json.dumps(ONE) + json.dumps(TWO),
    ],
    ids=["array", "pretty array", "lines", "pretty objects", "one after the other"],
)
def test_each_plan_of_a_text_is_read(text: str) -> None:
    read = read_documents(text, file="x")
    assert [plan for plan, _ in read] == [load_plan(json.dumps(document)) for document in (ONE, TWO)]
    assert [problems for _, problems in read] == [[], []]


@pytest.mark.parametrize(
    "text", ["description: d\nsteps: [{tool_name: t}]\n", json.dumps(ONE), "", "# nothing", "{a: 1}", "- 1\n", "[1", '{"a": 1', "text"]
)
def test_a_text_of_one_plan_or_none_is_read_as_a_single_document(text: str) -> None:
    assert read_documents(text, file="x") == [read_document(text, file="x")]


def test_places_refer_to_the_whole_text() -> None:
    text = json.dumps(ONE) + "\n" + json.dumps(ONE) + " " + '{"description": "d", "steps": [{"tool": 1}]}\n'
    (first, _), (second, _), (_, problems) = read_documents(text, file="x.jsonl")
    assert first is not None
    assert second is not None
    assert locate(first, "steps")[1] == 1
    assert locate(second, "description") == ("x.jsonl", 2, 2)
    start = len(json.dumps(ONE)) + 1
    assert [(problem.code, problem.line, problem.column) for problem in problems] == [
        ("unknown-field", 2, start + text.split("\n")[1][start:].index('"tool"') + 1)
    ]


def test_an_invalid_json_line_does_not_hide_the_next_one() -> None:
    (_, first), (_, second), (third, _) = read_documents('{"description": }\n{"description": "d", "nope": 1}\n' + json.dumps(TWO))
    assert [(problem.code, problem.line) for problem in first] == [("syntax", 1)]
    assert [(problem.code, problem.line) for problem in second] == [("no-steps", 2), ("unknown-field", 2)]
    assert third is not None


def test_a_truncated_array_is_reported_with_its_place() -> None:
    *whole, (_, problems) = read_documents(json.dumps([ONE, ONE])[:-3])
    assert len(whole) == 1
    assert [problem.code for problem in problems] == ["syntax"]


@pytest.mark.parametrize("text", ["[]", " [ ] \n"])
def test_an_empty_array_holds_no_plan(text: str) -> None:
    assert read_documents(text) == []


def test_deep_nesting_and_long_numbers_are_problems() -> None:
    for text in ('{"a": ' + "[" * 100_000, '{"a": ' + "9" * 10_000 + "}"):
        ((_, problems),) = read_documents(text)
        assert problems
