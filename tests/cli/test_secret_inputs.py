"""Tests of inputs of type `secret` on the command line: everything shows the name, and only the tool gets the value."""

import asyncio
import json
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import yaml
from prefect import get_client
from prefect.blocks.system import Secret
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.responses import DeploymentResponse
from prefect.variables import Variable
from pydantic import SecretStr

from plan_adapter import ToolRegistry
from plan_adapter.engine.connection import Server
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import compile_plan
from plan_adapter.store import load_plan
from plan_adapter.validation import validate
from tests.cli.conftest import CommandResult, Plan
from tests.secrets.encodings import encodings
from tests.secrets.test_canary import files

VALUE = "Kolibri+7/vögel=&x"
PLAN = """\
name: vacuum
description: 清理数据库
inputs:
  password: {type: secret, description: Of the account that cleans up}
options: {require_approval: false, step_timeout_ms: 60000}
steps:
  - id: clean
    tool_name: run_command
    effect: read
    parameters:
      argv: [sh, -c, 'test "$PGPASSWORD" = "$1" && printf "as %s" "$PGPASSWORD"', clean, "${{ inputs.password }}"]
      env: {PGPASSWORD: "${{ inputs.password }}"}
outputs: {said: "${{ steps.clean.result.stdout }}"}
"""
GATED = PLAN.replace("require_approval: false", "require_approval: true")
GIVEN = ("--input", "password=prod-db")
IN_A_LIST = 'secrets[\\"prod-db\\"]'
"""The reference in a list or an object, which is shown as JSON."""


