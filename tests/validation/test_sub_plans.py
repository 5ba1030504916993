"""The problems of plans that run other plans, at their places in both documents, and how the inner plans are loaded."""

from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, ToolRegistry
from plan_adapter.documents import read_document, read_file
from plan_adapter.errors import InvalidPlanError
from plan_adapter.loading import pin_files
from plan_adapter.model.canonical import diff_plans, plan_digest
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions
from plan_adapter.model.plan import Step
from plan_adapter.plans import find_problems, lint
from plan_adapter.store import dump_plan, load_plan
from plan_adapter.text.formatting import format_plan
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.validation import bind_inputs, validate
from tests.runs.cluster import Cluster
from tests.runs.sub_plans import around, do, site

SITE = """\
name: verify-site
description: 检查站点
inputs: {site: {type: string}, times: {type: integer, default: 1}}
options: {require_approval: false}
steps:
  - {id: check, tool_name: do, parameters: {what: "${{ inputs.site }}"}}
outputs: {checked: "${{ steps.check.result }}"}
"""
MOVE = """\
description: Move
steps:
  - id: verify
    plan: parts/site.yaml
    inputs: {site: 北京}
  - {id: after, tool_name: do, parameters: {what: "${{ steps.verify.result.checked }}"}}
"""


@pytest.fixture
def tools() -> ToolRegistry:
    return Cluster().tools


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "site.yaml").write_text(SITE, encoding="utf-8")
    (tmp_path / "move.yaml").write_text(MOVE, encoding="utf-8")
    return tmp_path


def test_a_file_is_loaded_relative_to_the_document_and_becomes_part_of_it(folder: Path, tools: ToolRegistry) -> None:
    plan = load_plan(folder / "move.yaml")
    assert [step.id for step in plan.all_steps] == ["verify", "verify.check", "after"]
    validated = validate(plan, tools)
    assert validated.dependencies["after"] == ("verify",)
    assert load_plan(dump_plan(plan)) == plan  # it needs no file any more
    (folder / "parts" / "site.yaml").write_text(SITE.replace("检查站点", "Check"), encoding="utf-8")
    changed = load_plan(folder / "move.yaml")
    assert plan_digest(changed) != validated.digest
    assert [change.at for change in diff_plans(plan, changed).changed] == ["verify.pinned.description"]


def test_a_change_in_a_sub_plan_is_named_by_its_step_id() -> None:
    old, new = around(site()), around(site(do("check", "other"), do("more", "more")))
    found = diff_plans(old, new)
    assert (found.added, found.removed) == (("verify.more",), ("verify.mark",))
    assert [change.at for change in found.changed if change.at.startswith("verify.check")] == [
        "verify.check.parameters.what",
        "verify.check.rollback",
    ]


def test_every_problem_of_both_documents_is_reported_at_once(folder: Path, tools: ToolRegistry) -> None:
    (folder / "parts" / "site.yaml").write_text(
        SITE.replace("tool_name: do", "tool_name: dou")
        + "finally: [{id: end, tool_name: do, parameters: {what: x}}]\nrun_name: x\ncolour: red\n"
    )
    text = MOVE.replace("inputs: {site: 北京}", "inputs: {place: 北京, times: [1]}\n    tool_name: do\n    for_each: '${{ [1] }}'")
    (folder / "move.yaml").write_text(text + "  - {id: again, plan: missing.yaml}\n  - {id: none, inputs: {a: 1}, tool_name: do}\n")
    plan, _ = read_file(folder / "move.yaml")
    assert plan is not None
    assert pin_files(plan) == []
    found = {(Path(problem.file or "").name, problem.code, problem.at) for problem in lint(plan, tools)}
    assert found >= {
        ("move.yaml", "missing-input", "steps[0].inputs"),
        ("move.yaml", "unknown-input", "steps[0].inputs.place"),
        ("move.yaml", "bad-input", "steps[0].inputs.times"),
        ("move.yaml", "bad-sub-plan", "steps[0].tool_name"),
        ("move.yaml", "not-yet", "steps[0].for_each"),
        ("move.yaml", "bad-sub-plan", "steps[2].plan"),
        ("move.yaml", "bad-sub-plan", "steps[3].inputs"),
        ("site.yaml", "unknown-tool", "steps[0].tool_name"),
        ("site.yaml", "unknown-field", "colour"),
        ("site.yaml", "not-yet", "finally"),
        ("site.yaml", "bad-sub-plan", "run_name"),
    }
    problem = next(problem for problem in find_problems(plan, tools) if problem.code == "unknown-tool")
    assert str(problem).startswith(f"{folder / 'parts' / 'site.yaml'}:6:")
    with pytest.raises(InvalidPlanError, match="colour"):
        load_plan(folder / "move.yaml")
    with pytest.raises(InvalidPlanError, match="colour"):
        plan_digest(plan)


