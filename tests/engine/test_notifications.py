"""Tests of `plan notify`: automations that notify people of gates and of failed runs, on a real server with a real endpoint."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.events.schemas.automations import Automation
from pydantic import SecretStr

from plan_adapter.cli.app import main
from plan_adapter.engine.notifications import automation_of, notifications
from plan_adapter.model.language import LANGUAGES, Language, speaking

NAMES = ["plan-gate-opened", "plan-gate-unanswered", "plan-gate-escalated", "plan-gate-answered", "plan-run-not-completed"]


class Endpoint:
    """A local HTTP endpoint that records its notifications."""

    def __init__(self) -> None:
        """Start to listen."""
        received: queue.Queue[dict[str, Any]] = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/told"
        self._received = received
        self._seen: list[dict[str, Any]] = []
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def about(self, plan: str) -> list[dict[str, Any]]:
        """Return the notifications about `plan` so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._seen.append(self._received.get_nowait())
        return [notification for notification in self._seen if plan in notification["subject"]]

    def wait_for(self, plan: str, *, count: int = 1, seconds: float = 60.0) -> list[dict[str, Any]]:
        """Return the notifications about `plan` once there are `count`."""
        end = time.monotonic() + seconds
        while len(found := self.about(plan)) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} notifications about {plan} came in {seconds} s"
            with contextlib.suppress(queue.Empty):
                self._seen.append(self._received.get(timeout=1.0))
        return found


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


@pytest.fixture
def block(endpoint: Endpoint, prefect_server: object) -> Iterator[str]:
    """Yield the `type/name` of a notification block whose text has a secret. Delete it and the automations afterwards."""
    name = f"told-{uuid4().hex[:8]}"
    webhook = CustomWebhookNotificationBlock(
        name="told",
        url=endpoint.url,
        json_data={"subject": "{{subject}}", "body": "{{body}}", "text": "{{token}} {{body}} {{subject}}"},
        secrets={"token": "hunter2"},  # type: ignore[arg-type]
    )
    webhook.save(name)
    yield f"custom-webhook/{name}"
    with get_client(sync_client=True) as client:
        for automation in applied():
            client.delete_automation(automation.id)
    CustomWebhookNotificationBlock.delete(name)


def applied() -> list[Automation]:
    """Return the automations with these names on the server."""
    with get_client(sync_client=True) as client:
        return [found for name in NAMES for found in client.read_automations_by_name(name)]


