"""Tests of the warnings about an order that is only written, commands without a time limit, and lowered effects."""

from collections.abc import Collection

import pytest

from plan_adapter.documents import read_document
from plan_adapter.model import graph
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import lint, unordered, validate

TOOLS = ToolRegistry.from_settings(())
PARALLEL = "options: {allow_parallel: true, step_timeout_ms: 60000}"
SEQUENTIAL = "options: {step_timeout_ms: 60000}"


def read(steps: str, options: str = PARALLEL) -> ExecutionPlan:
    plan, problems = read_document(f"description: Look for warnings\n{options}\nsteps:\n{steps}")
    assert plan is not None, problems
    return plan


def warnings(plan: ExecutionPlan, code: str) -> list[tuple[str, str]]:
    found = lint(plan, TOOLS)
    assert not [problem for problem in found if problem.severity == "error"], found
    return [(problem.at, problem.message) for problem in found if problem.code == code]


WRITE = "  - {id: write, tool_name: write_file, parameters: {path: out/report.txt, content: x}}\n"
MAIL = "  - {id: mail, bash: mail ana@example.com < out/report.txt%s}\n"
GROUP = """\
  - id: nodes
    for_each: "${{ ['web-1', 'web-2'] }}"
    steps:
      - {id: drain, run_command: [lbctl, drain, "${{ item }}"]}
      - {id: restart, run_command: [systemctl, restart, "${{ item }}"]%s}
"""


def test_steps_that_use_one_file_and_wait_for_each_other_only_by_the_written_order_are_a_warning() -> None:
    (warning,) = warnings(read(WRITE + MAIL % ""), "implicit-order")
    assert warning == ("steps[1]", "`mail` does not wait for `write`, which is written before it and also uses `out/report.txt`")


def test_steps_of_a_group_that_change_one_item_at_the_same_time_are_a_warning() -> None:
    (warning,) = warnings(read(GROUP % ""), "implicit-order")
    assert warning == ("steps[0].steps[1]", "`restart` does not wait for `drain`, which is written before it and also uses the same item")


NO_WARNING = {
    "it waits": (WRITE + MAIL % ", needs: write", PARALLEL),
    "it waits in the group": (GROUP % ", needs: drain", PARALLEL),
    "it says that it waits for nothing": (WRITE + MAIL % ", depends_on: []", PARALLEL),
    "one step at a time": (WRITE + MAIL % "", SEQUENTIAL),
    "an order": (WRITE + MAIL % "", f"{PARALLEL}\norder: sequence"),
    "two reads": (
        "  - {id: a, tool_name: read_file, parameters: {path: a.txt}}\n  - {id: b, tool_name: read_file, parameters: {path: a.txt}}\n",
        PARALLEL,
    ),
    "another file": (WRITE + MAIL.replace("out/report", "other") % "", PARALLEL),
    "one program": ("  - {id: a, run_command: [/usr/bin/env, a]}\n  - {id: b, run_command: [/usr/bin/env, b]}\n", PARALLEL),
    "one address": (
        "  - {id: a, http_send: {method: POST, url: 'https://a.example/hook'}}\n"
        "  - {id: b, http_send: {method: POST, url: 'https://a.example/hook'}}\n",
        PARALLEL,
    ),
    "through a third step": (
        WRITE + "  - {id: check, bash: 'true', needs: write}\n" + MAIL % ", needs: check",
        PARALLEL,
    ),
}


@pytest.mark.parametrize(("steps", "options"), NO_WARNING.values(), ids=[*NO_WARNING])
def test_no_warning_about_the_order(steps: str, options: str) -> None:
    assert warnings(read(steps, options), "implicit-order") == []


def test_several_steps_that_use_one_file_at_the_same_time_are_one_warning() -> None:
    step = "  - {id: s%d, write_file: {path: out.txt, content: x}}\n"
    (warning,) = warnings(read("".join(step % number for number in range(4))), "implicit-order")
    text = "`s1`, `s2`, `s3` do not wait for the steps that are written before them and also use `out.txt`"
    assert warning == ("steps[1]", text)


