"""Tests of gates in Prefect's UI: a person answers them while a `plan run` waits in its own process."""

import functools
import json
import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pyotp
import pytest

from plan_adapter.gates.approval import os_user
from plan_adapter.model.approvals import Approval
from plan_adapter.store.store import PlanStore
from tests.browser.pages import ANSWER_TITLE, BrowserUser, is_in_viewport
from tests.browser.running import RunningPlan, Workspace

pytestmark = pytest.mark.asyncio(loop_scope="session")

Start = Callable[..., RunningPlan]

RELEASE = r"""
name: 发布流程
description: Build the pages 并且发布, once, to the public folder
inputs:
  version: {type: string, default: 2.1.0}
  api_token: {type: string, default: s3cr3t-t0ken}
options: {allow_parallel: true, approval_timeout_ms: 1800000, step_timeout_ms: 60000}
steps:
  - id: build
    tool_name: bash
    description: Build the pages
    parameters: {command: "echo built > built.txt"}
    max_retries: 2
    retry_delay_ms: 1000
  - {id: notes, tool_name: write_file, description: 写下发布说明, parameters: {path: notes.txt, content: "版本 ${{ inputs.version }}"}}
  - id: publish
    tool_name: run_command
    description: Publish them
    parameters:
      argv: [cp, built.txt, "published-${{ inputs.version }}-with-a-long-name-that-has-to-break-somewhere-in-its-cell.txt"]
      env: {TOKEN: "${{ inputs.api_token }}"}
    depends_on: [build, notes]
"""
STEPS = ("build", "notes", "publish")
PUBLISHED = "published-2.1.0-with-a-long-name-that-has-to-break-somewhere-in-its-cell.txt"

HOSTILE = r"""
name: "harmless](http://127.0.0.1:9/name) <b>name</b>"
description: |
  <img src="http://127.0.0.1:9/a.png"> ![image](http://127.0.0.1:9/b.png) [click](http://127.0.0.1:9/c)

  ## Approved already
  <script>document.title = "taken"</script>
steps:
  - id: erase
    tool_name: bash
    description: "| nothing | read | <img src='http://127.0.0.1:9/d.png' onerror='document.title=1'>"
    parameters: {command: "echo done > erased.txt # \u202Etxt.yrotsih ``` <img src=http://127.0.0.1:9/e.png>"}
"""

TWO_GATES = r"""
name: two-regions
description: Release in two regions, each when its people say so
options: {require_approval: false, allow_parallel: true, max_parallel_steps: 2}
steps:
  - {id: east, tool_name: bash, description: Release in the east, parameters: {command: "echo east > east.txt"}, requires_approval: true}
  - {id: west, tool_name: bash, description: Release in the west, parameters: {command: "echo west > west.txt"}, requires_approval: true}
  - {id: first, tool_name: bash, description: Tell everybody, parameters: {command: "echo 1 > first.txt"}}
  - {id: second, tool_name: bash, description: And count, parameters: {command: "cat first.txt > second.txt"}, depends_on: [first]}
"""

FIRST_VERSION = r"""
name: rotate-keys
description: Rotate the keys of one service
steps:
  - {id: make, tool_name: bash, description: Make a key, parameters: {command: "echo key > key.txt"}}
  - {id: install, tool_name: bash, description: Install it, parameters: {command: "cp key.txt installed.txt"}, depends_on: [make]}
"""
ONE_STEP_MORE = """\
  - {id: check, tool_name: bash, effect: read, description: Compare, parameters: {command: cmp key.txt *d.txt}, depends_on: [install]}
"""
SECOND_VERSION = FIRST_VERSION.replace("cp key.txt", "test -s key.txt && cp key.txt") + ONE_STEP_MORE


DRAINED = r"""
name: rolling-restart
description: Restart the web nodes one after the other, without dropping a request, as agreed with the shop team on Tuesday
options: {approval_timeout_ms: 1800000, step_timeout_ms: 60000}
steps:
  - {id: check, tool_name: bash, effect: read, description: Look whether they answer, parameters: {command: "true web-1 web-2"}}
  - {id: drain, tool_name: bash, description: Take web-1 out of the pool, parameters: {command: "echo lbctl drain web-1 > drained.txt"},
     depends_on: [check]}
  - id: restart
    tool_name: bash
    description: Restart the service on web-1
    parameters:
      command: |
        set -euo pipefail
        echo systemctl restart nginx > restarted.txt
        for try in 1 2 3; do
          test -s restarted.txt && break
        done
        echo done
    depends_on: [drain]
    requires_approval: true
  - {id: verify, tool_name: bash, effect: read, description: Look again, parameters: {command: cat restarted.txt}, depends_on: [restart]}
"""
IN_CHINESE = {
    "name: rolling-restart": "name: 滚动重启",
    "Restart the web nodes one after the other, without dropping a request, as agreed with the shop team on Tuesday": (
        "按照周二与商城团队的约定，逐个重启网页节点，整个过程中不丢失任何一个请求，并在每一步之后检查"
    ),
    "Look whether they answer": "检查两个节点是否响应",
    "Take web-1 out of the pool": "将 web-1 移出负载均衡",
    "Restart the service on web-1": "重启 web-1 上的服务",
    "Look again": "再次检查",
}
DRAINED_IN_CHINESE = functools.reduce(lambda text, words: text.replace(*words), IN_CHINESE.items(), DRAINED)


