"""Tests of invalid documents: all problems at once with their places, and one clear problem for unreadable text."""

import json
from pathlib import Path

import pytest

from plan_adapter.documents import dump_plan, load_plan, read_document, read_file
from plan_adapter.documents.reading import MAX_BYTES
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.problems import CATALOGUE, Problem

DEEP = 100_000


def problems_of(text: str, file: str | None = None) -> list[Problem]:
    return read_document(text, file=file)[1]


BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))])
UNREADABLE = {
    "empty": ("", "syntax"),
    "only white space": (" \n\t\n", "syntax"),
    "only comments": ("# nothing\n", "syntax"),
    "a list": ("- a\n", "wrong-type"),
    "a scalar": ("plan", "wrong-type"),
    "several documents": ("description: a\n---\ndescription: b\n", "several-documents"),
    "deep flow lists": ("[" * DEEP, "too-deep"),
    "deep closed flow lists": ("description: " + "[" * DEEP + "]" * DEEP, "too-deep"),
    "deep flow mappings": ("{a: " * DEEP, "too-deep"),
    "deep block lists": ("- " * DEEP, "too-deep"),
    "deep complex keys": ("? " * DEEP, "wrong-type"),
    "deep JSON lists": ('{"a": ' + "[" * DEEP, "too-deep"),
    "deep JSON objects": ('{"a": ' * DEEP, "too-deep"),
    "deep closed JSON": ('{"a": ' * DEEP + "1" + "}" * DEEP, "too-deep"),
    "a deep document of lines": ("\n".join(" " * n + "a:" for n in range(200)), "too-deep"),
    "too many characters": ("a" * (MAX_BYTES + 1), "too-large"),
    "a number of thousands of digits": ("a: " + "9" * 5000, "too-large"),
    "a JSON number of thousands of digits": ('{"a": ' + "9" * 5000 + "}", "too-large"),
    "NUL": ("description: a\0b", "syntax"),
    "a control character": ("description: a\x07b", "syntax"),
    "a surrogate": ("description: a\ud800b", "bad-text"),
    "binary junk": (bytes(range(256)).decode("latin-1"), "syntax"),
    "a tab": ("steps:\n\t- a", "syntax"),
    "an open quote": ('description: "a', "syntax"),
    "JSON that ends early": ('{"description": "a"', "syntax"),
    "JSON with a comma too many": ('{"description": "a",}', "syntax"),
    "JSON with text behind it": ('{"description": "a"} b', "syntax"),
    "JSON with single words": ('{"description": undefined}', "syntax"),
    "a key that is a list": ("? [a]\n: b", "wrong-type"),
}


ANCHORS = {
    "a bomb": (BOMB, 81),
    "an alias": ("description: *x", 1),
    "a merge": ("base: &b {a: 1}\n<<: *b", 2),
}


@pytest.mark.parametrize(("text", "count"), ANCHORS.values(), ids=ANCHORS)
def test_anchors_are_refused_without_hiding_other_problems(text: str, count: int) -> None:
    problems = problems_of(f"{text}\nsteps: [{{tool_name: t, colour: red}}]")
    codes = [problem.code for problem in problems]
    assert codes.count("anchor") == count
    assert [problem.at for problem in problems if problem.code == "unknown-field" and "colour" in problem.at] == ["steps[0].colour"]


