"""Tests of the gate text: complete, exact, without secrets, and safe against markup in a plan."""

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pydantic import JsonValue

from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import ApprovalPolicy, Effect
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.text.call_text import step_gate_text
from plan_adapter.text.gate_text import HEIGHT, NO_CONTEXT, GateContext, ValueMask, height_of, split_text, without_picture
from plan_adapter.text.plan_text import plan_gate_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import bind_inputs, validate
from tests.gates.plans import HOSTILE, big_plan, bound, hostile_plan, restart_plan

TEXTS = Path(__file__).parent / "texts"
DIGEST = "d1" * 32
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
NEVER = {"link_open", "image", "html_block", "html_inline", "s_open", "em_open", "hr", "ordered_list_open", "table_open"}


def text_of(plan: ExecutionPlan, *, limit_bytes: int = 200_000, earlier: ExecutionPlan | None = None, **inputs: object) -> str:
    """Return the gate text of `plan` with `inputs`; steps with `requires_approval` are gated."""
    gated = [step.id for step in plan.steps if step.requires_approval]
    bound_plan = bound(plan, **inputs)
    return plan_gate_text(bound_plan, gated=gated, approval_digest=DIGEST, expires_ms=1_800_000, earlier=earlier, limit_bytes=limit_bytes)


def first_screen(plan: ExecutionPlan, *, context: GateContext = NO_CONTEXT, **inputs: object) -> list[str]:
    """Return the lines of the first screen of a gate of `plan` that opens in `context`."""
    gated = [step.id for step in plan.steps if step.requires_approval]
    shown = plan_gate_text(bound(plan, **inputs), gated=gated, approval_digest=DIGEST, expires_ms=1_800_000, context=context)
    return split_text(shown)[0].splitlines()


def restart_text(earlier: ExecutionPlan | None = None) -> str:
    """Return the gate text of the ordinary plan."""
    return text_of(restart_plan(), earlier=earlier, host="web-1", api_token="s3cr3t-value")


def built(text: str) -> Counter[str]:
    """Return how many elements of each kind Markdown parses from `text`."""
    tokens = MARKDOWN.parse(text)
    return Counter(token.type for outer in tokens for token in [outer, *(outer.children or [])])


def step_text(*parameters: object, **fields: object) -> str:
    """Return the gate text of the step `restart` with `parameters` named `p0`, `p1`, …"""
    plan = bound(restart_plan(), host="web-1", api_token="s3cr3t-value")
    arguments = {"effect": "write", "item": None, "approval_digest": DIGEST, "expires_ms": 0} | fields
    named = {f"p{number}": value for number, value in enumerate(parameters)}
    return step_gate_text(plan, plan.validated.plan.step("restart"), **({"parameters": named} | arguments))  # type: ignore[arg-type]


SHOWN: dict[str, Callable[[], str]] = {
    "ordinary": restart_text,
    "hostile": lambda: text_of(hostile_plan(), note=HOSTILE),
    "step": lambda: step_text(
        ["systemctl", "restart", "web"],
        "set -e\nsystemctl restart web\n",
        {"DB_PASSWORD": "x", "LANG": "C"},
        results={"drain": {"exit_code": 0, "stdout": "drained"}},
        ends={"drain": "completed"},
        notices=["The last answer was refused: ana may not answer here"],
        expires_ms=60_000,
        context=ASKED,
        item=1,
        label="web-2",
        of_items=3,
    ),
}
"""The gate texts stored as snapshots. `make generated` rewrites them; review the difference before you commit it."""


@pytest.mark.parametrize("name", SHOWN)
def test_the_text_matches_its_snapshot(name: str) -> None:
    assert SHOWN[name]() == (TEXTS / f"{name}.md").read_text(encoding="utf-8"), "`make generated` writes it again"


ASKED = GateContext(run="restart web-1", requested_by="ana", at=datetime(2026, 11, 27, 14, 2, tzinfo=UTC))