def words_of(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return `created` or `updated` and the name for each automation."""
    return [line.partition(":")[0].split() for line in capsys.readouterr().out.splitlines()]


def emit(what: str, gate: str, **payload: Any) -> None:
    """Emit an event of `gate` with the same fields as the engine."""
    known = dict.fromkeys(["link", "plan", "step", "age_seconds", "digest", "by", "decision", "note"]) | payload
    assert emit_event(f"plan.gate.{what}", resource={"prefect.resource.id": f"plan.gate.{gate}"}, payload=known)


@pytest.mark.thorough
def test_applying_twice_updates_the_two_automations(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify", block]) == 0
    assert words_of(capsys) == [["created", name] for name in NAMES]
    first = applied()
    assert main(["notify", block, block, "--after", "45m"]) == 0
    assert words_of(capsys) == [["updated", name] for name in NAMES]
    second = applied()
    assert [found.id for found in second] == [found.id for found in first]
    assert [len(found.actions) for found in second] == [1] * 5
    assert [found.trigger.within for found in first] == [timedelta(0), timedelta(minutes=30), timedelta(0), timedelta(0)]  # pyright: ignore[reportAttributeAccessIssue]
    assert [found.trigger.within for found in second] == [timedelta(0), timedelta(minutes=45), timedelta(0), timedelta(0)]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.thorough
def test_a_disabled_automation_stays_disabled(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify", block]) == 0
    with get_client(sync_client=True) as client:
        client.pause_automation(applied()[1].id)
    capsys.readouterr()
    assert main(["notify", block]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith(" (it is disabled and stays disabled)") for line in lines] == [False, True, False, False]
    assert [found.enabled for found in applied()] == [True, False, True, True]


COMMAND = "plan approve 0192f0c4-0000-7000-8000-000000000001 --digest 0123456789ab"


def test_the_notification_of_a_gate_has_its_link_and_does_not_evaluate_its_text(block: str, endpoint: Endpoint) -> None:
    assert main(["notify", block]) == 0
    plan = f"重启 {uuid4().hex}"
    emit(
        "opened",
        uuid4().hex,
        plan=plan,
        link="http://127.0.0.1:4200/v2/runs/flow-run/1",
        digest="0123456789abcdef",
        age_seconds=0.2,
        command=COMMAND,
    )
    (notification,) = endpoint.wait_for(plan)
    assert notification["subject"] == f"Approval needed: {plan}"
    assert notification["body"].splitlines() == [
        f"The plan {plan} waits for an approval.",
        "Read it and answer: http://127.0.0.1:4200/v2/runs/flow-run/1",
        f"From a command line: `{COMMAND}`",
        "Digest: 0123456789ab",
    ]

    evil = f"{uuid4().hex} {{{{ 7 * 7 }}}} {{% raw %}} {{{{token}}}} <!channel> @here\n[x](http://evil.invalid)"
    step = "</td><script>{{ event.id }}"
    emit("opened", uuid4().hex, plan=evil, step=step, link="javascript:alert(1)", age_seconds=7200)
    (notification,) = endpoint.wait_for(evil[:32])
    assert notification["subject"].startswith(
        f"Approval needed: {evil[:32]} ｛｛ 7 * 7 ｝｝ ｛% raw %｝ ｛｛token｝｝ ＜!channel＞ ＠here ［x］(http：//evil.invalid)"
    )
    assert notification["body"].splitlines()[1:] == [
        "It has waited for 2 h already.",
        "`plan gates` lists it.",
    ]
    assert "the step ＜/td＞＜script＞｛｛ event.id ｝｝ of the plan" in notification["body"].lower()
    assert notification["text"].count("hunter2") == 1  # only from the block's own template, not from the plan's text


@pytest.mark.thorough
def test_only_a_gate_that_is_still_open_gets_a_reminder(block: str, endpoint: Endpoint) -> None:
    assert main(["notify", block, "--after", "10s"]) == 0
    answered, expired, waiting = (f"{word} {uuid4().hex}" for word in ("answered", "expired", "waiting"))
    gates = {plan: uuid4().hex for plan in (answered, expired, waiting)}
    # One after the other, because on a busy machine a notification may take as long as the time until a reminder.
    for plan in (answered, expired, waiting):
        emit("opened", gates[plan], plan=plan, step="restart", link="https://plans.example/1", age_seconds=0)
        endpoint.wait_for(plan)
        if plan == answered:
            emit("answered", gates[plan], plan=plan, by="ana", decision="approve")
        elif plan == expired:
            emit("expired", gates[plan], plan=plan)

    _, reminder = endpoint.wait_for(waiting, count=2)

    assert reminder["subject"] == f"Still waiting for an approval: {waiting}, step restart"
    first, second = reminder["body"].splitlines()
    assert first.startswith(f"The step restart of the plan {waiting} has waited for an approval for 1")
    assert first.endswith(" s.")
    assert second == "Read it and answer: https://plans.example/1"
    # Their reminders would have been due before this one.
    subjects = [notification["subject"] for plan in (answered, expired) for notification in endpoint.about(plan)]
    assert not [subject for subject in subjects if subject.startswith("Still waiting")]


def test_who_asked_the_first_screen_and_the_kind_of_question_are_in_the_notification(block: str, endpoint: Endpoint) -> None:
    assert main(["notify", block]) == 0
    plan = f"重启 {uuid4().hex}"
    emit("opened", uuid4().hex, plan=plan, asks="question", step="decide", requested_by="安娜", first_screen=["Switch to 东站?", "- a <b>"])
    (notification,) = endpoint.wait_for(plan)
    assert notification["subject"] == f"Question: {plan}, step decide"
    assert notification["body"].splitlines() == [
        f"The step decide of the plan {plan} waits for an answer.",
        "Asked by 安娜.",
        "Switch to 东站?",
        "- a ＜b＞",
        "`plan gates` lists it.",
    ]


def test_an_answer_and_the_end_of_a_run_that_did_not_complete_are_told(block: str, endpoint: Endpoint) -> None:
    assert main(["notify", block]) == 0
    plan = f"重启 {uuid4().hex}"
    emit("answered", uuid4().hex, plan=plan, step="restart", by="ana", decision="approve", note="看过了", link="https://plans.example/1")
    (answered,) = endpoint.wait_for(plan)
    assert answered["subject"] == f"Answered: {plan}, step restart"
    assert answered["body"].splitlines() == [
        f"The step restart of the plan {plan} was answered by ana: approve.",
        "Note: 看过了",
        "The run: https://plans.example/1",
    ]
    failed = f"发布 {uuid4().hex}"
    ended = {"outcome": "Partial", "plan": failed, "cause": "web-3: refused", "left_behind": ["done, and not undone: drain[web-3]"]}
    known = {"requested_by": "bo", "command": "plan show 1", "link": None}
    assert emit_event("plan.run.partial", resource={"prefect.resource.id": f"plan.run.{uuid4().hex}"}, payload=ended | known)
    (notification,) = endpoint.wait_for(failed)
    assert notification["subject"] == f"Partial: {failed}"
    assert notification["body"].splitlines() == [
        "web-3: refused",
        "Left behind: done, and not undone: drain［web-3］",
        "Asked by bo.",
        "`plan runs` lists it.",
        "From a command line: `plan show 1`",
    ]


def test_an_unknown_block_is_refused_and_the_error_lists_the_known_ones(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    Secret(value=SecretStr("no notification")).save("oncall", overwrite=True)
    for name in ("slack-webhook/oncall", "secret/oncall", "", "\x1b[31m"):
        assert main(["notify", name]) == 2
        message = capsys.readouterr().err.removeprefix("plan: ")
        assert message.startswith(f"no notification block is called `{name}`: ".replace("\x1b", "\\x1b"))
        assert block in message
    assert main(["notify", block[:-1]]) == 2
    assert capsys.readouterr().err == f"plan: no notification block is called `{block[:-1]}`: did you mean `{block}`?\n"
    Secret.delete("oncall")
    assert applied() == []


def test_a_block_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify"]) == 2
    assert "notify whom?" in capsys.readouterr().err


@pytest.mark.parametrize("after", ["0m", "9s", "-1", "nan", "30", "soon"])
def test_an_invalid_reminder_time_is_refused(after: str, block: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify", block, f"--after={after}"]) == 2
    assert f"--after {after}" in capsys.readouterr().err
    assert applied() == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", NAMES)
def test_prefect_accepts_each_automation(name: str, language: Language) -> None:
    from prefect.server.events.schemas.automations import AutomationCreate

    chat, mail = uuid4(), uuid4()
    with speaking(language):
        (notification,) = (found for found in notifications() if found.name == name)
        automation = automation_of(notification, [chat, mail], after=timedelta(minutes=30))
    created = AutomationCreate.model_validate(automation.model_dump(mode="json"))  # it compiles the templates
    assert [getattr(action, "block_document_id", None) for action in created.actions] == [chat, mail]


@pytest.mark.thorough  # 14 s: tests/language tests the texts
def test_a_notification_is_in_the_language_of_the_person_who_set_it_up(
    block: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", "zh")
    assert main(["notify", block]) == 0
    assert "通知" in capsys.readouterr().out
    plan = f"restart {uuid4().hex}"
    emit("opened", uuid4().hex, plan=plan, step="drain", age_seconds=7200, requested_by="安娜", digest="0123456789abcdef", command=COMMAND)
    (notification,) = endpoint.wait_for(plan)
    assert notification["subject"] == f"需要批准：{plan}，步骤 drain"
    assert notification["body"].splitlines() == [
        f"计划 {plan} 的步骤 drain 在等待它自己的批准。",
        "它已等待 2 h。",
        "由 安娜 发起。",
        "`plan gates` 会列出它。",
        f"命令行：`{COMMAND}`",
        "摘要：0123456789ab",
    ]
