"""Tests of `plan deploy` and `plan deploy --delete`: what they create, keep and refuse in Prefect."""

import asyncio
import shlex
import socket
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect import flow, get_client
from prefect.blocks.system import Secret
from prefect.client.schemas.responses import DeploymentResponse
from prefect.flows import load_flow_from_entrypoint
from pydantic import SecretStr

from plan_adapter.cli.servers import worker_command
from plan_adapter.engine.connection import Server
from tests.cases import for_each
from tests.cli.conftest import Plan
from tests.cli.gated import ME
from tests.deployments.conftest import RUNBOOKS

ASK: dict[str, Any] = {
    "id": "ask",
    "tool_name": "http_get",
    "description": "Ask the node",
    "parameters": {"url": "http://${{ inputs.host }}"},
}
WHO = {"type": "string", "title": "主机", "description": "The node to ask", "pattern": "^web-[0-9]+$"}
VALUE = "Kolibri+7/vögel=&x"
TIMES = {"type": "integer", "default": 2, "minimum": 1, "enum": [1, 2, 3]}

pytestmark = pytest.mark.usefixtures("prefect_server")


def runbook(name: str, *steps: dict[str, Any], folder: Path = Path(), **fields: Any) -> Path:
    """Write a runbook with the inputs `host` and `times`, and return its path."""
    document = {"name": name, "description": "Ask a node", "inputs": {"host": WHO, "times": TIMES}, "steps": [ASK, *steps], **fields}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def name() -> str:
    """Return a unique name, because all tests share the server."""
    return f"ask-{uuid4().hex[:8]}"


def deployed(plan: Plan, *arguments: str | Path) -> dict[str, Any]:
    """Deploy, creating a missing work pool, and return the JSON object that `plan deploy` prints."""
    result = plan("deploy", *arguments, "--yes", "--json")
    assert result.code == 0, result.err
    return result.lines[0]


def in_prefect(name: str) -> DeploymentResponse:
    """Return the deployment from Prefect."""

    async def read() -> DeploymentResponse:
        async with get_client() as client:
            return await client.read_deployment_by_name(f"{name}/{name}")

    return asyncio.run(read())


def test_a_runbook_is_deployed_with_a_form_and_a_second_deploy_changes_nothing(plan: Plan, name: str, prefect_server: Server) -> None:
    path = runbook(name, tags=["web"], approval={"approvers": ["ana", "bo"]})
    first = deployed(plan, path)
    assert (first["action"], first["pool"], first["deployment"]) == ("created", "plans", f"{name}/{name}")
    assert first["form"] == f"{prefect_server.ui_url}/deployments/deployment/{first['id']}/run"
    found = in_prefect(name)
    assert found.parameter_openapi_schema is not None
    assert list(found.parameter_openapi_schema["properties"].values()) == [
        {
            "type": "string",
            "pattern": "^web-[0-9]+$",
            "description": "The node to ask. Pattern `^web-[0-9]+$`.",
            "title": "主机",
            "position": 0,
        },
        {"type": "integer", "minimum": 1, "enum": [1, 2, 3], "default": 2, "description": "At least 1.", "title": "times", "position": 1},
    ]
    assert found.parameter_openapi_schema["required"] == ["host"]
    assert (found.tags, found.enforce_parameter_schema, found.work_pool_name) == (["web"], True, "plans")
    assert str(found.description).partition("\n\n### Order\n")[0] == (
        "Ask a node\n\n**Approval**: each run waits for an approval by ana, bo\n\n**Steps**\n\n- `ask` (http_get, read): Ask the node"
    )
    again = deployed(plan, path)
    assert (again["action"], again["changes"], again["id"]) == ("unchanged", [], first["id"])
    assert in_prefect(name).updated == found.updated


