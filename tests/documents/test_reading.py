"""Tests of reading YAML 1.2 and JSON: the values and their places."""

import copy
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_adapter.documents import load_plan, locate, read_document, read_file, read_mapping
from plan_adapter.documents.nodes import Node
from plan_adapter.documents.reading import read_text
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.values import normalize
from tests.documents.generated import values

PLAN = """\
# a comment
name: site
description: 检查网站
inputs:
  host: {type: string}

steps:
  - id: check
    tool_name: http_get
    parameters: {url: "https://${{ inputs.host }}", deep: {list: [1, {x: 2}]}}
  - tool_name: notify
    depends_on:
      - check
    parameters:
      a.b: {"c[0]": 1}
"""


def parameters(text: str) -> dict[str, object]:
    plan = load_plan(f"description: d\nsteps:\n- tool_name: t\n  parameters: {{v: {text}}}\n")
    return plan.steps[0].parameters


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("Yes", "Yes"),
        ("on", "on"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("Null", None),
        ("", None),
        ("0o17", 15),
        ("0x1F", 31),
        ("012", 12),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2024-01-31", "2024-01-31"),
        ("+5", 5),
        ("1e3", 1000),
        (".5", 0.5),
        ("-1.", -1),
        ("1.2.3", "1.2.3"),
        ("=", "="),
        ("'3'", "3"),
        ("${{x}}", None),
    ],
)
def test_plain_scalars_follow_yaml_1_2(written: str, value: object) -> None:
    if written == "${{x}}":  # braces end a flow mapping: the author is told to quote
        _, problems = read_document("description: d\nsteps: [{tool_name: t, parameters: {v: ${{x}}}}]")
        assert [problem.hint for problem in problems] == ['put a text with `${{ }}` in quotes: "${{ … }}"']
        return
    read = parameters(written)["v"]
    assert (read, type(read)) == (value, type(value))


@settings(max_examples=75)
@given(values)
def test_json_is_read_like_the_standard_library_except_that_1_0_is_1(value: object) -> None:
    for ascii_only in (True, False):
        text = json.dumps(
            {"description": "d", "steps": [{"tool_name": "t", "parameters": {"v": value}}]}, ensure_ascii=ascii_only, indent=1
        )
        plan = load_plan(text)
        assert json.dumps(plan.steps[0].parameters["v"]) == json.dumps(normalize(value))