def test_a_step_that_was_warned_about_is_still_a_user_of_its_other_files() -> None:
    steps = (
        "  - {id: a, bash: {command: x, cwd: lib/a}}\n"
        "  - {id: b, run_command: [cp, lib/a, lib/b], timeout: 1m}\n"
        "  - {id: c, write_file: {path: lib/b, content: x}}\n"
    )
    found = [text.split(",")[0] for _, text in warnings(read(steps), "implicit-order")]
    assert found == ["`b` does not wait for `a`", "`c` does not wait for `b`"]


def test_a_long_chain_that_uses_one_file_is_searched_once_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[object]()

    def search(dependencies: graph.Graph, starts: Collection[str]) -> set[str]:
        searched.append(starts)
        return graph.reachable(dependencies, starts)

    monkeypatch.setattr(unordered, "reachable", search)
    step = "  - {id: s%d, write_file: {path: out.txt, content: x}%s}\n"
    assert warnings(read("".join(step % (n, f", needs: s{n - 1}" if n else "") for n in range(50))), "implicit-order") == []
    assert len(searched) == 49


def test_an_explicit_empty_list_changes_no_digest() -> None:
    plans = [read(WRITE + MAIL % written) for written in ("", ", depends_on: []")]
    assert len({validate(plan, TOOLS).digest for plan in plans}) == 1


COMMANDS = "  - {id: a, bash: 'true'}\n  - {id: b, run_command: ['true']}\n"


def test_commands_without_a_time_limit_are_one_warning() -> None:
    assert warnings(read(COMMANDS, "name: x"), "no-timeout") == [
        ("steps[0]", "`a`, `b` have no time limit: a command that hangs is never ended")
    ]
    assert warnings(read(COMMANDS.replace("'true'}\n", "'true', timeout: 5m}\n", 1), "name: x"), "no-timeout") == [
        ("steps[1]", "`b` has no time limit: a command that hangs is never ended")
    ]


@pytest.mark.parametrize("options", ["{step_timeout_ms: 60000}", "{total_timeout_ms: 60000}"])
def test_a_time_limit_of_the_plan_counts_for_its_commands(options: str) -> None:
    assert warnings(read(COMMANDS, f"options: {options}"), "no-timeout") == []


def test_final_steps_have_a_limit_of_their_own() -> None:
    last = COMMANDS + "finally:\n  - {id: last, bash: 'true'}\n"
    assert warnings(read(last, "options: {total_timeout_ms: 60000}"), "no-timeout") == []
    plan = read(last, "options: {total_timeout_ms: 60000, finally_timeout_ms: 0}")
    assert warnings(plan, "no-timeout") == [("finally[0]", "`last` has no time limit: a command that hangs is never ended")]


def test_a_preview_says_which_effects_the_plan_lowers() -> None:
    plan = read("  - {id: a, bash: 'true', effect: read}\n  - {id: b, bash: 'true'}\n")
    preview = preview_plan(validate(plan, TOOLS), inputs={}, approval_digest=None, requires_approval=True)
    assert [step.lowered_from for step in preview.steps] == ["write", None]
    assert preview_text(preview).count("**declared as read: `bash` counts as write**") == 1
    assert [step.get("lowered_from") for step in preview.as_json()["steps"]] == ["write", None]


BATCH = """\
  - id: nodes
    for_each: "${{ ['web-1', 'web-2', 'web-3'] }}"
    batch: %d
    steps:
      - {id: drain, run_command: [lbctl, drain, "${{ item }}"]}
"""


@pytest.mark.parametrize(
    ("batch", "options", "expected"),
    [
        (3, PARALLEL, []),
        (4, PARALLEL, ["`nodes` would work on 4 items at once, and the plan runs only 3 steps at once"]),
        (2, SEQUENTIAL, ["`nodes` would work on 2 items at once, and the plan runs one step at a time"]),
        (1, SEQUENTIAL, []),
    ],
)
def test_a_batch_above_the_limit_of_the_plan_is_a_warning(batch: int, options: str, expected: list[str]) -> None:
    assert warnings(read(BATCH % batch, options), "capped-batch") == [("steps[0].batch", message) for message in expected]