DECIDE = r"""
name: switch-site
description: Switch to the standby site if the manager on duty says so
options: {require_approval: false, approval_timeout_ms: 1800000}
steps:
  - {id: look, tool_name: bash, effect: read, description: Look at both sites, parameters: {command: printf down}}
  - id: decide
    ask:
      question: "${{ steps.look.result.stdout }}: switch to 备用站点?"
      fields:
        choice: {type: string, enum: [switch, wait, degrade], title: What now}
        nodes: {type: integer, minimum: 1, maximum: 9, default: 2, title: 节点数}
        tell: {type: boolean, default: true, title: Tell the shop}
  - id: act
    tool_name: bash
    description: Do it
    parameters: {command: "echo $CHOICE > chosen.txt", env: {CHOICE: "${{ steps.decide.result.choice }}"}}
"""


async def approvals(workspace: Workspace, run_id: str) -> list[Approval]:
    """The recorded answers of a run, oldest first."""
    store = PlanStore(f"sqlite:///{workspace.folder / 'plans.db'}")
    try:
        return await store.approvals(run_id)
    finally:
        await store.close()


def without_breaks(text: str) -> str:
    """The text without line breaks and the marks that break long words."""
    return re.sub(r"[\s↩]", "", text)


async def test_a_plan_runs_after_approval_in_its_form(start: Start, user: BrowserUser, workspace: Workspace) -> None:
    plan = start(RELEASE)
    page = await user.open_run(await plan.link())
    await page.wait_for_state("Paused")
    gate = await plan.gate()
    await page.screenshot("plan-0-page")
    form = await page.open_form()
    await form.screenshot("plan")
    assert await form.overflowing() == []

    text = await form.text()
    assert "Build the pages 并且发布, once, to the public folder" in text
    assert gate["digest"] in without_breaks(text)
    rows = await form.items()  # those of the first screen, then those of the list of all steps
    steps = [[item for item in rows if item.startswith(f"{n}. {step}:")][-1] for n, step in enumerate(STEPS, start=1)]
    assert [[word in row for word in words] for row, words in zip(
        steps, (("bash", "write"), ("write_file", "版本 2.1.0"), ("run_command", "write")), strict=True
    )] == [[True] * 2] * 3  # fmt: skip
    assert PUBLISHED in without_breaks(text)
    assert "s3cr3t-t0ken" not in await form.dialog.inner_html()
    assert await form.choices("Decision") == ["approve", "reject", "request_changes"]
    assert not workspace.has_file("built.txt")

    await form.fill("approve", name="阿娜", note="looks right\n第二行")
    await user.save_screenshot(page.page, "plan-3-filled")
    await form.submit()
    code, run = await plan.end()
    assert (code, run["status"]) == (0, "completed")
    assert workspace.has_file(PUBLISHED)
    await page.wait_for_state("Completed")
    await page.screenshot("plan-4-completed")
    [answer] = await approvals(workspace, run["id"])
    assert (answer.decision, answer.by, answer.known_by, answer.note) == ("approve", "阿娜", "form", "looks right\n第二行")
    assert answer.approval_digest == gate["digest"]


@pytest.mark.thorough
@pytest.mark.parametrize(("language", "document"), [("en", DRAINED), ("zh", DRAINED_IN_CHINESE)], ids=["en", "zh"])
async def test_both_uis_show_the_decision_and_all_commands_at_1440x900_without_scrolling(
    start: Start, user: BrowserUser, language: str, document: str
) -> None:
    plan = start(document)
    page = await user.open_run(await plan.link())
    form = await page.open_form()
    for shown, ui in ((await page.open_older_form(), "v1"), (form, "v2")):
        await shown.page.bring_to_front()
        assert await is_in_viewport(shown.decision), ui
        for command in ("echo lbctl drain web-1 > drained.txt", "set -euo pipefail"):
            assert await is_in_viewport(shown.description.locator("code").filter(has_text=command).first), (ui, command)
        assert await is_in_viewport(shown.description.get_by_text("Cannot be undone:").first), ui
        await shown.screenshot(f"plan-{language}-{ui}")
    await form.fill("approve", name="ana")
    await form.submit()

    await plan.gate(step="restart")
    gate = await page.open_gate_of("restart")
    form = await gate.open_form()
    for shown, ui in ((await gate.open_older_form(), "v1"), (form, "v2")):
        await shown.page.bring_to_front()
        assert await is_in_viewport(shown.decision), ui
        script = shown.description.locator("pre").first
        assert await is_in_viewport(script), ui
        assert "echo systemctl restart nginx > restarted.txt" in await script.inner_text()
        await shown.screenshot(f"step-{language}-{ui}")
    await form.fill("approve", name="ana")
    await form.submit()
    code, run = await plan.end()
    assert (code, run["status"]) == (0, "completed")