def test_the_first_screen_has_the_request_then_the_calls_by_risk_then_how_long_they_take() -> None:
    plan = restart_plan()
    plan.step("config").rollback = Rollback(tool_name="run_command", parameters={"argv": ["git", "checkout"]})
    assert first_screen(plan, context=ASKED, host="web-1", api_token="s3cr3t-value") == [
        "## Approve restart-service?",
        "",
        "Asked by ana, 2026-11-27 14:02 UTC. Rejected if nobody answers by 14:32 UTC (30 min). Inputs: host `web-1`, api_token `***`.",
        "",
        "**Cannot be undone:**",
        "",
        "- **2. drain** (not asked again): `run_command` `lbctl drain web-1`",
        "- **4. restart**: `run_command` `systemctl restart web`",
        "",
        "Also 1 write that can be undone and 2 reads. Asks again before `restart`. Takes at most 15 min 34 s, plus waits.",
    ]


def test_the_description_is_on_the_first_screen_if_all_calls_fit_beside_it() -> None:
    step = Step(id="a", tool_name="run_command", parameters={"argv": ["x"]})
    plan = ExecutionPlan(name="reload", description="Reload nginx", steps=[step])
    assert first_screen(plan)[:3] == ["## Approve reload?", "", "> Reload nginx"]
    shown = restart_text()
    assert "> Restart one web node without dropping requests." not in split_text(shown)[0]
    assert "### Description\n\n> Restart one web node without dropping requests." in shown


def test_writes_that_can_be_undone_follow_if_all_fit() -> None:
    undo = Rollback(tool_name="run_command", parameters={"argv": ["undrain"]})
    drain = Step(id="drain", tool_name="run_command", parameters={"argv": ["drain"]}, rollback=undo)
    plan = ExecutionPlan(name="move", description="Move", steps=[drain])
    assert first_screen(plan)[6:9] == ["**Every write can be undone:**", "", "- **1. drain**: `run_command` `drain`"]
    plan.steps.append(Step(id="stop", tool_name="run_command", parameters={"argv": ["stop"]}))
    shown = first_screen(plan)[6:]
    assert shown[:3] == ["**Cannot be undone:**", "", "- **2. stop**: `run_command` `stop`"]
    assert shown[4:7] == ["**Can be undone:**", "", "- **1. drain**: `run_command` `drain`"]


def test_a_plan_without_writes_shows_its_reads() -> None:
    plan = ExecutionPlan(name="look", description="Look", steps=[Step(id="a", tool_name="http_get", parameters={"url": "http://a"})])
    assert first_screen(plan)[6:9] == ["It only reads:", "", "- **1. a**: `http_get` `http://a`"]


def test_the_items_of_a_call_are_named_on_the_first_screen() -> None:
    plan = rolling_plan(["systemctl", "restart", "${{ item }}"], effect="write")
    assert '- **4. run** (for a, b): `run_command` argv `systemctl restart ${{ item }}` pin `""`' in first_screen(plan)


def test_many_items_are_named_by_the_first_and_the_last_and_what_is_theirs_comes_last() -> None:
    names = [f"web-{number:02}" for number in range(1, 41)]
    parameters: dict[str, JsonValue] = {"url": "${{ item }}", "headers": {"a": "b"}}
    step = Step(id="a", tool_name="http_get", for_each=f"${{{{ {names} }}}}", parameters=parameters)
    (row,) = [line for line in first_screen(ExecutionPlan(name="x", description="X", steps=[step])) if "1. a" in line]
    assert row == '- **1. a** (40 items: web-01 … web-40): `http_get` headers `{"a": "b"}` url `${{ item }}`'


def test_the_first_screen_shows_every_step_of_a_small_plan_with_its_whole_call() -> None:
    command = "systemctl reload nginx && curl --fail --silent http://127.0.0.1/health && echo reloaded"
    plan = ExecutionPlan(name="reload", description="Reload", steps=[Step(id="a", tool_name="run_command", parameters={"argv": [command]})])
    assert f"- **1. a**: `run_command` `'{command}'`" in first_screen(plan)


@pytest.mark.parametrize("steps", [1, 3, 7, 8, 30, 1000])
@pytest.mark.parametrize("description", ["Move", "滚动重启所有网页节点。" * 1000])
def test_the_first_screen_leaves_room_for_the_decision(steps: int, description: str) -> None:
    plan = big_plan(steps)
    plan.description = description
    first, _ = split_text(text_of(plan))
    assert height_of(first.splitlines()) <= HEIGHT


