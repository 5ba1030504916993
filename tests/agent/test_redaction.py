"""Tests of redaction in drafts: no model is sent the value of a secret, or a value whose name says that it is one."""

import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.agent.chat import draft_from_chat, prompt_for_chat
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.agent.prompts import environment_redactor
from plan_adapter.model.drafts import Draft, PlanRequest
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool
from tests.agent.server import ScriptedServer, says, scripted
from tests.agent.test_planner import GOOD, TOOLS, deploy, done, step

CANARIES = {
    "environment": "canary-env 密-7",
    "file": "canary-file-7",
    "model": "sk-canary-7",
    "url": "canary-url-7",
    "name": "canary-name-7",
}
LEAKY = PlanRequest(
    f"Deploy 2.1 with {CANARIES['environment']}",
    context={
        "db": [f"postgresql://app:{CANARIES['url']}@db/app"],
        CANARIES["file"]: json.dumps({"inner": CANARIES["environment"]}),
        "api": {"password": CANARIES["name"], "token": "${{ secrets.api }}", "max_tokens": 5},
    },
    constraints=(f"never tell {CANARIES['file']}",),
)


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "pem").write_text(CANARIES["file"] + "\n")
    (folder / "empty").write_text("")
    (folder / "binary").write_bytes(b"\xff\xfe\x00\x01")
    monkeypatch.setenv("PLAN_ADAPTER_SECRETS_DIR", str(folder))
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_DB", CANARIES["environment"])
    monkeypatch.setenv("PLAN_ADAPTER_MODEL_KEY", CANARIES["model"])


def leaks(text: str) -> list[str]:
    return [name for name, value in CANARIES.items() if value in text or json.dumps(value)[1:-1] in text]


async def drafted(server: ScriptedServer, tools: ToolRegistry, store: PlanStore, **options: Any) -> Draft:
    model = OpenAIModel("m", base_url=server.url, max_retries=0)
    draft = await Planner(model, tools, keep=store.drafts, **options).drafted(LEAKY)
    await model.aclose()
    return draft


async def test_no_secret_leaves_the_machine_and_redactions_are_reported(tmp_path: Path) -> None:
    async def person(_: str) -> str:
        return f"the key is {CANARIES['model']}, at https://u:{CANARIES['url']}@h/"

    described = Tool(deploy.fn, effect="write", name="deploy", description=f"Deploy, as in --key {CANARIES['environment']}.")
    tools = ToolRegistry([*TOOLS.subset("look", "back_up"), described])
    asks = {"action": "ask_user", "speak": "Which key?", "reason": ""}
    with scripted(says(asks), says(done(step("deploi", {}))), says(GOOD)) as server:
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
            draft = await drafted(server, tools, store, asker=person)
            kept = await store.drafts.get(draft.id)
        sent = json.dumps(server.requests, ensure_ascii=False)
    assert leaks(sent) == []
    assert "the key is ***, at https://u:***@h/" in sent
    context = json.loads(server.requests[0]["messages"][1]["content"].split("context (JSON):\n")[1].split("\n\n")[0])
    assert context["api"] == {"password": "***", "token": "${{ secrets.api }}", "max_tokens": 5}
    assert leaks(repr(draft) + repr(kept)) == []
    assert leaks("".join(path.read_bytes().decode(errors="replace") for path in tmp_path.glob("plans.db*"))) == []
    assert draft.plan is not None
    assert "in `task`, `context`, `constraints[0]`, `tools`; a plan refers" in draft.notes[0]


async def test_a_redaction_is_reported_with_its_exact_location() -> None:
    request = PlanRequest("Deploy", context={"api": [{"password": CANARIES["name"]}], "hosts": ["a"]})
    with scripted(says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url)
        draft = await Planner(model, TOOLS).drafted(request)
        await model.aclose()
    assert "in `context.api[0].password`; a plan refers to a secret" in draft.notes[0]


async def test_a_prompt_for_a_chat_contains_no_secret() -> None:
    redactor = await environment_redactor()
    messages = prompt_for_chat(LEAKY, TOOLS, redactor=redactor)
    assert leaks("".join(message.content for message in messages)) == []
    result = draft_from_chat(LEAKY, TOOLS, json.dumps(done(step("deploi", {}))), redactor=redactor)
    assert leaks(repr(result)) == []


async def test_without_secrets_no_redaction_is_reported() -> None:
    with scripted(says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url)
        draft = await Planner(model, TOOLS).drafted(PlanRequest("Deploy", context={"author": "ana", "n": 1}))
        await model.aclose()
    assert draft.notes == []