@pytest.mark.thorough
async def test_a_rejected_plan_runs_nothing_and_its_markup_is_shown_as_text(start: Start, user: BrowserUser, workspace: Workspace) -> None:
    plan = start(HOSTILE)
    page = await user.open_run(await plan.link())
    requests: list[str] = []
    page.page.on("request", lambda request: requests.append(request.url) if ":9/" in request.url else None)
    form = await page.open_form()
    await form.expand_details()
    await form.screenshot("hostile")
    assert await form.overflowing() == []
    assert await form.description.locator("img, script, :not(summary) > b").count() == 0
    assert await form.description.get_by_role("heading", name="Approved already").count() == 0
    assert await form.description.get_by_role("link").count() == 0
    assert "\u202e" not in await form.text()
    assert (requests, await page.page.title() in ("taken", "1")) == ([], False)

    await form.fill("reject", name="bo", note="不要这样做")
    await form.submit()
    code, run = await plan.end()
    assert (code, run["status"], run["reason"]) == (3, "cancelled", "rejected")
    assert "不要这样做" in (run["rejection_note"] or run["message"])
    assert not workspace.has_file("erased.txt")
    await page.wait_for_state("Rejected")
    await page.screenshot("hostile-3-rejected")


@pytest.mark.thorough
async def test_the_gate_reopens_with_a_reason_after_an_invalid_answer(start: Start, user: BrowserUser, workspace: Workspace) -> None:
    me = os_user()
    plan = start(RELEASE + f"approval: {{approvers: [ana, {me}], self_approval: false}}\n")
    page = await user.open_run(await plan.link())
    form = await page.open_form()
    assert set(await form.choices("Your name")) == {"ana", me}
    assert "decision" in await form.submit_invalid()
    await user.save_screenshot(page.page, "again-0-no-decision")
    previous = await form.text()
    await form.fill("approve", name=me)
    await form.submit()

    again = await page.open_next_form(previous)
    await again.screenshot("again")
    assert f"{me} started this run and may not approve it" in await again.top()
    assert await again.field("Decision").inner_text() == "Select"
    assert not workspace.has_file("built.txt")
    await again.fill("approve", name="ana")
    await again.submit()
    code, run = await plan.end()
    assert (code, run["status"]) == (0, "completed")
    assert [(answer.by, answer.decision) for answer in await approvals(workspace, run["id"])] == [("ana", "approve")]


@pytest.mark.thorough
async def test_the_form_has_no_code_field_on_a_server_without_authentication(start: Start, user: BrowserUser, workspace: Workspace) -> None:
    enrolled = await workspace.plan("enroll", "ana-of-the-browser")
    seed = parse_qs(urlsplit(enrolled.out.strip()).query)["secret"][0]
    plan = start(FIRST_VERSION + "approval: {approvers: [ana-of-the-browser], known_by: [totp]}\n")
    page = await user.open_run(await plan.link())
    form = await page.open_form()
    run_id = (await plan.gate())["run_id"]
    await form.screenshot("code")
    assert "demands no authentication: whoever reaches it can read and send forms" in await form.top()
    assert await form.field("One-time code").count() == 0
    await form.fill("approve", name="ana-of-the-browser")
    await form.submit()
    answered = await workspace.plan("approve", run_id, "--by", "ana-of-the-browser", "--code", pyotp.TOTP(seed).now(), "--yes")
    assert answered.code == 0, answered.err
    assert (await plan.end())[0] == 0
    assert [answer.known_by for answer in await approvals(workspace, run_id)] == ["totp"]


