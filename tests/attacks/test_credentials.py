"""Tests that credentials of this package and of Prefect reach no command, no worker and no record."""

import json
import logging
import os

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.local.credentials import credential_values, environment_without_credentials
from plan_adapter.runs import arun_plan
from plan_adapter.tools.shell import bash, run_command
from tests.secrets.test_canary import dump


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture what the step logs."""
    caplog.set_level(logging.INFO)
    return caplog


@tool(effect="read", isolation="process")
def environment_of_a_worker() -> list[str]:
    """Return the names of the variables of a worker process."""
    return sorted(os.environ)


@tool(effect="read")
def read_variable(name: str) -> str:
    """Return a variable of this process."""
    return os.environ[name]


TOOLS = ToolRegistry([environment_of_a_worker, read_variable, run_command, bash])


CREDENTIALS = {
    "PLAN_ADAPTER_MODEL_KEY": ("sk-model-7f3a9c", "sk-model-7f3a9c"),
    "OPENAI_API_KEY": ("sk-open-11223344", "sk-open-11223344"),
    "PLAN_ADAPTER_DATABASE_URL": ("postgresql://plan:gH7%40kwQz31@db/plans", "gH7@kwQz31"),
    "PLAN_ADAPTER_SECRET_UNNAMED": ("s3cret-nobody-named", "s3cret-nobody-named"),
    "PLAN_ADAPTER_TOTP_KEY": ("JBSWY3DPEHPK3PXP", "JBSWY3DPEHPK3PXP"),
    "PLAN_ADAPTER_DESK_SLACK_TOKEN": ("xoxb-1234-5678-abc", "xoxb-1234-5678-abc"),
    "PLAN_ADAPTER_DESK_SLACK_SIGNING_SECRET": ("8f742231b10e8888", "8f742231b10e8888"),
    "PLAN_ADAPTER_DESK_TEAMS_WEBHOOK": ("https://teams.example/?sig=xYz12345", "https://teams.example/?sig=xYz12345"),
    "PLAN_ADAPTER_DESK_MAIL_PASSWORD": ("mail-passw0rd-q7", "mail-passw0rd-q7"),
    "PLAN_ADAPTER_DESK_PROXY_SECRET": ("proxy-secret-11", "proxy-secret-11"),
    "PLAN_ADAPTER_DESK_ALERTMANAGER_TOKEN": ("alert-token-22", "alert-token-22"),
    "PLAN_ADAPTER_DESK_GITHUB_SECRET": ("hub-secret-33", "hub-secret-33"),
    "PREFECT_API_KEY": ("pnu_99887766aabb", "pnu_99887766aabb"),
    "PREFECT_API_AUTH_STRING": ("admin:pa55word-x9", "pa55word-x9"),
    "PREFECT_SERVER_API_AUTH_STRING": ("admin:pa55word-y8", "pa55word-y8"),
    "PREFECT_API_DATABASE_CONNECTION_URL": ("postgresql+asyncpg://p:Qw3rtz-db1@db/prefect", "Qw3rtz-db1"),
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": ("postgresql+asyncpg://p:Qw3rtz-db2@db/prefect", "Qw3rtz-db2"),
    "PREFECT_SERVER_DATABASE_PASSWORD": ("Qw3rtz-db3-long", "Qw3rtz-db3-long"),
    "PREFECT_CLIENT_CUSTOM_HEADERS": ('{"Authorization": "Bearer tok-5566778899"}', "tok-5566778899"),
    "prefect_api_key": ("pnu_lower_case_1", "pnu_lower_case_1"),
}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_credentials_are_withheld_from_child_processes_and_redacted(name: str) -> None:
    written, secret = CREDENTIALS[name]
    environment = {name: written, "PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "users-own-business"}
    kept = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "users-own-business"}
    assert environment_without_credentials(environment) == environment_without_credentials(environment, keeps_settings=True) == kept
    assert {written, secret} <= set(credential_values(environment))


ORDINARY = {
    "PLAN_ADAPTER_HOME": "/srv/plan_adapter",
    "PLAN_ADAPTER_DATABASE_URL": "sqlite:////srv/plan_adapter/plans.db",
    "PREFECT_API_URL": "http://127.0.0.1:4200/api",
    "PREFECT_SERVER_DATABASE_NAME": "prefect_production",
    "PLAN_ADAPTER_SECRETS_DIR": "/run/secrets/plans",
    "PLAN_ADAPTER_SIGNING_KEY": "/home/ana/.ssh/id_ed25519",
    "PREFECT_API_AUTH_STRING": "a:short",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_settings_are_not_redacted(name: str) -> None:
    assert credential_values({name: ORDINARY[name]}) == []


async def test_no_credential_reaches_a_command_a_worker_or_the_store(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (written, _) in CREDENTIALS.items():
        monkeypatch.setenv(name, written)
    monkeypatch.setenv("AWS_PROFILE", "the-users-own")
    plan = ExecutionPlan(description="Look around")
    plan.options.require_approval = False
    plan.add_step("run_command", "Print all", {"argv": ["env"]}, id="command", effect="read")
    plan.add_step("bash", "Print all", {"command": "env >&2; cat /proc/self/environ | tr '\\0' '\\n'"}, id="bash", effect="read")
    plan.add_step("environment_of_a_worker", "Print all", {}, id="worker")
    for name in CREDENTIALS:
        plan.add_step("read_variable", "Give it away", {"name": name}, id=f"read_{name}")
    given = {"argv": ["printenv", "PREFECT_API_KEY"], "env": {"PREFECT_API_KEY": "${{ secrets.unnamed }}"}}
    plan.add_step("run_command", "Was handed it", given, id="handed", effect="read")
    async with PlanStore(store_url) as store:
        run = await arun_plan(plan, tools=TOOLS, store=store, offline=True)
    assert run.is_completed, [step.error for step in run.steps]
    shown = json.dumps([run.step("command").result, run.step("bash").result])
    assert "AWS_PROFILE=the-users-own" in shown
    assert [name for name in CREDENTIALS if name in shown or name in str(run.step("worker").result)] == []
    assert "PLAN_ADAPTER_HOME" not in shown
    assert "PLAN_ADAPTER_HOME" in str(run.step("worker").result)
    assert [run.step(f"read_{name}").result for name in CREDENTIALS] == ["***"] * len(CREDENTIALS)
    assert "***" in str(run.step("handed").result)
    for text in (await dump(store_url), caplog.text, repr(run)):
        assert [name for name, (_, secret) in CREDENTIALS.items() if secret in text] == []