def test_types_of_expressions_are_checked_against_the_inputs(tools: ToolRegistry) -> None:
    given = '{site: "${{ 1 + 2 }}", times: "${{ inputs.host }}"}'
    outer, _ = read_document(MOVE.replace("{site: 北京}", given) + "inputs: {host: {type: string}}\n")
    inner, _ = read_document(SITE)
    assert outer is not None
    outer.steps[0].pinned = inner
    assert {(problem.code, problem.at) for problem in find_problems(outer, tools)} == {
        ("expression-type", "steps[0].inputs.site"),
        ("expression-type", "steps[0].inputs.times"),
    }


@pytest.mark.parametrize(
    ("outputs", "hint"),
    [(SITE.partition("outputs")[2], "did you mean `checked`?"), ("", "declare it under `outputs` of the plan that the step runs")],
)
def test_an_output_that_the_plan_does_not_have_is_reported(outputs: str, hint: str, tools: ToolRegistry) -> None:
    outer, _ = read_document(MOVE.replace("result.checked", "result.cheked"))
    inner, _ = read_document(SITE.partition("outputs")[0] + (f"outputs{outputs}" if outputs else ""))
    assert outer is not None
    outer.steps[0].pinned = inner
    (problem,) = find_problems(outer, tools)
    assert (problem.code, problem.at, problem.hint) == ("unknown-reference", "steps[1].parameters.what", hint)
    assert problem.message == "`steps.verify.result` has no field `cheked`"


@pytest.mark.parametrize("field", ["concurrency: {key: x}", "on_failure: replan", "options: {total_timeout_ms: 5}"])
def test_fields_a_sub_plan_cannot_have_are_refused(field: str, tools: ToolRegistry) -> None:
    inner, _ = read_document(SITE.replace("options: {require_approval: false}", field))
    assert inner is not None
    assert find_problems(inner, tools) == []
    found = find_problems(around(inner), tools)
    assert [problem.code for problem in found] == ["not-yet"]
    assert found[0].message.startswith("a plan that another plan runs cannot have")


@pytest.mark.parametrize(
    ("outer", "inner", "found"),
    [
        (["do"], ["do"], []),
        (["do"], [], []),
        ([], ["do"], [("warning", "idle-policy", "steps[0].pinned.approval.always_execute[0]")]),
        (
            ["look"],
            ["do"],
            [
                ("warning", "idle-policy", "steps[0].pinned.approval.always_execute[0]"),
                ("error", "bad-goal", "approval.always_execute[0]"),
            ],
        ),
    ],
)
def test_always_execute_of_a_sub_plan_counts_only_with_that_of_the_plan_around_it(
    outer: list[str], inner: list[str], found: list[tuple[str, str, str]], tools: ToolRegistry
) -> None:
    goal = Step(id="fix", goal="Fix it", tools=["do", "look"])
    plan = ExecutionPlan(
        description="Around",
        approval=ApprovalPolicy(always_execute=outer),
        steps=[Step(id="part", plan="inner.yaml", pinned=site(goal, inputs={}, approval=ApprovalPolicy(always_execute=inner)))],
    )
    problems = [(problem.severity, problem.code, problem.at) for problem in lint(plan, tools)]
    assert [problem for problem in problems if problem[2].endswith("always_execute[0]")] == found


def test_plans_that_run_each_other_are_refused_with_the_chain(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"description: {name}\nsteps: [{{id: go, plan: {other}.yaml}}]\n")
    with pytest.raises(InvalidPlanError, match=r"in a circle: a\.yaml → b\.yaml → a\.yaml"):
        load_plan(tmp_path / "a.yaml")


def test_the_depth_is_bounded(tmp_path: Path, tools: ToolRegistry) -> None:
    (tmp_path / "0.yaml").write_text("description: d\nsteps: [{id: go, tool_name: do, parameters: {what: x}}]\n")
    for number in range(1, 5):
        (tmp_path / f"{number}.yaml").write_text(f"description: d\nsteps: [{{id: go, plan: {number - 1}.yaml}}]\n")
    assert validate(load_plan(tmp_path / "3.yaml"), tools).order == ("go.go.go.go", "go.go.go", "go.go", "go")
    message = r"nested more than 3 deep: 4\.yaml → 3\.yaml → 2\.yaml → 1\.yaml → 0\.yaml"
    with pytest.raises(InvalidPlanError, match=message):
        load_plan(tmp_path / "4.yaml")
    plan = site()
    for _ in range(4):
        plan = ExecutionPlan(description="d", steps=[Step(id="go", plan="x", pinned=plan, inputs={})])
    assert [problem.code for problem in find_problems(plan, tools)] == ["bad-sub-plan"]