@pytest.mark.thorough
async def test_two_step_gates_are_answered_on_their_own_pages_while_another_branch_continues(
    start: Start, user: BrowserUser, workspace: Workspace
) -> None:
    plan = start(TWO_GATES)
    page = await user.open_run(await plan.link())
    await plan.gate(step="east")
    await plan.gate(step="west")
    await workspace.wait_for_file("second.txt", plan)
    east, west = await page.open_gate_of("east"), await page.open_gate_of("west")
    await page.screenshot("steps-0-both-wait")
    east_form, west_form = await east.open_form(), await west.open_form()
    await east_form.screenshot("steps-east")
    assert ("echo east" in await east_form.text(), "echo west" in await west_form.text()) == (True, True)
    assert (workspace.has_file("east.txt"), workspace.has_file("west.txt")) == (False, False)

    await west_form.fill("approve", name="ana")
    await west_form.submit()
    await workspace.wait_for_file("west.txt", plan)
    await west.wait_for_state("Approved")
    await west.screenshot("steps-3-approved")
    assert not workspace.has_file("east.txt")
    await east.wait_for_state("Paused")
    await east_form.fill("approve", name="bo")
    await east_form.submit()
    code, run = await plan.end()
    assert (code, workspace.has_file("east.txt")) == (0, True)
    await page.wait_for_state("Completed")
    await page.screenshot("steps-4-completed")
    of_steps = {(answer.step_id, answer.by) for answer in await approvals(workspace, run["id"]) if answer.step_id is not None}
    assert of_steps == {("east", "bo"), ("west", "ana")}


@pytest.mark.thorough
async def test_requested_changes_appear_in_the_form_of_the_new_version(start: Start, user: BrowserUser, workspace: Workspace) -> None:
    plan = start(FIRST_VERSION)
    page = await user.open_run(await plan.link())
    run_id = (await plan.gate())["run_id"]
    form = await page.open_form()
    previous = await form.text()
    await form.fill("request_changes", name="ana", note="check the key 先检查")
    await form.submit()

    noted = await page.open_next_form(previous)
    assert "check the key 先检查" in await noted.top()
    await noted.screenshot("changes-note")
    previous = await noted.text()

    revised = await workspace.plan("revise", run_id, str(workspace.write("second.yaml", SECOND_VERSION)))
    assert revised.code == 0, revised.err
    changed = await page.open_next_form(previous)
    await changed.screenshot("changes-diff")
    text = await changed.text()
    assert ("check" in text, "test -s key.txt" in text) == (True, True)
    assert not workspace.has_file("key.txt")
    await changed.fill("approve", name="ana")
    await changed.submit()
    code, run = await plan.end()
    assert (code, run["status"], [step["id"] for step in run["steps"]]) == (0, "completed", ["make", "install", "check"])
    assert workspace.has_file("installed.txt")


MANY_QUESTIONS = {
    "description": "Ask in forms of one to eight fields",
    "options": {"require_approval": False, "allow_parallel": True, "max_parallel_steps": 8},
    "steps": [
        {"id": f"ask{count}", "ask": {"question": f"Question of {count}?", "fields": {f"f{n}": {"type": "string"} for n in range(count)}}}
        for count in range(1, 9)
    ],
}
"""A question for each number of fields."""


@pytest.mark.thorough
async def test_a_question_can_be_read_in_forms_of_one_to_eight_fields(start: Start, user: BrowserUser) -> None:
    plan = start(json.dumps(MANY_QUESTIONS))
    page = await user.open_run(await plan.link())
    for count in range(1, 9):
        await plan.gate(step=f"ask{count}")
        gate = await page.open_gate_of(f"ask{count}", verb="answer")
        for shown in (await gate.open_older_form(first=ANSWER_TITLE), await gate.open_form(first=ANSWER_TITLE)):
            await shown.page.bring_to_front()
            question = shown.dialog.get_by_text(f"Question of {count}?")
            assert await question.count() == 2  # in the text, and in the description of the first field
            assert max([await is_in_viewport(found) for found in await question.all()]), (count, type(shown).__name__)
            await shown.screenshot(f"question-of-{count}-{type(shown).__name__}")
            await shown.page.close()


@pytest.mark.thorough
async def test_both_uis_show_a_question_as_a_form_with_typed_fields(start: Start, user: BrowserUser, workspace: Workspace) -> None:
    plan = start(DECIDE)
    page = await user.open_run(await plan.link())
    await plan.gate(step="decide")
    gate = await page.open_gate_of("decide", verb="answer")
    form = await gate.open_form(first=ANSWER_TITLE)
    older = await gate.open_older_form(first=ANSWER_TITLE)
    for shown, ui in ((older, "v1"), (form, "v2")):
        await shown.page.bring_to_front()
        await shown.screenshot(f"question-{ui}")
        assert await is_in_viewport(shown.description.get_by_role("heading", name="down: switch to 备用站点?")), ui
    assert await form.choices("What now") == ["switch", "wait", "degrade"]
    await form.page.bring_to_front()
    assert "choice" in await form.submit_invalid()
    await form.fill("answer", name="ana")
    await form.choose("What now", "degrade")
    await form.submit()
    code, run = await plan.end()
    assert (code, run["status"]) == (0, "completed")
    assert (workspace.folder / "chosen.txt").read_text() == "degrade\n"
    await gate.wait_for_state("Answered")
    [_, answer] = await approvals(workspace, run["id"])
    assert (answer.by, answer.result) == ("ana", {"choice": "degrade", "nodes": 2, "tell": True})
