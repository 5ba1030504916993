"""Tests of what the first screen of each kind of gate shows in both of Prefect's UIs, and on a narrow window in the newer one.

Each situation has the texts that a person who knows nothing of the run must be able to read at once: what is asked, about what, and what
is known. `make browser` saves the pictures.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from plan_adapter.engine.connection import Server
from plan_adapter.model.approvals import GateKind
from plan_adapter.model.language import LANGUAGES, Language, speaking, spoken
from tests.agent.goal_players import playing, writes
from tests.agent.server import ScriptedServer
from tests.browser.answering import NewerUi, Page, decision_title
from tests.browser.pages import BrowserUser, GateForm, OlderForm, is_in_viewport
from tests.browser.test_gates import Start

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.thorough]

SITUATIONS = """\
name: rolling-restart
description: Restart the nodes one after another
inputs: {site: {type: string, default: production}}
run_name: "restart in ${{ inputs.site }}"
options: {require_approval: true, step_timeout_ms: 60000, approval_timeout_ms: 1800000}
steps:
  - id: nodes
    for_each: "${{ ['web-1', 'web-2'] }}"
    requires_approval: each
    steps:
      - {id: drain, tool_name: bash, parameters: {command: 'echo lbctl drain "$N"', env: {N: "${{ item }}"}},
         rollback: {tool_name: bash, parameters: {command: 'echo lbctl undrain "$N"', env: {N: "${{ item }}"}}}}
      - {id: restart, tool_name: run_command, parameters: {argv: [echo, systemctl, restart, "${{ item }}"]}, depends_on: [drain]}
      - {id: healthy, tool_name: run_command, effect: read, parameters: {argv: [echo, 200 OK]}, depends_on: [restart]}
  - id: decide
    ask: {question: "要切换到备用站点吗?", fields: {choice: {type: string, enum: [switch, wait], title: 怎么办}}}
    depends_on: [nodes]
  - {id: send, tool_name: bash, parameters: {command: "echo charged customer 4711; sleep 60"}, timeout_ms: 1500, depends_on: [decide]}
  - {id: report, goal: Tell the team what was done, done_when: report.txt was written, tools: [write_file], depends_on: [send]}
"""


@dataclass(frozen=True)
class Situation:
    """What a gate's first screen must show."""

    title: str
    shown: tuple[str, ...]
    decision: str
    values: tuple[tuple[str, str], ...] = ()  # of other fields, by title


ITEM = "A step of rolling-restart (restart in production), asked by "
EXPECTED: dict[tuple[str | None, int | None], Situation] = {
    (None, None): Situation(
        "Approve rolling-restart (restart in production)?",
        (
            "Asked by ",
            "Inputs: site production",
            "Cannot be undone:",
            "not asked again",
            "echo charged customer 4711; sleep 60",
            "Asks again before nodes",
        ),
        "approve",
    ),
    ("nodes", 1): Situation(
        "Approve nodes for web-1 (1 of 2)?", (ITEM, "Cannot be undone:", "systemctl restart web-1", "Can be undone:"), "approve"
    ),
    ("nodes", 2): Situation(
        "Approve nodes for web-2 (2 of 2)?", (ITEM, "systemctl restart web-2", "Before it: web-1 completed: 200 OK"), "approve"
    ),
    ("decide", None): Situation(
        "要切换到备用站点吗?",
        ("The step decide of rolling-restart", "switch or wait", "web-1 completed, web-2 completed"),
        "answer",
        (("怎么办", "switch"),),
    ),
    ("send", None): Situation(
        "Did send take effect?",
        ("It called bash with:", "echo charged customer 4711; sleep 60", "Check whether the change was made", "it happens twice", ITEM),
        "done",
    ),
    ("report", 1): Situation(
        "The model asks to call write_file", ("report.txt", "It writes", "Round 1 of the goal “Tell the team what was done”"), "approve"
    ),
}