@pytest.mark.parametrize(("text", "code"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_text_is_one_problem(text: str, code: str) -> None:
    plan, problems = read_document(text)
    assert plan is None
    assert [problem.code for problem in problems] == [code]
    assert len(str(problems[0])) < 500
    assert problems[0].code == "too-large" or problems[0].line is not None


@pytest.mark.parametrize(
    "text", ["a: [" + "0, " * 1000 + "0]", '{"a": [' + "0," * 1000 + "0]}", "- 0\n" * 1001], ids=["flow", "JSON", "block"]
)
def test_too_many_values_are_one_problem(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.documents.nodes.MAX_NODES", 1000)
    plan, problems = read_document(text)
    assert (plan, [(problem.code, problem.message) for problem in problems]) == (None, [("too-large", "more than 1,000 values")])


def test_an_unreadable_file_is_one_problem(tmp_path: Path) -> None:
    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    cases = {
        tmp_path / "missing.yaml": "unreadable",
        tmp_path: "unreadable",
        tmp_path / ("x" * 300): "unreadable",
        Path("a\0b"): "unreadable",
        write("latin.yaml", "description: caf\xe9".encode("latin-1")): "not-utf8",
        write("utf16.yaml", "description: a".encode("utf-16")): "not-utf8",
        write("junk.yaml", bytes(range(256))): "not-utf8",
        write("huge.yaml", b"a" * (MAX_BYTES + 1)): "too-large",
        write("empty.yaml", b""): "syntax",
    }
    for path, code in cases.items():
        plan, problems = read_file(path)
        assert (plan, [problem.code for problem in problems]) == (None, [code]), path
        assert problems[0].file == str(path)
        with pytest.raises(InvalidPlanError):
            load_plan(path)


def test_a_byte_that_is_not_utf8_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: 网\ndescription: 网 caf".encode() + b"\xe9")
    _, problems = read_file(path)
    assert [(problem.line, problem.column, problem.hint) for problem in problems] == [(2, 19, "save it as UTF-8")]


def test_a_circular_symlink_is_one_problem(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    _, problems = read_file(path)
    assert [problem.code for problem in problems] == ["unreadable"]
    assert "Too many levels of symbolic links" in problems[0].message


FAULTY = """\
description: d
descripton: d
version: 2
options:
  max_parallel_steps: 0
  allow_parallel: yes
  requireApproval: false
  require_approval: true
inputs:
  count: {type: int, minimum: .inf}
  host:
steps:
- id: a
  tool_name: t
  max_retries: 3 times
  timeout_ms: "3"
  retry_jitter: 2
  retry_delay_ms: 1.5
  effect: raed
  on_error: ignore
  depends_on: b
  id: c
- hello
- tool_name: t
  parameters:
    nan: .nan
    infinite: -.inf
    overflow: 1e999
    integer: 9007199254740992
    __prefect_kind: json
    404: not found
    tagged: !!binary aGVsbG8=
    nul: "a\\0b"
  rollback: {parameters: []}
  metadata: [1]
  when: true
"""

EXPECTED = [
    "2:1 unknown-field descripton: a plan has no field `descripton`; did you mean `description`?",
    "3:1 unsupported-version version: `version` must be `1`, not the number 2",
    "5:3 bad-value options.max_parallel_steps: `max_parallel_steps` must be at least 1, not the number 0",
    "6:3 wrong-type options.allow_parallel: `allow_parallel` must be true or false, not the text 'yes'; "
    "`yes`, `no`, `on` and `off` are text; write true or false without quotes",
    "8:3 duplicate-key options.require_approval: `requireApproval` and `require_approval` are the same field; remove one of them",
    "10:11 bad-value inputs.count.type: `type` must be one of `string`, `integer`, `number`, `boolean`, `array`, `object`, `date`, "
    "`date-time`, `duration`, `secret`, not the text 'int'; did you mean `integer`?",
    "10:22 not-a-number inputs.count.minimum: `inf` is not a JSON number; write a finite number, or the text in quotes",
    "11:3 wrong-type inputs.host: `host` must be a mapping, not null; write a value, or remove the line",
    "15:3 wrong-type steps[0].max_retries: `max_retries` must be an integer, not the text '3 times'",
    "16:3 wrong-type steps[0].timeout_ms: `timeout_ms` must be an integer, not the text '3'; write the number without quotes",
    "17:3 bad-value steps[0].retry_jitter: `retry_jitter` must be at most 1.0, not the number 2",
    "18:3 wrong-type steps[0].retry_delay_ms: `retry_delay_ms` must be an integer, not the number 1.5",
    "19:3 bad-effect steps[0].effect: `effect` must be one of `read`, `idempotent_write`, `write`, not the text 'raed'; "
    "did you mean `read`?",
    "20:3 bad-value steps[0].on_error: `on_error` must be one of `stop`, `continue`, not the text 'ignore'",
    "21:3 wrong-type steps[0].depends_on: `depends_on` must be a list, not the text 'b'; write a list: [ … ]",
    "22:3 duplicate-key steps[0].id: `id` is written twice in one mapping; remove one of them",
    "23:3 wrong-type steps[1]: `steps[1]` must be a mapping, not the text 'hello'",
    "26:5 not-a-number steps[2].parameters.nan: `nan` is not a JSON number; write a finite number, or the text in quotes",
    "27:5 not-a-number steps[2].parameters.infinite: `-inf` is not a JSON number; write a finite number, or the text in quotes",
    "28:5 not-a-number steps[2].parameters.overflow: `inf` is not a JSON number; write a finite number, or the text in quotes",
    "29:5 too-large steps[2].parameters.integer: the integer is beyond ±(2^53 - 1), where programs no longer agree on it; "
    "write it as text, in quotes",
    "30:5 reserved-key steps[2].parameters.__prefect_kind: the key `__prefect_kind` starts with `__prefect`, "
    "which Prefect's server interprets; rename it",
    "31:5 wrong-type steps[2].parameters.404: the key `404` is not text; put it in quotes",
    "32:5 tag steps[2].parameters.tagged: tags (`!name`) are refused; remove the tag, or put the text in quotes",
    "33:5 bad-text steps[2].parameters.nul: the text contains a NUL character, which databases and commands refuse; remove it",
    "34:14 wrong-type steps[2].rollback.parameters: `parameters` must be a mapping, not a list",
    "34:3 missing-field steps[2].rollback.tool_name: `tool_name` is missing; write `tool_name`",
    "35:3 wrong-type steps[2].metadata: `metadata` must be a mapping, not a list",
    "36:3 wrong-type steps[2].when: `when` must be text, not true; put it in quotes",
]


def test_every_problem_is_found_at_once_with_file_line_and_column() -> None:
    found = problems_of(FAULTY, "p.yaml")
    lines = [f"{it.line}:{it.column} {it.code} {it.at}: {it.message}" + (f"; {it.hint}" if it.hint else "") for it in found]
    assert sorted(lines) == sorted(EXPECTED)
    assert str(found[0]).startswith("p.yaml:2:1: error[unknown-field] at descripton: a plan has no field")


def test_problems_are_in_the_order_of_the_text() -> None:
    places = [(problem.line, problem.column) for problem in problems_of(FAULTY)]
    assert places == sorted(places)  # type: ignore[type-var]


def test_every_code_is_in_the_catalogue() -> None:
    codes = {problem.code for problem in problems_of(FAULTY)} | {code for _, code in UNREADABLE.values()}
    assert codes <= set(CATALOGUE)


def test_a_plan_with_problems_can_be_inspected_but_has_no_digest() -> None:
    plan, problems = read_document(FAULTY)
    assert plan is not None
    assert [step.id for step in plan.steps] == ["a", "step_2", "step_3"]
    assert plan.options.max_parallel_steps == 3
    with pytest.raises(InvalidPlanError) as caught:
        plan_digest(plan)
    assert caught.value.problems == problems


def test_a_plan_with_problems_lacks_only_what_is_wrong() -> None:
    plan, problems = read_document("""\
description: d
options: {max_parallel_steps: 0, allow_parallel: true}
steps:
- {id: a, tool_name: t, max_retries: many, timeout_ms: long, depends_on: [1, 2], permissions: [p], tags: [x]}
- {id: b, tool_name: t, rollback: {parameters: [], tool_name: 1}, max_failures: [], requires_approval: 1, for_each: "${{ [1] }}"}
- hello
permissions: [1, p, 2]
tags: [1, x]
""")
    assert plan is not None
    assert "`permissions` must be a list of names, or one expression that gives it, not the number 1" in {it.message for it in problems}
    assert plan.to_document() == {
        "description": "d",
        "options": {"allow_parallel": True},
        "steps": [
            {"id": "a", "tool_name": "t", "tags": ["x"]},
            {"id": "b", "tool_name": "t", "for_each": "${{ [1] }}"},
            {"id": "step_3"},
        ],
    }


@pytest.mark.parametrize(
    ("text", "codes"),
    [("steps: [{tool_name: t}]", ["no-description"]), ("description: d", ["no-steps"]), ("description: d\nsteps:", ["no-steps"])],
)
def test_description_and_steps_are_required(text: str, codes: list[str]) -> None:
    assert [problem.code for problem in problems_of(text)] == codes


def test_no_message_repeats_a_huge_value() -> None:
    huge = "x" * 1_000_000
    step = {"tool_name": "t", "max_retries": huge, "effect": huge, "parameters": {"__prefect" + huge: 1}}
    problems = problems_of(json.dumps({"description": "d", huge: 1, "inputs": {huge: 3}, "steps": [step]}))
    assert {problem.code for problem in problems} == {"unknown-field", "wrong-type", "bad-effect", "reserved-key"}
    assert all(len(str(problem)) < 500 for problem in problems)


def test_thousands_of_problems_are_found_without_delay() -> None:
    text = "description: d\n" + "".join(f"field_{n}: 1\n" for n in range(5_000)) + "steps: [" + "1," * 5_000 + "]"
    assert len(problems_of(text)) == 10_000


def test_a_newline_in_an_id_is_kept_for_validation_to_report() -> None:
    plan, problems = read_document('description: d\nsteps: [{id: "a\\nb", tool_name: t}]')
    assert plan is not None
    assert (plan.steps[0].id, problems) == ("a\nb", [])
    assert load_plan(dump_plan(plan)) == plan


def test_a_schema_key_in_json_is_not_a_field() -> None:
    assert problems_of('{"$schema": "plan.schema.json", "description": "d", "steps": [{"tool_name": "t"}]}') == []