def test_the_first_screen_of_a_long_plan_shows_writes_and_counts_the_rest() -> None:
    first, _ = split_text(text_of(big_plan(60)))
    assert re.findall(r"^- \*\*(\d+)\. ", first, re.MULTILINE) == ["2", "4", "6", "8"]
    assert first.partition("**Cannot be undone:**")[2].count("- **and 26 more**: `s9`, `s11`, `s13`, ") == 1
    assert first.endswith(", … all below\n\nAlso 30 reads. Runs without a time limit.\n")


@pytest.mark.parametrize("lines", [1, 2, 9, 300])
def test_the_first_screen_of_a_step_shows_its_command_and_leaves_room_for_the_decision(lines: int) -> None:
    command = "\n".join(f"kubectl rollout restart deployment/web-{number}" for number in range(lines))
    first, rest = split_text(step_text(command, "a second value", expires_ms=60_000))
    assert height_of(first.splitlines()) <= HEIGHT
    assert "kubectl rollout restart deployment/web-0" in first
    is_whole = f"deployment/web-{lines - 1}" in first
    assert is_whole is (lines <= 2)
    assert is_whole or ("cut here, complete below" in first and f"deployment/web-{lines - 1}\n" in rest)


def test_a_long_description_does_not_push_the_writes_off_the_first_screen() -> None:
    plan = restart_plan()
    plan.description = "All is well.\n" * 200
    first, rest = split_text(text_of(plan, host="web-1", api_token="t"))
    assert ("`systemctl" in first or '"systemctl"' in first, "**Cannot be undone" in first) == (True, True)
    assert "### Description\n\n> All is well.\n>\n> All is well.\n" in rest


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.text() | st.text(alphabet="`|\\*_[]()<>!#-=~&;:/.@w1a \n\t"))
def test_plan_text_is_always_rendered_as_plain_text(text: str) -> None:
    plan = hostile_plan(text.replace("${{", "$ {{"))
    try:
        shown = text_of(plan, note=text)
    except InvalidPlanError:
        reject()  # not a valid plan
    elements = built(shown)
    assert {kind: elements[kind] for kind in NEVER} == dict.fromkeys(NEVER, 0)
    known = ("The run", "Description", "Inputs", "Steps", "Long values", "What cannot be undone", "Order", "Digests")
    headings = re.findall(r"^### (.*)$", shown, re.MULTILINE)
    assert elements["heading_open"] == len(headings) + 1
    assert headings == [name for name in known if name in headings]
    assert shown.splitlines().count(DIGEST) == 1
    assert shown.splitlines().count("approval digest") == 1


@settings(max_examples=60)
@given(st.text() | st.text(alphabet="`|\\*_[]()<>!#-=~&;:/.@w1a \n\t"))
def test_call_text_is_always_rendered_as_plain_text(text: str) -> None:
    shown = step_text(text, [text], {text: text}, results={"drain": text}, ends={"drain": text}, notices=[text])
    elements = built(shown)
    assert {kind: elements[kind] for kind in NEVER} == dict.fromkeys(NEVER, 0)
    known = ("Parameters", "The call", "Description", "What it depends on", "Digests")
    headings = re.findall(r"^### (.*)$", shown, re.MULTILINE)
    assert elements["heading_open"] == len(headings) + 1
    assert headings == [name for name in known if name in headings]
    assert shown.splitlines().count(DIGEST) == 1
    assert shown.splitlines().count("approval digest") == 1


def test_html_links_and_images_are_neutralized_outside_code() -> None:
    shown = text_of(hostile_plan(), note=HOSTILE, earlier=restart_plan())
    outer = [child.content for token in MARKDOWN.parse(shown) for child in token.children or [] if child.type == "text"]
    assert not any("://" in text or "www." in text or "@" in text for text in outer)
    without_code = re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", "\n".join(line for line in shown.splitlines() if line[:2] != "  "))
    assert not re.search(r"(?<!\\)<script|(?<!\\)\]\(|!\[", without_code)


