"""Tests of replanning with a model: `plan revise RUN "words"`, and `on_failure: replan` on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.cli.sources import is_words
from tests.agent.conftest import forget_model_servers
from tests.agent.server import says, scripted
from tests.cli.conftest import Plan, digest_of
from tests.cli.drafting import configure, done, step
from tests.cli.test_run import TOOLS

__all__ = ["forget_model_servers"]

GOOD = done(step("greet", {"who": "${{ steps.first.result.text }}"}, id="again"))


def broken(plan: Plan, **fields: Any) -> str:
    """Return the id of a run whose second step has failed."""
    steps = [step("greet", {"who": "世界"}, id="first"), step("fail", {"text": "镜像不通"}, id="second", depends_on=["first"])]
    document: dict[str, Any] = {"description": "问候", "options": {"require_approval": False}, "steps": steps, **fields}
    Path("plan.json").write_text(json.dumps(document), encoding="utf-8")
    result = plan("run", "plan.json", "--offline", "--json", *TOOLS)
    return str(result.run["id"])


def test_revise_with_words_makes_a_model_replan_the_remaining_steps(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = broken(plan)
    monkeypatch.setenv("PLAN_ADAPTER_DRAFT_ANSWER_TOKENS", "777")
    with scripted(says(GOOD)) as server:
        configure(monkeypatch, server.url)
        result = plan("revise", run_id, "换一个镜像再试", *TOOLS)
        prompt = server.requests[0]["messages"][1]["content"]
        assert server.requests[0]["max_completion_tokens"] == 777
    assert result.code == 0, result.err
    assert "镜像不通" in prompt
    changes = [line.partition(":")[0] for line in result.out.splitlines()[1:]]
    assert set(changes) == {
        *("added `again`", "removed `second`", "`options`"),
        f"run {run_id} has the new version",
    }
    assert "the model says: 问候两次。" in result.err
    assert f"`plan approve {run_id} --digest " in result.err
    assert plan("approve", run_id, "--digest", digest_of(plan, run_id)).code == 0
    assert plan("resume", run_id, "--offline", *TOOLS).code == 0
    shown = plan("show", run_id, "--json").run
    assert [(step["id"], step["status"], step["attempts"]) for step in shown["steps"]] == [
        ("first", "completed", 1),
        ("again", "completed", 1),
    ]
    assert [(step["id"], step["attempts"], step["error"]) for step in shown["earlier_steps"]] == [("second", 1, "RuntimeError: 镜像不通")]
    assert "- `second` (`fail`): did not succeed in 1 attempt: `RuntimeError: 镜像不通`" in plan("show", run_id, "--all").out
    assert "换一个镜像再试" in plan("show", "--draft", "--all").out
    assert plan("verify", run_id).code == 0


def test_the_run_is_unchanged_if_the_model_returns_no_plan(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = broken(plan)
    monkeypatch.delenv("PLAN_ADAPTER_MODEL", raising=False)
    unset = plan("revise", run_id, "换一个镜像", *TOOLS)
    assert (unset.code, "no model is configured" in unset.err) == (2, True)
    with scripted(says({"action": "ask_user", "speak": "哪个镜像？", "reason": ""})) as server:
        configure(monkeypatch, server.url)
        result = plan("revise", run_id, "换一个镜像", *TOOLS, "--json")
    assert (result.code, result.run["question"], "is unchanged" in result.err) == (1, "哪个镜像？", True)
    assert plan("show", run_id, "--json").run["status"] == "partial"


def test_a_single_unknown_token_is_treated_as_a_mistyped_plan(plan: Plan) -> None:
    run_id = broken(plan)
    result = plan("revise", run_id, "again", *TOOLS)
    assert (result.code, "there is no file `again`" in result.err, "; words for a model" in result.err) == (2, True, True)
    result = plan("revise", run_id, "new-plan.yaml", *TOOLS)
    assert (result.code, "new-plan.yaml: error[unreadable]: the file does not exist" in result.err) == (2, True)
    assert "--allow-tool and --secret are for a model" in plan("revise", run_id, "plan.json", "--allow-tool", "bash", *TOOLS).err
    assert "the words are empty" in plan("revise", run_id, " ", *TOOLS).err


@pytest.mark.parametrize("text", ["重试", "try the other", "x" * 5000 + " "])
def test_text_that_counts_as_words_for_a_model(text: str) -> None:
    assert is_words(text)


@pytest.mark.parametrize("text", ["a.yaml", "store:计划", "<stdin>", "我的计划", "0" * 64])
def test_text_that_does_not_count_as_words_for_a_model(text: str) -> None:
    Path("我的计划").write_text("")
    assert not is_words(text)


def test_an_automatically_replanned_run_waits_for_an_approval(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(says(GOOD)) as server:
        configure(monkeypatch, server.url)
        run_id = broken(plan, on_failure="replan")
        steps = [line["event"] for line in plan("run", "plan.json", "--offline", "--json", "--yes", *TOOLS).lines[:-1]]
        again = plan("run", "plan.json", "--offline", *TOOLS)
    assert (again.code, "`second` failed: RuntimeError: 镜像不通: a model redrafts the remaining steps" in again.err) == (6, True)
    assert "replanning" in steps
    assert "run_ended" not in steps
    assert plan("show", run_id, "--json").run["status"] == "pending_approval"
    assert plan("approve", run_id, "--digest", digest_of(plan, run_id)).code == 0
    assert plan("resume", run_id, "--offline", *TOOLS).code == 0


def test_a_plan_with_on_failure_replan_is_marked_and_warns_without_a_model(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_MODEL", raising=False)
    broken(plan, on_failure="replan")
    result = plan("validate", "plan.json", *TOOLS)
    assert (result.code, "no-model" in result.out + result.err) == (0, True)
    assert "a model redrafts the remaining steps, at most twice" in plan("preview", "plan.json", *TOOLS).out
