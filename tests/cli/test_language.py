"""Tests of the language in which people read gates, forms, runs and reports: that of the plan, of the setting, or of the locale."""

import json
import re
from pathlib import Path

import pytest

from plan_adapter.engine.form import build_form, form_description, without_folding
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.language import speaking
from tests.cli.conftest import Plan
from tests.cli.test_run import GREET, TOOLS, document, step
from tests.cli.test_terminal import Terminal, run_at, terminals

__all__ = ["terminals"]

APPROVED = {"require_approval": True}
OURS = re.compile(r"\b(?!(?:plan|approve|reject|show|digest|resume|offline|gates|greet|tools|no)\b)[a-z]{3,}(?: [a-z]{2,})+")
"""Two English words in a row that are not a command."""


def chinese(text: str) -> str:
    """Return `text` without code and the names of tools."""
    return re.sub(r"`[^`]*`|tests\.\S+", "", text)


def test_the_gate_of_a_plan_is_in_its_language(plan: Plan) -> None:
    plan("run", document(GREET, language="zh", options=APPROVED), "--offline", *TOOLS)
    first = plan("approve", "last", "--show").out.partition("### ")[0]
    assert first.startswith("## 是否批准 试运行？\n")
    assert "将一直等待，直到有人回答。" in first
    assert not OURS.search(chinese(first)), first


def test_the_setting_is_for_plans_without_a_language_and_for_what_is_shown(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", "zh")
    plan("run", document(GREET, language="en", options=APPROVED), "--offline", *TOOLS)
    assert plan("approve", "last", "--show").out.startswith("## Approve 试运行?\n")
    assert plan("show", "last").out.startswith("⏸ 等待审批（没有进程在等待）: 试运行\n")
    plan("run", document(GREET, step("b", "fail", depends_on=["greet"], parameters={"text": "坏了"})), "--offline", *TOOLS)
    text = plan("show", "last").out
    assert text.startswith("✗ 部分完成: 试运行，")
    assert "2 个步骤中已完成 1 个" in text
    plan("report", "last", "--output", "run.html")
    report = Path("run.html").read_text(encoding="utf-8")
    assert '<html lang="zh">' in report
    assert "<h2>时间线</h2>" in report


def test_previews_progress_and_lists_are_in_the_language_of_the_setting(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", "zh")
    path = document(step("lost", "get_lost"), options=APPROVED, approval={"approvers": ["ana"]})
    assert "- **无法撤销：`lost`**\n- 最坏情况：无限期" in plan("preview", path, *TOOLS).out
    shown = plan("run", path, "--offline", *TOOLS)
    assert (shown.code, shown.out) == (6, "试运行: 等待中: 1 个步骤中已完成 0 个, 1 未开始\n")
    assert "\n等待审批; " in f"\n{shown.err}"
    assert plan("runs").out.splitlines()[0].split() == ["运行", "运维手册", "状态", "完成", "时长"]
    heads, row = plan("gates").out.splitlines()
    assert (heads.split(), row.split()[2:]) == (
        ["运行", "运维手册", "等待", "时长", "截止", "谁可回答"],
        ["计划", *row.split()[3:5], "无限期", "ana"],
    )


def test_the_locale_decides_without_a_setting(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan("run", document(GREET), "--offline", *TOOLS)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert plan("show", "last").out.startswith("✓ 已完成: 试运行，")
    monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", "en")
    assert plan("show", "last").out.startswith("✓ Completed: 试运行,")


def test_what_programs_read_is_in_english(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", "zh")
    shown = plan("run", document(GREET), "--offline", "--json", *TOOLS)
    assert json.loads(shown.out.splitlines()[-1])["summary"]["text"] == "1 of 1 step done"
    assert "个步骤" in plan("show", "last").out
    assert "个步骤" not in plan("show", "last", "--json").out


def test_an_unknown_language_is_refused_with_those_that_exist(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = plan("validate", document(GREET, language="kl"), *TOOLS)
    assert refused.code == 2
    assert "language" in refused.out
    assert "zh" in refused.out
    monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", "kl")
    assert "PLAN_ADAPTER_LANGUAGE" in plan("runs").err


def test_a_terminal_asks_in_the_language_of_the_plan(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, language="zh", options=APPROVED))
    terminal.wait_for("的身份批准此计划？ [y] 批准, [n] 拒绝, [v] 查看, [e] 编辑, [?] ")
    terminal.type("?\n")
    terminal.wait_for("是：仅按此内容执行一次")
    terminal.wait_for_next("[?] ")
    terminal.type("y\n")
    assert terminal.end() == 0


def test_a_form_has_titles_and_hints_in_the_language_that_is_spoken() -> None:
    request = ApprovalRequest(approval_digest="d1" * 32, name="n", description="d", text="## 批准?\n\n### 步骤\n\nx\n", run_id="r1")
    with speaking("zh"):
        properties = build_form(request).model_json_schema()["properties"]
        shown = form_description(request, refused="x")
    assert [field["title"] for field in properties.values()] == ["决定", "你的姓名", "备注"]
    assert "request_changes：需填写备注" in properties["decision"]["description"]
    assert shown.startswith("**上一个回答被拒绝：** x.") or shown.startswith("**上一个回答被拒绝：** x。")
    assert "<details><summary><b>完整详情" in shown
    assert "<details>" not in without_folding(shown)