def test_an_update_lists_its_changes_and_keeps_omitted_options(plan: Plan, name: str) -> None:
    options = ("--cron", "0 3 * * *", "--time-zone", "Asia/Shanghai", "--input", "host=web-1", "--concurrency-limit", "1")
    deployed(plan, runbook(name), *options, "--tools", "tests.cli.some_tools:greet", "--job-variable", "env.LANG=C.UTF-8")
    before = in_prefect(name)
    away = plan("deploy", runbook(name), "--dry-run", "--pool", "no-such-pool")
    assert "the process work pool `no-such-pool` would be created, after asking" in away.err
    dry = plan("deploy", runbook(name, description="Ask it again"), "--dry-run")
    assert dry.out.splitlines()[0] == f"{name}/{name}: would be updated: version, description"
    assert in_prefect(name).version == before.version
    changed = deployed(plan, runbook(name, description="Ask it again"))
    assert (changed["action"], changed["changes"]) == ("updated", ["version", "description"])
    after = in_prefect(name)
    assert after.version != before.version
    assert after.job_variables == before.job_variables
    assert after.job_variables["env"].items() >= {"PLAN_ADAPTER_TOOLS": "tests.cli.some_tools:greet", "LANG": "C.UTF-8"}.items()
    assert after.parameters == before.parameters == {"host": "web-1"}
    assert after.global_concurrency_limit is not None
    assert after.global_concurrency_limit.limit == 1
    assert [(entry.schedule.cron, entry.schedule.timezone) for entry in after.schedules] == [("0 3 * * *", "Asia/Shanghai")]  # type: ignore[union-attr]
    assert plan("deploy", "--delete", name).out == f"{name}/{name}: deleted\n"
    assert "Prefect has no deployment" in plan("deploy", "--delete", name).err


def test_the_entrypoint_loads_exactly_the_deployed_version(plan: Plan, name: str) -> None:
    deployed(plan, runbook(name))
    entrypoint = in_prefect(name).entrypoint
    assert entrypoint is not None
    deployed(plan, runbook(name, description="Ask it again"))
    found = load_flow_from_entrypoint(entrypoint)
    assert (found.name, found.description, list(found.parameters.properties)) == (name, "Ask a node", ["host", "times"])


def test_workers_get_the_store_of_this_machine_unless_somebody_names_another(plan: Plan, name: str) -> None:
    def env(*arguments: str) -> dict[str, str]:
        deployed(plan, runbook(name), *arguments)
        return in_prefect(name).job_variables.get("env", {})

    first = env()
    assert (first["PLAN_ADAPTER_ALLOW_LOCAL_STORE"], first["PLAN_ADAPTER_STORE_HOST"]) == ("true", socket.gethostname())
    assert first["PLAN_ADAPTER_DATABASE_URL"].startswith("sqlite:////")
    assert env() == first
    named = {"PLAN_ADAPTER_DATABASE_URL": "postgresql://store/plans", "LANG": "C.UTF-8"}
    assert env(*(f"--job-variable=env.{variable}={value}" for variable, value in named.items())) == named
    assert env() == named


def test_a_folder_is_deployed_completely_or_not_at_all(plan: Plan, name: str, prefect_server: Server) -> None:
    folder = Path(name)
    folder.mkdir()
    for number in range(3):
        runbook(f"{name}-{number}", folder=folder)
    (folder / "README.md").write_text("no plan")
    (folder / f"{name}-0.test.yaml").write_text("cases: {}")
    (folder / f"{name}-0.approval.yaml").write_text("runbook_digest: 12")
    result = plan("deploy", folder, "--yes")
    assert result.out.splitlines() == [f"{name}-{number}/{name}-{number}: created" for number in range(3)]
    assert "3 runbooks: 3 created\n" in result.err
    assert f"`{worker_command('plans', prefect_server)}` starts a worker" in result.err
    runbook(f"{name}-0", folder=folder, description="Ask it again")
    runbook(f"{name}-3", {"id": "lost", "tool_name": "no_such_tool", "description": "Lost"}, folder=folder)
    refused = plan("deploy", folder)
    assert (refused.code, "no_such_tool" in refused.err, refused.out) == (2, True, "")
    (folder / f"{name}-3.yaml").unlink()
    assert "3 runbooks: 1 updated, 2 unchanged\n" in plan("deploy", folder).err