CHINESE: dict[tuple[str | None, int | None], Situation] = {
    (None, None): Situation(
        "是否批准 rolling-restart (restart in production)？",
        ("输入：site production", "无法撤销：", "sleep 60", "不再请求确认"),
        "approve",
    ),
    ("nodes", 1): Situation("是否批准 nodes：web-1 (1/2)？", ("无法撤销：", "systemctl restart web-1", "可以撤销："), "approve"),
    ("nodes", 2): Situation("是否批准 nodes：web-2 (2/2)？", ("此前已执行：web-1 已完成: 200 OK",), "approve"),
    ("decide", None): Situation("要切换到备用站点吗?", ("web-1 已完成, web-2 已完成",), "answer", (("怎么办", "switch"),)),
    ("send", None): Situation("send 生效了吗？", ("调用的工具：bash，参数如下：", "操作会执行两次"), "done"),
    ("report", 1): Situation("模型请求调用 write_file", ("report.txt", "写操作", "目标“Tell the team what was done”的第 1 轮"), "approve"),
}


OLDER_WIDTH = 600
"""The width of a narrow window for the older UI. Its dialogs are 544 wide in any window, and cut off on both sides in a narrower one."""


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedServer]:
    """A model that asks to write a report, and then ends the goal."""

    def play(seen: Any) -> Any:
        done = seen.proof("write_file")
        return seen.end(done) if done else writes("write_file", path="report.txt", content="done")

    with ScriptedServer([playing(play)]) as server:
        yield server


async def assert_readable(form: "GateForm | OlderForm", situation: Situation, first: str, *, where: str) -> None:
    """Assert that the title, every text and the decision are on the screen as the form opens."""
    await form.page.bring_to_front()
    assert await is_in_viewport(form.description.get_by_role("heading", name=situation.title)), (where, situation.title)
    decision = form.field(first) if isinstance(form, GateForm) else form.field(first).locator(".p-select")
    assert await is_in_viewport(decision), (where, situation.title, "the decision")
    for text in situation.shown:
        assert await is_in_viewport(form.description.get_by_text(text).first), (where, situation.title, text)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_every_gate_can_be_understood_from_its_first_screen(
    language: Language, start: Start, user: BrowserUser, prefect_server: Server, model: ScriptedServer
) -> None:
    with speaking(language):
        await look_at_every_gate(EXPECTED if language == "en" else CHINESE, start, user, prefect_server, model)


async def look_at_every_gate(
    expected: Mapping[tuple[str | None, int | None], Situation],
    start: Start,
    user: BrowserUser,
    prefect_server: Server,
    model: ScriptedServer,
) -> None:
    """Run the plan, look at each gate in both UIs, and answer it."""
    plan = start(f"language: {spoken()}\n{SITUATIONS}", PLAN_ADAPTER_MODEL="scripted", PLAN_ADAPTER_MODEL_URL=model.url)
    url, seen = await plan.link(), list[tuple[str | None, int | None]]()
    async for event in plan.shown_gates():
        gate, kind = event["gate"], cast("GateKind", event["gate"]["asks"])
        key = (gate["step"], gate["item"])
        page = Page(url if gate["step"] is None else str(prefect_server.run_url(gate["flow_run_id"])), kind)
        situation, first = expected[key], decision_title(kind)
        run = await user.open_run(page.url)
        newer, older = await run.open_form(first=first), await run.open_older_form(first=first)
        for form, ui in ((older, "v1"), (newer, "v2")):
            await form.page.bring_to_front()
            await user.save_screenshot(form.page, f"situation-{spoken()}-{len(seen)}-{gate['step'] or 'plan'}-{ui}")
            await assert_readable(form, situation, first, where=ui)
        await older.page.close()
        await newer.page.set_viewport_size({"width": 480, "height": 900})
        for form, ui in ((await run.open_older_form(first=first, width=OLDER_WIDTH), "v1"), (newer, "v2")):
            await form.page.bring_to_front()
            await user.save_screenshot(form.page, f"situation-{spoken()}-{len(seen)}-{gate['step'] or 'plan'}-{ui}-narrow")
            assert await is_in_viewport(form.description.get_by_role("heading", name=situation.title)), (situation.title, ui, "narrow")
            field = situation.values[0][0] if situation.values else first  # the first one
            assert await is_in_viewport(form.dialog.get_by_text(field, exact=True).first), (situation.title, ui, "narrow")
            await form.page.close()
        await NewerUi(user).answer(page, situation.decision, **dict(situation.values))
        seen.append(key)
    assert (await plan.end())[0] == 0, plan.output
    assert seen == [*expected]