@pytest.fixture(autouse=True)
def document(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the plan, and keep its secret in the environment."""
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_PROD_DB", VALUE)
    Path("vacuum.yaml").write_text(PLAN, encoding="utf-8")
    return Path("vacuum.yaml")


@pytest.fixture
def block(prefect_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the only secret, which is a block: no process finds its value without the name."""
    monkeypatch.delenv("PLAN_ADAPTER_SECRET_PROD_DB")
    Secret(value=SecretStr(VALUE)).save("db-of-an-input", overwrite=True)
    return "db-of-an-input"


def assert_nowhere(folder: Path, *results: CommandResult) -> None:
    """Assert that the value is in no output, and in no file below `folder`: the store, logs and results."""
    printed = "".join(result.out + result.err for result in results)
    assert [name for name, form in encodings(VALUE).items() if form in printed] == []
    written = [(path.name, name) for path, content in files(folder) for name, form in encodings(VALUE).items() if form.encode() in content]
    assert written == []


def test_a_run_gives_the_value_to_the_tool_and_shows_the_name(plan: Plan, home: Path) -> None:
    ran = plan("run", "vacuum.yaml", *GIVEN, "--offline", "--json")
    assert (ran.code, ran.run["inputs"], ran.run["outputs"]) == (0, {"password": "prod-db"}, {"said": "as ***"})
    run_id = ran.run["id"]
    shown, as_json, text = plan("show", run_id, "--all"), plan("show", run_id, "--json", "--all"), plan("show", run_id)
    assert "`password`: `prod-db`" in shown.out
    assert IN_A_LIST in shown.out and IN_A_LIST in as_json.out
    verified = plan("verify", run_id)
    assert verified.code == 0
    exported = plan("export", run_id, "--json")
    assert "prod-db" in exported.out
    assert_nowhere(home.parent, ran, shown, as_json, text, verified, exported)


def test_a_secret_that_does_not_exist_is_refused_before_anything_runs(plan: Plan) -> None:
    refused = plan("run", "vacuum.yaml", "--input", "password=other-db", "--offline")
    assert (refused.code, plan("runs", "--json").out) == (2, "")
    (line,) = [line for line in refused.err.splitlines() if "missing-secret" in line]
    assert "inputs.password: there is no secret with the given name; give another name (--input password=…)" in line
    assert "other-db" not in refused.err + refused.out, "it may be the value that somebody gave instead"
    assert "--input password=…" in refused.err


@pytest.mark.parametrize("value", ["hunter two", "sk-1234567890abcdefgh", VALUE, "x" * 70])
def test_a_value_that_is_no_name_is_refused_and_not_shown(value: str, plan: Plan, home: Path) -> None:
    refused = plan("run", "vacuum.yaml", "--input", f"password={value}", "--offline")
    assert (refused.code, plan("runs", "--json").out) == (2, "")
    assert "this is not the name of a secret" in refused.err and value not in refused.err
    assert all(value.encode() not in content for _, content in files(home))


def test_the_gate_shows_the_name_and_the_approval_covers_it(plan: Plan, home: Path) -> None:
    Path("vacuum.yaml").write_text(GATED, encoding="utf-8")
    waiting = plan("run", "vacuum.yaml", *GIVEN, "--offline", "--detach", "--json")
    run_id = waiting.run["id"]
    shown = plan("approve", run_id, "--show")
    assert "Inputs: password `prod-db`." in shown.out
    assert "uses the secrets: `prod-db`" in shown.out
    assert IN_A_LIST in shown.out
    approved = plan("approve", run_id, "--yes", "--note", f"as {VALUE}")
    resumed = plan("resume", run_id, "--offline", "--json")
    assert (approved.code, resumed.code, resumed.run["status"]) == (0, 0, "completed")
    assert_nowhere(home.parent, waiting, shown, approved, resumed, plan("show", run_id, "--all"))


def test_a_secret_that_cannot_be_used_is_refused_with_the_reason(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_PROD_DB", "abc")
    refused = plan("run", "vacuum.yaml", *GIVEN, "--offline")
    why = "inputs.password: `secrets.prod-db` from the environment variable PLAN_ADAPTER_SECRET_PROD_DB has fewer than 4 characters"
    assert (refused.code, why in refused.err) == (2, True), refused.err


def test_a_resume_looks_for_the_secret_again(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("vacuum.yaml").write_text(GATED, encoding="utf-8")
    run_id = plan("run", "vacuum.yaml", *GIVEN, "--offline", "--detach", "--json").run["id"]
    assert plan("approve", run_id, "--yes").code == 0
    monkeypatch.delenv("PLAN_ADAPTER_SECRET_PROD_DB")
    refused = plan("resume", run_id, "--offline")
    assert (refused.code, "inputs.password" in refused.err, "there is no secret with the given name" in refused.err) == (2, True, True)


def test_preview_doctor_and_a_dry_run_say_where_it_comes_from(plan: Plan, home: Path) -> None:
    unknown, known = plan("preview", "vacuum.yaml"), plan("preview", "vacuum.yaml", *GIVEN)
    assert "## Secrets" not in unknown.out and "${{ inputs.password }}" in unknown.out
    assert "secret `prod-db`: from the environment variable PLAN_ADAPTER_SECRET_PROD_DB" in known.out
    assert IN_A_LIST in known.out
    asked = plan("doctor", "vacuum.yaml")
    assert "the input `password` names a secret, which each run gives" in asked.out
    Path("default.yaml").write_text(PLAN.replace("type: secret,", "type: secret, default: prod-db,"), encoding="utf-8")
    by_default = plan("doctor", "default.yaml")
    assert "secret `prod-db`: from the environment variable PLAN_ADAPTER_SECRET_PROD_DB" in by_default.out
    dry = plan("run", "vacuum.yaml", *GIVEN, "--dry-run")
    assert dry.code == 0, dry.err
    assert 'secrets["prod-db"]' in dry.out
    assert_nowhere(home.parent, unknown, known, asked, by_default, dry)


def test_show_diff_and_standing_approvals_have_names(plan: Plan) -> None:
    Path("default.yaml").write_text(PLAN.replace("type: secret,", "type: secret, default: prod-db,"), encoding="utf-8")
    Path("other.yaml").write_text(PLAN.replace("type: secret,", "type: secret, default: staging-db,"), encoding="utf-8")
    assert "- input `password` (secret, required)" in plan("show", "vacuum.yaml").out
    assert "- input `password` (secret, default `prod-db`)" in plan("show", "default.yaml").out
    changed = plan("diff", "default.yaml", "other.yaml").out
    assert "prod-db" in changed and "staging-db" in changed
    standing = ("standing", "add", "vacuum.yaml", "--schedule", "vacuum/nightly", "--runs", "3")
    added = plan(*standing, "--input", "password=prod-.*", "--json")
    assert (added.code, added.run["inputs"]) == (0, {"password": "prod-.*"}), added.err


def test_a_case_gets_a_made_up_value_and_a_replay_finds_the_same_calls(plan: Plan, home: Path) -> None:
    ran = plan("run", "vacuum.yaml", *GIVEN, "--offline", "--json")
    recorded = plan("test", "vacuum.yaml", "--record", ran.run["id"])
    assert recorded.code == 0, recorded.err
    case = yaml.safe_load(Path("vacuum.test.yaml").read_text(encoding="utf-8"))
    assert "prod-db" in json.dumps(case)
    tested = plan("test", "vacuum.yaml")
    assert tested.code == 0, tested.out + tested.err
    replayed = plan("replay", "vacuum.yaml")
    assert replayed.code == 0, replayed.out + replayed.err
    assert_nowhere(home.parent, ran, recorded, tested, replayed)


def test_a_sub_plan_gets_the_reference(plan: Plan, home: Path) -> None:
    outer = {
        "name": "nightly",
        "description": "Clean up every night",
        "inputs": {"account": {"type": "secret"}},
        "options": {"require_approval": False},
        "steps": [{"id": "vacuum", "plan": "vacuum.yaml", "inputs": {"password": "${{ inputs.account }}"}}],
        "outputs": {"said": "${{ steps.vacuum.result.said }}"},
    }
    Path("nightly.yaml").write_text(yaml.safe_dump(outer), encoding="utf-8")
    preview = plan("preview", "nightly.yaml", "--input", "account=prod-db")
    assert IN_A_LIST in preview.out
    ran = plan("run", "nightly.yaml", "--input", "account=prod-db", "--offline", "--json")
    assert (ran.code, ran.run["outputs"]) == (0, {"said": "as ***"})
    assert_nowhere(home.parent, preview, ran, plan("show", ran.run["id"], "--all"))
    refused = plan("run", "nightly.yaml", "--input", "account=no-db", "--offline")
    assert (refused.code, "inputs.account" in refused.err) == (2, True)


def test_a_block_and_a_variable_on_the_server(block: str, plan: Plan, home: Path) -> None:
    Variable.set("account_of_an_input", block, overwrite=True)
    Path("vacuum.yaml").write_text(PLAN.replace("type: secret,", "type: secret, variable: account_of_an_input,"), encoding="utf-8")
    for arguments, name in (((), block), (("--input", f"password=secret/{block}"), f"secret/{block}")):
        ran = plan("run", "vacuum.yaml", *arguments, "--json")
        assert (ran.code, ran.run["inputs"], ran.run["outputs"]) == (0, {"password": name}, {"said": "as ***"})

        async def flow_run(flow_run_id: str) -> str:
            of_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))  # type: ignore[list-item]
            async with get_client() as client:
                found = await client.read_flow_runs(flow_run_filter=of_run)
            return found[0].model_dump_json()

        about = asyncio.run(flow_run(ran.run["flow_run_id"]))
        assert name in about
        assert_nowhere(home.parent, ran, CommandResult(0, about, ""), plan("show", ran.run["id"], "--all"))


def test_what_people_say_is_redacted_by_the_secret_that_an_input_names(block: str, plan: Plan, home: Path) -> None:
    Path("vacuum.yaml").write_text(GATED, encoding="utf-8")
    run_id = plan("run", "vacuum.yaml", "--input", f"password={block}", "--offline", "--detach", "--json").run["id"]
    assert plan("approve", run_id, "--yes", "--note", f"as {VALUE}").code == 0
    resumed = plan("resume", run_id, "--offline", "--json")
    shown = plan("show", run_id, "--all")
    assert (resumed.code, "as ***" in shown.out) == (0, True)
    assert_nowhere(home.parent, resumed, shown)


def test_the_value_is_refused_in_another_input(block: str, plan: Plan, home: Path) -> None:
    Path("vacuum.yaml").write_text(PLAN.replace("inputs:\n", "inputs:\n  note: {type: string}\n"), encoding="utf-8")
    refused = plan("run", "vacuum.yaml", "--input", f"password={block}", "--input", f"note={VALUE}", "--offline")
    assert (refused.code, "secret-in-text" in refused.err, "inputs.note" in refused.err) == (2, True, True)
    assert_nowhere(home.parent, refused)


async def test_the_flow_of_a_plan_takes_the_name_as_a_parameter(block: str, home: Path) -> None:
    tools = ToolRegistry.from_settings(())
    flow = compile_plan(validate(load_plan(PLAN), tools), tools=tools)
    assert flow.parameters.properties["password"]["type"] == "string"
    ended = await flow(password=block)
    assert (ended.status, ended.outputs) == (PlanStatus.COMPLETED, {"said": "as ***"})
    assert ended.flow_run_id is not None
    async with get_client() as client:
        about = await client.read_flow_run(UUID(ended.flow_run_id))
    assert about.parameters == {"password": block}
    assert_nowhere(home.parent, CommandResult(0, about.model_dump_json(), ""))


def test_a_deployment_offers_the_choices_and_keeps_the_name(block: str, plan: Plan, home: Path) -> None:
    name = f"vacuum-{uuid4().hex[:8]}"
    document = PLAN.replace("name: vacuum", f"name: {name}").replace("type: secret,", f"type: secret, enum: [{block}, other-db],")
    Path("vacuum.yaml").write_text(document, encoding="utf-8")
    refused = plan("deploy", "vacuum.yaml", "--pool", name, "--yes", "--json", "--input", "password=no such name")
    assert (refused.code, "no such name" in refused.err) == (2, False)
    deployed = plan("deploy", "vacuum.yaml", "--pool", name, "--yes", "--json", "--input", f"password={block}")
    assert deployed.code == 0, deployed.err

    async def deployment() -> DeploymentResponse:
        async with get_client() as client:
            return await client.read_deployment_by_name(f"{name}/{name}")

    found = asyncio.run(deployment())
    assert found.parameters["password"] == block
    assert found.parameter_openapi_schema is not None
    assert found.parameter_openapi_schema["properties"]["password"]["enum"] == [block, "other-db"]
    assert_nowhere(home.parent, refused, deployed, CommandResult(0, found.model_dump_json(), ""))