def test_all_runbooks_in_this_repository_can_be_deployed(plan: Plan) -> None:
    result = plan("deploy", RUNBOOKS, "--dry-run", "--json")
    assert result.code == 0, result.err
    names = sorted(path.stem for path in RUNBOOKS.glob("*.yaml") if not path.stem.endswith(".test"))
    assert [line["deployment"] for line in result.lines] == [f"{name}/{name}" for name in names]


def test_a_stored_plan_is_deployed_by_its_name(plan: Plan, name: str) -> None:
    deployed(plan, runbook(name))
    assert deployed(plan, name)["action"] == "unchanged"


@for_each(
    refused=[
        (["--cron", "0 3 * * *"], "no value for `host` (The node to ask), and a scheduled run cannot ask for it"),
        (["--cron", "every day", "--input", "host=web-1"], "the schedule `cron every day` is not valid"),
        (["--interval", "soon"], "`--interval soon`: write a time such as `15m`"),
        (["--interval", "15m", "--cron", "0 3 * * *"], "give one schedule: --cron, --interval or --rrule"),
        (["--time-zone", "Europe/Berlin"], "--time-zone needs a schedule"),
        (["--trigger", "two words"], "--trigger two words: error[bad-trigger] at event: 'two words' cannot be the name of an event"),
        (["--delete", "--trigger", "alert.firing"], "--delete takes the name of a runbook, and no other option but --json"),
        (["--cron", "0 3 * * *", "--time-zone", "Berlin"], "`Berlin` is not a time zone"),
        (["--input", "host=db-1"], "^web-[0-9]+$"),
        (["--input", "hots=web-1"], "the plan has no input `hots`"),
        (["--job-variable", "image"], "write --job-variable name=value"),
        (["--pool", "no-such-pool"], "the work pool `no-such-pool` does not exist: `--yes` creates it"),
    ]
)
def test_an_invalid_deployment_is_refused_before_anything_changes(plan: Plan, name: str, refused: tuple[list[str], str]) -> None:
    arguments, reason = refused
    result = plan("deploy", runbook(name), *arguments)
    assert (result.code, reason in result.err) == (2, True), result.err
    assert plan("deploy", "--delete", name).code == 2


@for_each(path=["nofile.yaml", "folder/nofile", "无.json"])
def test_a_path_that_does_not_exist_is_reported_as_a_file(plan: Plan, path: str) -> None:
    result = plan("deploy", path)
    assert (result.code, result.err) == (2, f"{path}: error[unreadable]: the file does not exist; check the path\n")


def test_undeploy_names_the_standing_approvals_that_stay(plan: Plan, name: str) -> None:
    path = runbook(name)
    deployed(plan, path)
    terms = ("--schedule", f"{name}/{name}", "--until", "2099-12-31", "--input", "host=web-1", "--input", "times=1")
    standing = plan("standing", "add", path, *terms, "--json").run["id"]
    refused = plan("deploy", "--delete", name, "--dry-run")
    assert (refused.code, "no other option but --json" in refused.err) == (2, True)
    undeployed = plan("deploy", "--delete", name)
    assert undeployed.out == f"{name}/{name}: deleted\n"
    assert f"standing approval {standing} by " in undeployed.err
    assert f"`plan standing revoke {standing}` revokes it" in undeployed.err


def test_deployments_made_by_others_are_left_alone(plan: Plan, name: str) -> None:
    @flow(name=name)
    def theirs() -> None: ...

    async def deploy() -> None:
        await (await theirs.to_deployment(name)).aapply()

    asyncio.run(deploy())
    for command in (("deploy", runbook(name)), ("deploy", "--delete", name)):
        result = plan(*command)
        assert (result.code, "`plan deploy` did not make" in result.err) == (2, True), result.err


