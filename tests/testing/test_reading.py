"""Tests of reading test files: how they are found, and which problems are reported."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plan_adapter.errors import InvalidPlanError
from plan_adapter.testing import find_test_files, load_cases
from tests.testing.conftest import RESTART, SHARED, WriteCases

Problems = Callable[..., list[str]]


def test_cases_keep_their_order_names_and_lines(write_cases: WriteCases) -> None:
    cases = write_cases(f"{SHARED}cases:\n  一切正常: {{}}\n  a. b[c]:\n    expect: {{}}\n")
    assert [(case.name, case.line) for case in cases] == [("一切正常", 5), ("a. b[c]", 6)]
    assert str(cases[0]).endswith("restart.test.yaml:5: 一切正常")


def test_a_case_overrides_shared_answers_step_by_step(write_cases: WriteCases) -> None:
    (case,) = write_cases(f"{SHARED}cases:\n  it works: {{inputs: {{host: web-2}}, steps: {{drain: {{failure: no}}}}}}\n")
    assert case.plan.inputs == {"host": "web-2"}
    assert {step for _, step in case.calls} == {"verify", "drain"}


def test_all_problems_are_reported_at_once_with_their_positions(problems: Problems) -> None:
    assert problems("""\
inputs: {hots: web-1}
step: {}
steps:
  dran: {result: 1}
  drain: {timeout: true}
  restart: {result: 1, failure: no}
  verify: []
rollbacks: {restart: {result: 1}}
gates: {drain: approve, restart: aprove, plan: [approve]}
cases:
  one:
    inputs: {host: db-1}
    expects: {}
    expect:
      status: complete
      order: [drain, [verfy]]
      gates: [plna, "restart[web-1]"]
      failed: {tel: no, drain: 1}
      effects: {writes: [], read: drain}
      attempts: {drain: -1}
      called_with: {drain: [lbctl]}
      outputs: []
  two: yes
""") == [
        "1:10 unknown-input the plan has no input `hots`; did you mean `host`?",
        "2:1 unknown-field a test file has no field `step`; did you mean `steps`?",
        "4:3 unknown-step no step is called `dran`; did you mean `drain`?",
        "5:11 bad-answer `drain` has no timeout; write `timeout_ms` on the step, or another answer here",
        "6:3 bad-answer an answer is one of `result`, `failure` and `timeout`, and this has `result` and `failure`; write one of them",
        "7:3 bad-answer the list of answers is empty; write one for each attempt: `[{failure: …}, {result: …}]`",
        "8:13 bad-answer `restart` has no rollback; remove it, or write a `rollback` in the plan",
        "9:9 bad-answer `drain` has no gate, so nobody is asked; remove the answer, or require an approval in the plan",
        "9:25 bad-value this must be one of `approve`, `reject`, `expire`; did you mean `approve`?",
        "9:42 bad-value this must be one of `approve`, `reject`, `expire`; ",
        "12:14 bad-input the value `db-1` does not match the pattern `^web-[0-9]+$`; ",
        "13:5 unknown-field a case has no field `expects`; did you mean `expect`?",
        "15:7 bad-value this must be one of `completed`, `failed`, `cancelled`, `partial`; did you mean `completed`?",
        "16:23 unknown-step no step is called `verfy`; did you mean `verify`?",
        "17:15 unknown-step no step is called `plna`; did you mean `plan`?",
        "18:16 unknown-step no step is called `tel`; did you mean `tell`?",
        "18:25 wrong-type this must be text, not a number; put it in quotes",
        "19:17 unknown-field `effects` has no field `writes`; did you mean `write`?",
        "19:29 wrong-type this must be a list of steps, not text; write [ … ]",
        "20:18 wrong-type this must be a whole number of at least 0; ",
        "21:29 wrong-type this must be a mapping, not text; ",
        "22:7 wrong-type this must be a mapping, not a list; ",
        "23:3 wrong-type this must be a mapping, not text; ",
    ]


def test_problems_of_the_plan_are_reported_with_those_of_the_test_file(problems: Problems) -> None:
    found = problems("cases: {one: {steps: {dran: {result: 1}}}}", plan=RESTART.replace("tool_name: http_get", "tool_name: http_gte"))
    assert [line.split()[1] for line in found] == ["unknown-tool", "unknown-step"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "1:1 syntax the document is empty; write `description` and `steps`; `plan init` writes an example"),
        ("inputs: {host: web-1}", "1:1 missing-field the file has no cases; write `cases:` and under it `it works: {}`"),
        ("cases: []", "1:1 wrong-type this must be a mapping, not a list; "),
        ("- a", "1:1 wrong-type the file must contain a mapping of names to values, not a list; "),
        ("cases: {a: {}, a: {}}\ninputs: {host: web-1}", "1:16 duplicate-key `a` is written twice in one mapping; remove one of them"),
        ("cases: {a: {}}", "1:9 missing-input no value for `host`; write it under `inputs`"),
    ],
)
def test_the_problem_of_an_invalid_test_file_says_what_is_missing(problems: Problems, text: str, found: str) -> None:
    assert problems(text) == [found]


@pytest.mark.parametrize(
    ("expect", "found"),
    [
        ("{reason: rejectd}", "4:22 bad-value this must be one of `step_failed`, `timed_out`, `rejected`, "),
        ("{gates: }", "4:22 wrong-type this must not be null; write a value, or remove the line"),
        ("{skipped: [tel]}", "4:32 unknown-step no step is called `tel`; did you mean `tell`?"),
    ],
)
def test_an_expectation_that_cannot_be_checked_is_refused(problems: Problems, expect: str, found: str) -> None:
    (problem,) = problems(f"{SHARED}cases: {{a: {{expect: {expect}}}}}")
    assert problem.startswith(found)


def test_expire_is_refused_for_a_gate_that_never_expires(problems: Problems) -> None:
    plan = RESTART.replace("options: {approval_timeout_ms: 60000}\n", "")
    (found,) = problems(f"{SHARED}gates: {{plan: expire}}\ncases: {{a: {{}}}}", plan=plan)
    assert found.startswith("4:9 bad-answer the gates of this plan never expire")


def test_a_missing_plan_is_reported(tmp_path: Path) -> None:
    (tmp_path / "restart.test.yaml").write_text("cases: {a: {}}", encoding="utf-8")
    with pytest.raises(InvalidPlanError, match=r"restart\.yaml: error\[unreadable\]: the file does not exist"):
        load_cases(tmp_path / "restart.test.yaml")


def test_test_files_are_found_by_folder_by_plan_and_by_name(tmp_path: Path) -> None:
    names = ["a.test.yaml", "b/c.test.yml", "b/d.yaml", "b/d.test.yaml", ".venv/e.test.yaml", "f.yaml"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def found(*paths: str) -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in find_test_files(tmp_path / path for path in paths)]

    assert found("") == ["a.test.yaml", "b/c.test.yml", "b/d.test.yaml"]
    assert found("b/d.yaml", "b", "gone.test.yaml") == ["b/d.test.yaml", "b/c.test.yml", "gone.test.yaml"]
    for path, why in (("f.yaml", "there is no f.test.yaml beside"), ("gone.yaml", "does not exist"), ("empty", "has no test files")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(FileNotFoundError, match=why):
            find_test_files([tmp_path / path])