@pytest.mark.parametrize(
    ("where", "at"),
    [
        ("steps: [{id: g, for_each: '${{ [1] }}', steps: [{id: go, plan: x.yaml}]}]", "steps[0].steps[0].plan"),
        ("steps: [{id: a, tool_name: do, parameters: {what: x}}]\nfinally: [{id: go, plan: x.yaml}]", "finally[0].plan"),
    ],
)
def test_places_where_no_plan_can_run_are_refused(where: str, at: str, tools: ToolRegistry) -> None:
    plan, _ = read_document(f"description: d\n{where}\n")
    assert plan is not None
    assert [(problem.code, problem.at) for problem in find_problems(plan, tools)] == [("not-yet", at)]


def test_a_plan_that_was_not_loaded_is_a_problem(tools: ToolRegistry) -> None:
    plan, _ = read_document(MOVE)
    assert plan is not None
    assert [(problem.code, problem.at) for problem in find_problems(plan, tools)] == [("bad-sub-plan", "steps[0].plan")]


def test_the_steps_of_a_sub_plan_are_indented_below_it(folder: Path, tools: ToolRegistry) -> None:
    plan = load_plan(folder / "move.yaml")
    bound = bind_inputs(validate(plan, tools))
    preview = preview_plan(bound.validated, inputs=bound.inputs, approval_digest=None, requires_approval=True)
    assert [(step.step.id, step.parameters) for step in preview.steps[:2]] == [
        ("verify", {"site": "北京"}),
        ("verify.check", {"what": "北京"}),
    ]
    for text in (preview_text(preview), format_plan(plan)):
        assert "\n1. **verify** plan `parts/site.yaml`\n" in text
        assert "\n   2. **verify.check** `do`" in text
        assert "\n3. **after** `do`" in text
    assert "      - `what`: `北京`" in preview_text(preview)  # the inner input is known
    assert preview.steps[1].as_json()["within"] == "verify"
    assert "pinned" not in preview.steps[0].as_json()


def test_options_of_a_sub_plan_apply_to_its_steps(tools: ToolRegistry) -> None:
    inner = site(options=ExecutionOptions(step_timeout_ms=7, allow_parallel=True))
    inner.isolation = "process"
    plan = validate(around(inner, do("after", "x")), tools).plan
    assert [plan.timeout_ms_of(step) for step in plan.all_steps if step.tool_name] == [7, 7, 0]
    assert [plan.isolation_of(step) for step in plan.all_steps if step.tool_name] == ["process", "process", None]


def _nested(outer: dict[str, Any], inner: dict[str, Any], tools: ToolRegistry, *, asks: bool = True) -> list[tuple[str, str]]:
    """Return the warnings about the policies of a plan and of the one inside it, which writes."""
    part = Step(id="p", plan="in2", pinned=site(do("w", "x"), inputs={}, approval=ApprovalPolicy(**inner) if inner else None))
    plan = ExecutionPlan(description="Around", approval=ApprovalPolicy(**outer), steps=[part])
    plan.options.require_approval = asks
    return [(problem.code, problem.at) for problem in lint(plan, tools) if problem.code in ("idle-policy", "nobody-may-answer")]


@pytest.mark.parametrize(
    ("outer", "inner", "warned"),
    [
        ({"effects": ["write"]}, {}, []),
        ({"approvers": ["ana"]}, {"effects": ["write"]}, []),
        ({"approvers": ["ana"]}, {}, [("idle-policy", "approval")]),
        ({"effects": ["read"]}, {}, [("idle-policy", "approval")]),
    ],
)
def test_a_policy_has_an_effect_if_a_step_of_an_inner_plan_asks(
    outer: dict[str, Any], inner: dict[str, Any], warned: list[tuple[str, str]], tools: ToolRegistry
) -> None:
    assert _nested(outer, inner, tools, asks=False) == warned


@pytest.mark.parametrize(
    ("outer", "inner", "warned"),
    [
        ({"approvers": ["boss"]}, {"approvers": ["sre"]}, True),
        ({"approvers": ["boss", "sre"]}, {"approvers": ["sre"]}, False),
        ({"approvers": ["boss"]}, {}, False),
        ({"known_by": ["totp"]}, {"known_by": ["ssh_signature"]}, True),
        ({"known_by": ["totp", "ssh_signature"]}, {"known_by": ["ssh_signature"]}, False),
    ],
)
def test_gates_that_nobody_may_answer_are_warned_of_at_the_inner_step(
    outer: dict[str, Any], inner: dict[str, Any], warned: bool, tools: ToolRegistry
) -> None:
    expected = [("nobody-may-answer", "steps[0].pinned.steps[0]")] if warned else []
    assert _nested({"effects": ["write"], **outer}, inner, tools) == expected
