"""Tests of writing plans as YAML and reading them back."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from plan_adapter.documents import dump_plan, load_plan, read_document
from plan_adapter.documents.yaml_text import core_value
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.plan import ExecutionPlan
from tests.documents.generated import plans, texts

FULL = """\
name: restart-service
description: Restart one web node without dropping requests
inputs:
  host:
    description: Node to restart
    pattern: ^web-[0-9]+$
  force:
    type: boolean
    default: false
options:
  allow_parallel: true
  max_parallel_steps: 4
steps:
- id: check
  tool_name: http_get
  description: The node answers
  parameters:
    url: https://${{ inputs.host }}/health
  max_retries: 3
  retry_delay_ms: 2000
  retry_backoff: 2.0
  timeout_ms: 5000
- id: drain
  tool_name: run_command
  description: 将节点移出
  parameters:
    argv: [lbctl, drain, '${{ inputs.host }}']
    script: |
      set -e
      echo "第一行"
  depends_on: [check]
outputs:
  healthy: ${{ steps.check.status == 'completed' }}
metadata:
  owner: platform
"""


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(plans)
@pytest.mark.thorough
def test_a_plan_survives_a_round_trip(plan: ExecutionPlan) -> None:
    text = dump_plan(plan)
    again, problems = read_document(text)
    assert problems == [] or {problem.code for problem in problems} == {"no-steps"}
    assert again == plan
    if not problems:
        assert plan_digest(again) == plan_digest(plan)
        assert load_plan(json.dumps(plan.to_document())) == plan


def test_a_document_is_written_in_field_order_without_defaults() -> None:
    assert dump_plan(load_plan(FULL)) == FULL


@settings(max_examples=100)
@given(texts)
def test_a_text_stays_a_text_for_readers_of_yaml_1_1_and_1_2(text: str) -> None:
    plan = ExecutionPlan(description="d", metadata={"text": text})
    plan.add_step("t", "d")
    written = dump_plan(plan)
    assert yaml.safe_load(written)["metadata"]["text"] == text
    assert load_plan(written).metadata["text"] == text


def test_multiline_text_is_written_as_a_block() -> None:
    plan = ExecutionPlan(description="d")
    plan.add_step("bash", "d", {"command": "set -e\n\necho 你好\n"})
    assert "command: |\n      set -e\n\n      echo 你好\n" in dump_plan(plan)


def test_a_generated_id_is_not_written_and_an_explicit_one_is() -> None:
    assert "\nid:" not in "\n" + dump_plan(ExecutionPlan(description="d"))
    assert "\nid: p1\n" in "\n" + dump_plan(ExecutionPlan(id="p1", description="d"))


def test_a_value_no_document_can_hold_is_refused_with_its_place() -> None:
    plan = ExecutionPlan(description="d")
    plan.add_step("t", "d", {"a": [1.0, float("nan")], "b": "\ud800"})
    with pytest.raises(InvalidPlanError) as caught:
        dump_plan(plan)
    assert [(problem.code, problem.at) for problem in caught.value.problems] == [
        ("not-a-number", "steps[0].parameters.a[1]"),
        ("bad-text", "steps[0].parameters.b"),
    ]


def test_text_is_treated_as_a_path_only_if_it_looks_like_one(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    file.write_text(FULL, encoding="utf-8")
    assert load_plan(str(file)) == load_plan(file) == load_plan(FULL)
    with pytest.raises(InvalidPlanError, match="the file does not exist"):
        load_plan("missing.yaml")
    with pytest.raises(InvalidPlanError, match="not a single value"):
        load_plan("hello")


def test_an_integer_of_thousands_of_digits_is_text_only_in_quotes() -> None:
    digits = "1" * 5000
    with pytest.raises(ValueError, match="digits"):
        core_value(digits)
    plan = ExecutionPlan(description="d", metadata={"n": digits})
    plan.add_step("t", "d")
    assert load_plan(dump_plan(plan)) == plan


def test_each_comment_is_one_line_above_its_field() -> None:
    plan = load_plan(FULL)
    text = dump_plan(plan, comments={"": "上面\nhere", "inputs.force": "why # not", "steps[0].parameters.url": "a\u2028b"})
    lines = text.splitlines()
    assert lines[0] == "# 上面 here"
    assert lines[lines.index("  # why # not") + 1] == "  force:"
    assert lines[lines.index("    # a b") + 1].startswith("    url:")
    assert load_plan(text) == plan


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(plans, texts)
def test_comments_never_change_the_plan(plan: ExecutionPlan, text: str) -> None:
    commented = dump_plan(plan, comments={"": text, "options": text, **{f"inputs.{name}": text for name in plan.inputs}})
    assert read_document(commented)[0] == read_document(dump_plan(plan))[0]
