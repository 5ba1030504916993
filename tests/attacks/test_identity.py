"""Tests that nobody can answer in the name of another person."""

import itertools
import os
import pwd
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyotp.totp import TOTP

from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import os_user
from plan_adapter.gates.policy import Policy
from plan_adapter.gates.totp import check_code, code_key, encrypt_seed, new_seed
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer
from plan_adapter.model.options import ApprovalPolicy, KnownBy
from plan_adapter.model.status import RunReason
from plan_adapter.store import PlanStatus
from plan_adapter.store.policies import NewPolicy
from tests.attacks.commands import plan, write_plan
from tests.exports import document_of
from tests.gates.world import FormAnswers, World
from tests.store.conftest import on_both_databases

ME = pwd.getpwuid(os.getuid()).pw_name
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
FORGED_NAMES = dict.fromkeys(NAMES, "ana") | {"SUDO_USER": "ana", "HOME_USER": "ana"}

STEP: dict[str, Any] = {"id": "show", "tool_name": "bash", "description": "Greet", "parameters": {"command": "echo hello"}}
PLAN: dict[str, Any] = {"name": "release", "description": "Release the site", "steps": [STEP]}
PLAN_FOR_ANA: dict[str, Any] = {**PLAN, "approval": {"approvers": ["ana"], "operators": [ME]}}


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), NAMES], ids=[*NAMES, "all"])
def test_the_account_comes_from_the_real_user_id_not_from_the_environment(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in names:
        monkeypatch.setenv(name, "mallory")
    assert os_user() == ME


def test_an_answer_in_the_name_of_another_account_is_refused(tmp_path: Path) -> None:
    begun = plan("run", write_plan(tmp_path, PLAN_FOR_ANA), "--offline", "--json", cwd=tmp_path)
    assert begun.code == 6, begun.err
    run_id = begun.last["id"]
    for answer, name in itertools.product((("approve", run_id, "--yes"), ("reject", run_id)), ((), ("--by", "ana"))):
        refused = plan(*answer, *name, "--json", cwd=tmp_path, **FORGED_NAMES)
        assert refused.code == (2 if name else 10), refused.out + refused.err
    assert plan("show", run_id, "--json", cwd=tmp_path).last["status"] == "pending_approval"
    exported = plan("export", run_id, "--json", cwd=tmp_path)
    assert [row for row in document_of(exported.out)["audit"] if row["by"] == "ana" and row["known_by"] == "os_user"] == []


def test_operators_are_checked_against_the_real_account(tmp_path: Path) -> None:
    document = {**PLAN_FOR_ANA, "options": {"require_approval": False}, "approval": {"operators": ["ana"]}}
    refused = plan("run", write_plan(tmp_path, document), "--offline", "--json", cwd=tmp_path, **FORGED_NAMES)
    assert refused.code == 10
    assert f"{ME} may not run" in refused.err


def test_a_run_records_the_real_account_that_started_it(tmp_path: Path) -> None:
    path = write_plan(tmp_path, {**PLAN, "options": {"require_approval": False}})
    assert plan("run", path, "--offline", "--json", cwd=tmp_path, **FORGED_NAMES).last["requested_by"] == ME


def test_a_standing_approval_records_the_real_account(tmp_path: Path) -> None:
    path = write_plan(tmp_path, PLAN)
    limits = ("--schedule", "release/nightly", "--runs", "1")
    given = plan("standing", "add", path, *limits, "--json", cwd=tmp_path, **FORGED_NAMES)
    assert (given.last["by"], given.last["known_by"]) == (ME, "os_user")


ANA = new_seed("ana")[0]


async def enroll_ana(world: World) -> Settings:
    """Enroll ana in the store of `world`; return the settings that hold the key of her seed."""
    await world.store.codes.enroll("ana", encrypt_seed("ana", ANA, world.settings), by="ana", replaces=False)
    return world.settings


async def test_the_seed_of_another_person_is_refused(world: World) -> None:
    settings = await enroll_ana(world)
    mine, code = new_seed("mallory")[0], TOTP(new_seed("mallory")[0])
    sealed = encrypt_seed("mallory", mine, settings)
    await world.store.codes.enroll("mallory", sealed, by="mallory", replaces=False)
    row = "INSERT INTO totp_history (name, number, tenant_id, seed, by, known_by, at) SELECT 'ana', 2, '', seed, 'ana', 'os_user', at"
    await world.sql(f"{row} FROM totp_history WHERE name = 'mallory'")
    with pytest.raises(NotApprovedError, match="belongs to somebody else"):
        await check_code("ana", code.at(1200), codes=world.store.codes, settings=settings, now=1200)


async def test_a_seed_that_was_sealed_with_another_key_is_refused(world: World, tmp_path: Path) -> None:
    settings, mine = await enroll_ana(world), new_seed("ana")[0]
    sealed = encrypt_seed("ana", mine, Settings(home=tmp_path / "mallory"))
    await world.sql(
        "INSERT INTO totp_history SELECT name, 2, tenant_id, agent_id, org_id, task_id, :seed, by, known_by, at FROM totp_history",
        seed=sealed,
    )
    with pytest.raises(NotApprovedError, match="another key"):
        await check_code("ana", TOTP(mine).at(1200), codes=world.store.codes, settings=settings, now=1200)


@pytest.mark.parametrize("by", ["mallory", "", "Ana", "ana ", "ops"])
@pytest.mark.parametrize("has_operators", [False, True], ids=["no policy", "operators"])
@on_both_databases
async def test_only_the_owner_or_an_operator_can_replace_a_seed(has_operators: bool, by: str, world: World) -> None:
    await enroll_ana(world)
    if has_operators:
        await world.store.policy.set(NewPolicy(Policy(operators=["ops"], groups={"ops": ["bo"]}), 1, "bo", "os_user"))
    for replaces in (True, False):
        with pytest.raises(NotApprovedError, match="may not enroll ana; allowed: ana"):
            await world.store.codes.enroll("ana", "sealed", by=by, replaces=replaces)
    for allowed in ("ana", *(["bo"] if has_operators else [])):
        await world.store.codes.enroll("ana", f"by {allowed}", by=allowed, replaces=True)
        assert await world.store.codes.seed("ana") == f"by {allowed}"


async def test_only_operators_of_the_policy_can_enroll_others(world: World) -> None:
    await world.store.policy.set(NewPolicy(Policy(operators=["bo"]), 1, "bo", "os_user"))
    with pytest.raises(NotApprovedError, match="may not enroll ana; allowed: ana, or an operator of the policy: bo"):
        await world.store.codes.enroll("ana", "sealed", by="mallory", replaces=False)
    await world.store.codes.enroll("ana", "sealed", by="bo", replaces=False)


@pytest.mark.parametrize("known_by", [("totp",), ("totp", "ssh_signature"), ("totp", "os_user")], ids=" ".join)
@pytest.mark.parametrize("private", [True, False], ids=["signed in", "open server"])
async def test_a_code_in_the_form_of_an_open_server_proves_no_identity(private: bool, known_by: tuple[KnownBy, ...], world: World) -> None:
    await enroll_ana(world)
    code = TOTP(ANA).at(await world.now())
    form = FormAnswers((Answer("approve", "ana", channel="form", code=code),), private=private)
    going = world.start_with_form(world.plan(policy=ApprovalPolicy(known_by=list(known_by))), form)
    gate = await world.gate() if not private else None
    while not form.replies:
        await world.store.changed(0.5)
    if private:
        assert (form.replies, (await going).status) == ([None], PlanStatus.COMPLETED)
        return
    assert gate is not None
    assert f"`plan approve {gate.run_id} --digest {gate.approval_digest[:12]} --code CODE`" in str(form.replies[0])
    refused = [entry for entry in await world.store.audit(gate.run_id) if entry.kind == "refused"]
    assert refused and "proves nobody" in str(refused[0].message)
    assert await world.store.codes.use(code_key("ana"), int((await world.now()).timestamp()) // 30)  # the code was not used up
    assert (await world.end(going)).reason is RunReason.REJECTED
    assert world.struck == []


def test_a_seed_is_shown_once_and_stored_nowhere_else_in_clear(tmp_path: Path) -> None:
    home = tmp_path / "home"
    result = plan("enroll", "bo", cwd=tmp_path, PLAN_ADAPTER_HOME=str(home))
    assert result.code == 0, result.err
    seed = parse_qs(urlsplit(result.out.strip()).query)["secret"][0]
    assert seed not in result.err
    files = [path for path in home.rglob("*") if path.is_file()]
    assert home / "totp.key" in files
    assert [path for path in files if seed.encode() in path.read_bytes()] == []
    again = plan("enroll", "bo", "--force", cwd=tmp_path, PLAN_ADAPTER_HOME=str(home), **FORGED_NAMES | {"LOGNAME": "bo", "USER": "bo"})
    assert (again.code, f"{ME} may not enroll bo; allowed: bo" in again.err) == (10, True)


def test_a_person_can_replace_their_own_seed(tmp_path: Path) -> None:
    assert plan("enroll", ME, cwd=tmp_path).code == 0
    without = plan("enroll", ME, cwd=tmp_path)
    assert (without.code, "`--force` replaces them" in without.err) == (2, True)
    assert "no longer work" in plan("enroll", ME, "--force", cwd=tmp_path).err