@settings(max_examples=75)
@given(st.text('{}[]",:0123 \ntrueabc\\', max_size=25))
def test_json_is_refused_where_the_standard_library_refuses_it(text: str) -> None:
    def sound(content: str) -> bool:
        try:
            json.loads(content, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
        except ValueError:
            return False
        return True

    _, problems = read_text(text, "plan.json")
    refused = {problem.code for problem in problems} & {"syntax"}
    assert bool(refused) == (not sound(text) or not text.strip())


def test_yaml_and_json_give_equal_plans() -> None:
    plan = load_plan(PLAN)
    assert load_plan(json.dumps(plan.to_document(), ensure_ascii=False)) == plan
    assert load_plan("\ufeff" + PLAN) == plan


def test_json_in_a_yaml_file_and_flow_style_anywhere() -> None:
    text = '{"description": "\\ud83d\\ude00", "steps": [{"tool_name": "t"}]}'
    assert read_document(text, file="a.yaml")[0] == load_plan(text)
    assert load_plan(text).description == "😀"
    assert load_plan("{description: d, steps: [{tool_name: t}]}").description == "d"
    assert read_document('{"description": d, "steps": [{tool_name: t}]}', file="a.yml")[1] == []


@pytest.mark.parametrize(
    ("at", "line", "column"),
    [
        ("", 2, 1),
        ("name", 2, 1),
        ("inputs.host.type", 5, 10),
        ("steps", 7, 1),
        ("steps[0]", 8, 5),
        ("steps[0].id", 8, 5),
        ("steps[0].parameters.url", 10, 18),
        ("steps[0].parameters.deep.list[1].x", 10, 71),
        ("steps[0].timeout_ms", 8, 5),
        ("steps[1].depends_on[0]", 13, 9),
        ("steps[1].parameters.a.b.c[0]", 15, 13),
        ("steps[7].id", 7, 1),
        ("outputs.x", 2, 1),
        ("steps[x]", 7, 1),
    ],
)
def test_every_path_has_a_place_or_the_nearest_one_around_it(at: str, line: int, column: int) -> None:
    plan, _ = read_document(PLAN, file="site.yaml")
    assert plan is not None
    assert locate(plan, at) == ("site.yaml", line, column)
    assert locate(copy.deepcopy(plan), at) == ("site.yaml", line, column)


def test_a_json_document_has_places_too() -> None:
    plan = load_plan('{\n  "Description": "部署",\n  "Steps": [\n    {"ToolName": "t",\n     "DependsOn": []}]}')
    assert locate(plan, "steps[0].depends_on") == (None, 5, 6)


def test_a_plan_without_a_document_has_no_places() -> None:
    assert locate(ExecutionPlan(description="d"), "steps[0]") == (None, None, None)


def test_marks_do_not_affect_equality() -> None:
    assert load_plan(PLAN) == load_plan("\n\n" + PLAN)


def test_marks_keep_no_tree_of_a_plan_without_problems() -> None:
    plan = load_plan(PLAN)
    kept = vars(plan._marks)  # pyright: ignore[reportPrivateUsage]
    assert not [value for value in kept.values() if isinstance(value, Node)]


def test_an_inputs_file_is_read_like_a_plan_and_can_hold_any_fields(tmp_path: Path) -> None:
    file = tmp_path / "inputs.yaml"
    file.write_text("host: web-1\ncount: 3\nno: no\n", encoding="utf-8")
    assert read_mapping(file) == ({"host": "web-1", "count": 3, "no": "no"}, [])
    file.write_text("- 1\n", encoding="utf-8")
    values, problems = read_mapping(str(file))
    assert (values, [str(problem) for problem in problems]) == (
        None,
        [f"{file}:1:1: error[wrong-type]: the file must contain a mapping of names to values, not a list"],
    )
    file.write_text("a: 1\na: 2\nb: .nan\n", encoding="utf-8")
    values, problems = read_mapping(file)
    assert [(problem.code, problem.line) for problem in problems] == [("duplicate-key", 2), ("not-a-number", 3)]
    assert read_mapping(tmp_path / "none")[0] is None


@pytest.mark.thorough
def test_ten_thousand_steps_are_read_in_either_format() -> None:
    steps = [{"id": f"s{n}", "tool_name": "t", "parameters": {"n": n}, "depends_on": [f"s{n - 1}"] if n else []} for n in range(10_000)]
    plan = load_plan(json.dumps({"description": "d", "steps": steps}))
    lines = [
        f"- id: s{n}\n  tool_name: t\n  parameters: {{n: {n}}}\n" + (f"  depends_on: [s{n - 1}]\n" if n else "") for n in range(10_000)
    ]
    assert load_plan("description: d\nsteps:\n" + "".join(lines)) == plan
    assert locate(plan, "steps[9999].depends_on[0]")[1] == 1


@pytest.mark.parametrize("size", [1_000_000])
def test_parameters_of_a_megabyte_are_read(size: int) -> None:
    text = "字" * (size // 3)
    plan = load_plan(
        json.dumps({"description": "d", "steps": [{"tool_name": "t", "parameters": {"text": text, "numbers": [0.5] * 100_000}}]})
    )
    assert plan.steps[0].parameters["text"] == text
    assert math.isclose(sum(plan.steps[0].parameters["numbers"]), 50_000)  # type: ignore[arg-type]


def test_a_file_is_named_as_the_caller_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("网站.yaml").write_text(PLAN, encoding="utf-8")
    plan, problems = read_file("网站.yaml")
    assert plan is not None
    assert (locate(plan, "name"), problems) == (("网站.yaml", 2, 1), [])