def test_secrets_are_redacted() -> None:
    shown = restart_text() + step_text("s3cr3t-value", "curl -H s3cr3t-value", {"Api-Key": "k1", "nested": [{"client_secret": "k2"}]})
    assert not re.search("hunter2|s3cr3t|k1|k2", shown)
    assert '{"Authorization": "***"}' in shown
    assert "https://ops:***@web-1/health" in shown
    assert "`***` stands for a secret." in shown


def test_a_parameter_that_the_tools_schema_marks_as_secret_is_redacted() -> None:
    plan = ExecutionPlan(
        description="Call",
        steps=[Step(id="a", tool_name="run_command", parameters={"argv": ["x"], "pin": "4711-secret"})],
    )
    newer = plan.model_copy(deep=True)
    newer.steps[0].parameters["pin"] = "4712-secret"
    shown = text_of(newer, earlier=plan)
    assert "471" not in shown
    assert "- `a.parameters.pin`: `***` → `***`" in shown


def test_a_new_version_lists_changes_and_highlights_raised_privileges() -> None:
    earlier = restart_plan()
    earlier.steps[1].parameters = {"argv": ["lbctl", "drain"]}
    earlier.steps[0].effect = "read"  # the effect of its tool, too: not raised
    earlier.steps[3].effect = "read"
    earlier.steps.append(Step(id="tell", tool_name="http_get", parameters={"url": "http://chat"}))
    shown = restart_text(earlier)
    assert shown.startswith("**⚠️ MAY DO MORE THAN BEFORE: `restart`, read → write**\n\n## Approve restart-service?\n")
    changes = shown.partition("### What changed\n\n")[2].partition("\n\n")[0]
    assert changes.splitlines() == [
        "- **removed** `tell`: `http_get`",
        "- `check.effect`: `read` → nothing",
        '- `drain.parameters.argv`: `["lbctl", "drain"]` → `["lbctl", "drain", "${{ inputs.host }}"]`',
        "- `restart.effect`: `read` → nothing",
        "- unchanged: `config`, `verify`",
    ]


def rolling_plan(argv: list[str], *, effect: Effect, pin: str = "", first: str = "harmless") -> ExecutionPlan:
    """Return a plan with a group of two steps, the second of which runs `argv`."""
    look = Step(id="look", tool_name="http_get", parameters={"url": "u"}, description="k" * 400)
    inner = Step(id="run", tool_name="run_command", effect=effect, parameters={"argv": [*argv], "pin": pin})
    group = Step(id="nodes", for_each="${{ ['a', 'b'] }}", steps=[look, inner])
    return ExecutionPlan(
        description="Roll", steps=[Step(id="top", tool_name="run_command", parameters={"argv": [first]}, effect="read"), group]
    )


def changes_of(shown: str) -> list[str]:
    return shown.partition("### What changed\n\n")[2].partition("\n\n")[0].splitlines()


def test_a_step_in_a_group_is_compared_on_its_own() -> None:
    shown = text_of(rolling_plan(["rm", "-rf", "/"], effect="write"), earlier=rolling_plan(["true"], effect="read"))
    assert shown.startswith("**⚠️ MAY DO MORE THAN BEFORE: `run`, read → write**\n\n")
    assert changes_of(shown) == [
        '- `run.parameters.argv`: `["true"]` → `["rm", "-rf", "/"]`',
        "- `run.effect`: `read` → `write`",
        "- unchanged: `top`, `look`",
    ]


def test_a_step_that_is_new_in_a_group_or_gone_from_it_changes_the_group() -> None:
    earlier, newer = rolling_plan(["true"], effect="read"), rolling_plan(["true"], effect="read")
    newer.steps[1].steps.append(Step(id="more", tool_name="http_get", parameters={"url": "u"}))
    assert changes_of(text_of(newer, earlier=earlier)) == ["- **added** `more`: `http_get`, read", "- unchanged: `top`, `look`, `run`"]
    assert changes_of(text_of(earlier, earlier=newer)) == ["- **removed** `more`: `http_get`", "- unchanged: `top`, `look`, `run`"]