COMMAND: dict[str, Any] = {
    "id": "ask-again",
    "tool_name": "run_command",
    "parameters": {"argv": ["true"], "env": {"TOKEN": "${{ secrets['health-token'] }}", "PASSWORD": "${{ inputs.password }}"}},
}
SECRET_INPUTS: dict[str, Any] = {"host": WHO, "password": {"type": "secret", "default": "node-login"}}


def notes(plan: Plan, *arguments: str | Path) -> str:
    """Deploy, and return what `plan deploy` says besides its result."""
    result = plan("deploy", *arguments, "--yes")
    assert result.code == 0, result.err
    return result.err


def test_deploy_names_the_secrets_and_settings_that_a_worker_needs(plan: Plan, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = {"id": "connect", "ssh": {"host": "web-1", "argv": ["true"]}, "timeout": "1m"}
    path = runbook(name, COMMAND, connect, inputs=SECRET_INPUTS)
    missing = "runs need the secret `health-token`, the secret `node-login` where their worker runs: `plan guide secrets`\n"
    said = notes(plan, path)
    assert missing in said
    assert "this shell sets" not in said
    Path("secrets").mkdir()
    Path("secrets", "health-token").write_text(VALUE)
    monkeypatch.setenv("PLAN_ADAPTER_SECRETS_DIR", "secrets")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_NODE_LOGIN", VALUE)
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", "fleet")
    said = notes(plan, path)
    folder, config = (shlex.quote(str(Path(file).absolute())) for file in ("secrets", "fleet"))
    settings = f"PLAN_ADAPTER_SECRETS_DIR={folder}, PLAN_ADAPTER_SECRET_NODE_LOGIN, PLAN_ADAPTER_SSH_CONFIG={config}"
    assert f"{missing}this shell sets {settings}: start the worker with the same\n" in said
    given = ("PLAN_ADAPTER_SECRET_NODE_LOGIN={{ prefect.blocks.secret.node-login }}", "PLAN_ADAPTER_SSH_CONFIG=/etc/ssh/fleet")
    said = notes(plan, path, *(f"--job-variable=env.{pair}" for pair in given))
    assert "runs need the secret `health-token` where their worker runs" in said
    assert f"this shell sets PLAN_ADAPTER_SECRETS_DIR={folder}: start" in said
    assert VALUE not in said


def test_a_secret_in_a_block_or_made_by_a_step_is_not_named(plan: Plan, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", "fleet")
    Secret(value=SecretStr(VALUE)).save("health-token", overwrite=True)
    try:
        first = {"id": "first", "tool_name": "run_command", "parameters": {"argv": ["true"]}, "creates_secrets": ["node-login"]}
        uses = COMMAND | {"depends_on": ["first"]}
        said = notes(plan, runbook(name, first, uses, inputs=SECRET_INPUTS))
    finally:
        Secret.delete("health-token")
    assert ("runs need" in said, "this shell sets" in said) == (False, False), said


def test_a_missing_secret_that_only_an_option_names_is_not_shown(plan: Plan, name: str) -> None:
    path = runbook(name, COMMAND, inputs=SECRET_INPUTS)
    said = notes(plan, path, "--input", "password=hunter2")
    assert "runs need the secret `health-token`, the secret that the input `password` names where" in said
    assert "hunter2" not in said


@for_each(
    case=[
        ({}, True),
        ({"approvers": ["ana", "bo"], "quorum": 2}, False),
        ({"known_by": ["proxy", "slack"]}, False),
        ({"known_by": ["slack", "ssh_signature"]}, True),
        ({"approvers": [ME], "author_approval": False}, False),
        ({"approvers": [ME, "bo"], "author_approval": False}, True),
    ]
)
def test_a_standing_approval_is_suggested_only_where_it_would_be_accepted(plan: Plan, name: str, case: tuple[dict[str, Any], bool]) -> None:
    approval, is_accepted = case
    said = notes(plan, runbook(name, approval=approval))
    assert "each run waits for an approval" in said
    assert ("`plan standing add` approves scheduled runs in advance" in said) == is_accepted