def test_a_secret_of_a_step_in_a_group_is_redacted_in_what_changed() -> None:
    shown = text_of(rolling_plan(["x"], effect="read", pin="4712-new"), earlier=rolling_plan(["x"], effect="read", pin="4711-old"))
    assert "- `run.parameters.pin`: `***` → `***`" in shown
    assert "471" not in shown


def test_a_long_value_is_compared_where_it_differs() -> None:
    long = "A" * 250
    newer, earlier = (rolling_plan(["x"], effect="read", first=f"{long}{end}") for end in ("evil", "safe"))
    assert changes_of(text_of(newer, earlier=earlier))[0] == (f'- `top.parameters.argv`: `…{"A" * 40}safe"]` → `…{"A" * 40}evil"]`')


def test_what_changed_cannot_hide_a_character() -> None:
    newer, earlier = (rolling_plan(["x"], effect="read", first=f"{'A' * 250}{end}") for end in ("wi\u200bpe", "wipe"))
    assert "wi\\u200bpe" in changes_of(text_of(newer, earlier=earlier))[0]


def test_notes_of_other_people_come_first() -> None:
    plan = bound(restart_plan(), host="web-1", api_token="t")
    shown = plan_gate_text(plan, gated=[], approval_digest=DIGEST, expires_ms=0, notices=["ana asks for changes: # only\none"])
    assert shown.startswith("**⚠️ ana asks for changes: # only one**\n\n## Approve restart-service?\n")


def test_a_large_plan_is_shortened_but_always_shows_irreversible_steps() -> None:
    shown = text_of(big_plan(1000), limit_bytes=60_000)
    assert len(shown.encode()) < 60_300
    rows = len(re.findall(r"^- \*\*\d+\. ", shown.partition("### Steps\n")[2], re.MULTILINE))
    assert 0 < rows < 1000
    assert f"**{1000 - rows} more steps not shown here:** `plan show RUN` and `plan preview` show all." in shown
    assert "These 500 steps write and cannot be undone by this plan: `s1`, `s3`" in shown
    assert "`s999`" in shown
    assert DIGEST in shown


def test_a_very_large_value_is_truncated_with_a_note() -> None:
    assert "**480,000 more characters are not shown here.**" in step_text("x" * 500_000)


def test_the_text_says_that_an_unanswered_step_is_skipped_under_the_skip_policy() -> None:
    plan = restart_plan()
    plan.approval = ApprovalPolicy(expires="skip")
    skipping = bound(plan, host="web-1", api_token="t")
    step = skipping.validated.plan.step("restart")
    shown = step_gate_text(skipping, step, effect="write", parameters={}, item=2, approval_digest=DIGEST, expires_ms=60_000)
    assert "Skipped, with the steps that depend on it, if nobody answers within 1 min." in shown
    assert shown.startswith("## Approve restart for item 3?\n")
    assert "- no parameters\n" in shown


def test_a_terminal_does_not_show_the_source_of_the_picture() -> None:
    shown = without_picture(restart_text())
    assert "flowchart" not in shown
    assert "- **4. restart**: 重启服务 · **write** · **asks again** · " in shown
    assert "### Digests\n" in shown
    assert without_picture(step_text("x")) == step_text("x")


def test_parameters_are_shown_in_the_order_of_the_tool() -> None:
    """A stored plan has them in alphabetical order, which would put an environment before the script."""
    step = Step(id="go", tool_name="ssh", parameters={"env": {"A": "b"}, "host": "web-1", "script": "reboot", "user": "root"})
    plan = ExecutionPlan(description="d", steps=[step])
    with_inputs = bind_inputs(validate(plan, ToolRegistry.with_builtins()))
    shown = ValueMask.of(with_inputs).redact_parameters("ssh", step.parameters)
    assert [name for name, _ in shown][:2] == ["host", "script"]
    assert {name for name, _ in shown} == {*step.parameters}
    assert ValueMask.of(with_inputs).redact_parameters("unknown", {"b": 1, "a": 2}) == [("b", 1), ("a", 2)]
