"""Tests of `plan export --attest`, `plan verify` of an attestation, and the script in the guide that verifies one without this package."""

import asyncio
import json
import random
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from plan_adapter.local.attestation_key import read_public_key, read_signing_key
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotVerifiedError
from plan_adapter.store.database.tables import REVISION_TABLE
from plan_adapter.store.proof.attestation import PREDICATE_TYPE, checked_statement, verified_attestation
from plan_adapter.store.proof.envelope import sealed
from tests.cli.conftest import CommandResult, Plan
from tests.cli.gated import resumed, signer, waiting
from tests.cli.test_run import GREET, TOOLS, document, step
from tests.exports import document_of, rebuild_audit_log
from tests.guide import GUIDE
from tests.sql import Sql

__all__ = ["signer"]

ME = os_user()
FILE = Path("run.attestation.json")
SCRIPT = re.search(r"^```python file=verify_attestation.py\n(.*?)^```$", (GUIDE / "attestations.md").read_text("utf-8"), re.M | re.S)
assert SCRIPT is not None

WITHOUT_THE_PACKAGE = """
import runpy, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "plan_adapter":
            raise ImportError(name)

sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ran(plan: Plan, *steps: dict[str, Any], **fields: Any) -> str:
    """Return the id of a run that has ended."""
    return plan("run", document(*(steps or (GREET,)), **fields), *TOOLS, "--offline", "--json").run["id"]


def attested(plan: Plan, run_id: str = "last", *options: str | Path) -> dict[str, Any]:
    """Attest a run, verify the file in both ways, and return its predicate."""
    result = plan("export", run_id, "--attest", "-o", FILE, "--force", *options)
    assert (result.code, result.out) == (0, ""), result.err
    statement = json.loads(b64decode(json.loads(FILE.read_bytes())["payload"]))
    if not options:
        assert plan("verify", FILE).code == 0
        assert script_verify()(FILE.read_bytes(), public_key().read_bytes()) == statement
    return statement["predicate"]


def public_key() -> Path:
    return Settings().home / "attestation_key.pub"


def script_verify() -> Callable[[bytes, bytes], dict[str, Any]]:
    """Return the function `verify` of the script in the guide."""
    assert SCRIPT is not None
    names = dict[str, Any]()
    exec(compile(SCRIPT[1], "verify_attestation.py", "exec"), names)
    return names["verify"]


def type_script(attestation: Path, key: Path) -> CommandResult:
    """Run the script of the guide in a process that cannot import this package."""
    assert SCRIPT is not None
    Path("verify_attestation.py").write_text(SCRIPT[1], encoding="utf-8")
    command = [sys.executable, "-I", "-X", "utf8", "-c", WITHOUT_THE_PACKAGE, "verify_attestation.py", attestation, key]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def new_key(path: Path, *options: str) -> Path:
    """Return the path of a new key without a passphrase, by default of ed25519."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", *options, "-f", str(path)], check=True)
    return path


def test_an_attestation_says_what_was_approved_and_called(plan: Plan) -> None:
    run_id = waiting(plan)
    digest = plan("show", run_id, "--json").run["approval_digest"]
    assert plan("approve", run_id, "--digest", digest, "--note", "变更 4711").code == 0
    assert resumed(plan, run_id).code == 0
    exported = document_of(plan("export", run_id).out)
    found = attested(plan)
    assert (found["run"]["id"], found["run"]["name"], found["run"]["status"]) == (run_id, "试运行", "completed")
    assert found["plan"]["digest"] == exported["run"]["digest"]
    assert found["plan"]["document"] == json.loads(exported["plans"][0]["document"])
    (approval,) = found["approvals"]
    assert (approval["decision"], approval["by"], approval["known_by"], approval["note"]) == ("approve", ME, "os_user", "变更 4711")
    assert (approval["approval_digest"], approval["step"]) == (digest, None)
    (call,) = found["calls"]
    assert (call["step"], call["tool"], call["effect"], call["parameters"], call["attempt"]) == (
        "greet",
        "greet",
        "read",
        {"who": "世界"},
        1,
    )
    assert call["idempotency_key"] == exported["attempts"][0]["idempotency_key"]
    assert (call["receipt"]["outcome"], call["receipt"]["result"]) == ("succeeded", {"text": "你好, 世界"})
    assert found["audit"] == {"entries": len(exported["audit"]), "digest": exported["head"]}
    assert (found["unknown_outcomes"], found["revisions"], found["erasures"], found["operator_requests"]) == ([], [], [], [])


def test_the_commands_say_which_key_signed_and_what_was_verified(plan: Plan) -> None:
    run_id = ran(plan)
    result = plan("export", run_id, "--attest", "-o", FILE)
    listed = subprocess.run(["ssh-keygen", "-l", "-f", str(public_key())], capture_output=True, text=True, check=True)
    fingerprint = listed.stdout.split()[1]
    home = Settings().home
    assert result.err == (
        f"signed with {home}/attestation_key, {fingerprint}; the public key, for those who verify it, is in {home}/attestation_key.pub\n"
    )
    assert [oct(path.stat().st_mode & 0o777) for path in (FILE, home / "attestation_key")] == ["0o600", "0o600"]
    digest = document_of(plan("export", run_id).out)["head"]
    assert json.loads(FILE.read_bytes())["signatures"][0]["keyid"] == fingerprint
    shown = plan("verify", FILE)
    assert shown.out.startswith(f"intact: signed by {fingerprint} ({home}/attestation_key.pub) at ")
    assert f"  run {run_id} of 试运行: completed, plan " in shown.out and f", digest {digest}\n" in shown.out
    (line,) = plan("verify", FILE, "--json").lines
    assert (line["ok"], line["fingerprint"], line["run_id"], line["audit_digest"]) == (True, fingerprint, run_id, digest)
    assert plan("export", run_id, "--attest").out.startswith('{"payload":"')


def test_the_script_verifies_without_this_package(plan: Plan, tmp_path: Path) -> None:
    run_id = ran(plan)
    attested(plan)
    result = type_script(FILE, public_key())
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"verified: run {run_id} of '试运行', completed\n  approve the plan: 'author' (not_required) at ")
    assert result.out.endswith("  step greet, greet: succeeded\n")
    content = FILE.read_bytes()
    FILE.write_bytes(content.replace(b":", b": ", 1))
    result = type_script(FILE, public_key())
    assert (result.code, result.out, result.err) == (1, "", "not verified: it is not spelled as it was written\n")
    FILE.write_bytes(content)
    other, rsa = new_key(tmp_path / "other"), new_key(tmp_path / "rsa", "-t", "rsa")
    assert "not verified: it names the key SHA256:" in type_script(FILE, other.with_suffix(".pub")).err
    assert type_script(FILE, rsa.with_suffix(".pub")).err == "not verified: the key is not an ed25519 key\n"
    assert type_script(Path("none"), public_key()).err.startswith("not verified: ")


def changes(content: bytes, count: int) -> list[bytes]:
    """Return different copies of `content`, each with one byte changed."""
    chosen = random.Random(4711).sample(range(len(content) * 255), count)
    copies = list[bytes]()
    for number in chosen:
        at, shift = divmod(number, 255)
        copies.append(content[:at] + bytes([(content[at] + shift + 1) % 256]) + content[at + 1 :])
    assert len(set(copies)) == count
    return copies


def accepted(copies: list[bytes]) -> list[tuple[str, bytes]]:
    """Return the copies that the package or the script takes for what was signed."""
    script, line, key = script_verify(), public_key().read_bytes(), read_public_key(public_key())
    found = list[tuple[str, bytes]]()
    for copy in copies:
        with suppress(NotVerifiedError):
            found.append((verified_attestation(copy, key).run.id, copy))
        with suppress(ValueError):
            found.append((str(script(copy, line)), copy))
    return found


def test_a_changed_byte_is_found_in_10_000_of_10_000_copies(plan: Plan) -> None:
    ran(plan)
    attested(plan)
    content = FILE.read_bytes()
    assert len(accepted([content])) == 2
    assert accepted(changes(content, 10_000)) == []


def test_every_changed_byte_is_found(plan: Plan) -> None:
    """A flipped lowest bit at every position, also in the slack bits of base64."""
    ran(plan)
    attested(plan)
    content = FILE.read_bytes()
    assert accepted([content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(len(content))]) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text + "\n",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('","payloadType"', '=","payloadType"'),
        lambda text: text.replace("payloadType", "payload\\u0054ype"),
        lambda text: text.replace('{"payload"', '{"payload":"","payload"'),
        lambda text: json.dumps(json.loads(text), indent=1),
        lambda text: json.dumps({**json.loads(text), "z": 1}, sort_keys=True, separators=(",", ":")) + "\n",
        lambda text: text.replace('"signatures":[', '"signatures":[{"keyid":"x","sig":""},'),
        lambda text: text.replace("vnd.in-toto", "vnd.other"),
        lambda text: '{"payload":' + "[" * 100_000,
        lambda text: '{"payload":"' + "９",
    ],
    ids=["no newline", "newline", "half", "padding", "escape", "twice", "indented", "more", "two signatures", "type", "deep", "digits"],
)  # fmt: skip
def test_every_other_spelling_is_refused(plan: Plan, change: Callable[[str], str]) -> None:
    ran(plan)
    attested(plan)
    FILE.write_text(change(FILE.read_text("ascii")), encoding="utf-8")
    result = plan("verify", FILE)
    assert (result.code, result.out.startswith(f"not verified: {FILE}: "), result.out.count("\n"), result.err) == (1, True, 1, "")
    (line,) = plan("verify", FILE, "--json").lines
    assert (line["ok"], line["problem"]) == (False, result.out.removeprefix(f"not verified: {FILE}: ").rstrip("\n"))
    with pytest.raises((ValueError, RecursionError)):
        script_verify()(FILE.read_bytes(), public_key().read_bytes())


def test_an_empty_file_a_folder_and_a_missing_file_are_refused(plan: Plan) -> None:
    ran(plan)
    attested(plan)
    FILE.write_bytes(b"")
    result = plan("verify", FILE, "--key", public_key())
    assert (result.code, result.out) == (
        1,
        f"not verified: {FILE}: it is not a DSSE envelope with one signature: it was altered or cut off\n",
    )
    assert plan("verify", FILE).code == 2
    FILE.unlink()
    assert (plan("verify", FILE).code, plan("verify", FILE).err) == (2, f"plan: there is no file {FILE}\n")
    missing = plan("verify", FILE, "--key", public_key())
    assert (missing.code, missing.err) == (2, f"plan: {FILE} cannot be read: No such file or directory\n")
    assert plan("verify", ".", "--key", public_key()).err == "plan: . cannot be read: Is a directory\n"


def test_a_key_of_yours_signs(plan: Plan, tmp_path: Path) -> None:
    ran(plan)
    key = new_key(tmp_path / "ci")
    attested(plan, "last", "--key", key)
    assert not public_key().exists()
    assert plan("verify", FILE, "--key", f"{key}.pub").code == 0
    refused = plan("verify", FILE)
    assert (refused.code, refused.err) == (
        2,
        "plan: this installation has no key that it signs attestations with: name the public key of the signer with --key\n",
    )
    key.with_suffix(".pub").unlink()
    result = plan("export", "last", "--attest", "-o", FILE, "--force", "--key", key)
    assert result.err.endswith(f"is `{read_signing_key(key).public.text}`\n")
    attested(plan)
    other = new_key(tmp_path / "other").with_suffix(".pub")
    refused = plan("verify", FILE, "--key", other)
    assert refused.code == 1
    assert refused.out.startswith(f"not verified: {FILE}: it names the key {read_public_key(public_key()).fingerprint}, not SHA256:")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: new_key(path, "-t", "rsa", "-b", "2048"), "is a key of another kind, and attestations are signed with ed25519;"),
        (lambda path: new_key(path, "-t", "ecdsa"), "is a key of another kind"),
        (lambda path: new_key(path, "-N", "open sesame"), "has a passphrase, and attestations are signed only with keys that have none"),
        (lambda path: new_key(path).with_suffix(".pub").replace(path).chmod(0o600), "is not an OpenSSH ed25519 private key"),
        (lambda path: new_key(path).chmod(0o644), "other users can read"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.touch(0o600), "is not an OpenSSH ed25519 private key"),
        (lambda path: None, "No such file or directory"),
    ],
    ids=["rsa", "ecdsa", "passphrase", "public", "readable", "folder", "empty", "missing"],
)  # fmt: skip
def test_another_key_is_refused_with_one_error(plan: Plan, tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    ran(plan)
    make(tmp_path / "key")
    result = plan("export", "last", "--attest", "-o", FILE, "--key", tmp_path / "key")
    assert (result.code, result.out, result.err.count("\n"), message in result.err) == (2, "", 1, True), result.err
    assert [path.name for path in Path.cwd().iterdir()] == ["计划.json"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: new_key(path), "is not a public key: give the file that ends in .pub"),
        (lambda path: new_key(path, "-t", "rsa", "-b", "2048").with_suffix(".pub").replace(path), "is not an ed25519 public key"),
        (lambda path: path.write_text("ana ssh-ed25519 AAAA"), "is not an ed25519 public key"),
        (lambda path: path.write_bytes(b"\xff"), "is not an ed25519 public key"),
        (lambda path: path.write_text(new_key(path).with_suffix(".pub").read_text() * 2), "is not an ed25519 public key"),
        (lambda path: None, "No such file or directory"),
    ],
    ids=["private", "rsa", "signers", "bytes", "two", "missing"],
)  # fmt: skip
def test_another_public_key_is_a_usage_error(plan: Plan, tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    ran(plan)
    attested(plan)
    make(tmp_path / "key")
    result = plan("verify", FILE, "--key", tmp_path / "key")
    assert (result.code, result.out, result.err.count("\n"), message in result.err) == (2, "", 1, True), result.err


def test_a_later_version_and_other_statements_are_refused(plan: Plan) -> None:
    ran(plan)
    attested(plan)
    key, statement = read_signing_key(Settings().home / "attestation_key"), json.loads(b64decode(json.loads(FILE.read_bytes())["payload"]))
    later = PREDICATE_TYPE.replace("v1", "v2")
    for changed, message in (
        ({**statement, "predicateType": later}, f"states {later}, and this version of the package reads {PREDICATE_TYPE}: it may be of"),
        ({**statement, "predicate": {}}, "signed it, but it is not the attestation of a run"),
        ({**statement, "subject": []}, "signed it, but its subject is not the run that it describes"),
        ([1], "signed it, but it is not an in-toto statement"),
    ):
        FILE.write_bytes(sealed(json.dumps(changed).encode(), key))
        result = plan("verify", FILE)
        assert (result.code, result.out.count("\n"), message in result.out) == (1, 1, True), result.out
    FILE.write_bytes(sealed(json.dumps({**statement, "predicateType": later}).encode(), key))
    assert type_script(FILE, public_key()).err == f"not verified: it states {later}, and this script reads {PREDICATE_TYPE}\n"
    FILE.write_bytes(sealed(json.dumps({**statement, "predicate": {**statement["predicate"], "new": 1}}).encode(), key))
    assert plan("verify", FILE).code == 0  # a field was added


def test_options_that_contradict_each_other_are_usage_errors(plan: Plan, tmp_path: Path) -> None:
    path = document(GREET)
    for arguments, message in (
        (("export", path, "--attest", "--format", "mermaid"), "--attest is about the record of a run, and --format mermaid writes a plan"),
        (("export", path, "--attest", "--format", "aster"), "--attest is about the record of a run, and --format aster writes a plan"),
        (("export", "last", "--key", "x"), "--key is the key of an attestation: add --attest"),
        (("verify", "--key", "x"), "--key is the key of an attestation: name the file"),
    ):
        result = plan(*arguments)
        assert (result.code, result.out, message in result.err) == (2, "", True), result.err


def change(home: Path, statement: str) -> None:
    asyncio.run(Sql(f"sqlite:///{home / 'plans.db'}").change(statement))


def test_an_altered_record_is_not_attested(plan: Plan, home: Path) -> None:
    run_id = ran(plan)
    change(home, "UPDATE receipts SET result = '{}'")
    result = plan("export", run_id, "--attest", "-o", FILE)
    message = f"plan: the record of run {run_id} does not verify, so it is not attested: receipts, step `greet`, attempt 1: "
    assert (result.code, result.out, result.err.startswith(message), result.err.count("\n")) == (1, "", True, 1)
    assert [path.name for path in Path.cwd().iterdir()] == ["计划.json"]
    assert not (home / "attestation_key").exists()


def test_a_forged_record_that_cannot_be_read_is_not_attested(plan: Plan) -> None:
    record = document_of(plan("export", ran(plan)).out)
    record["approvals"][0]["result"] = "{"
    rebuild_audit_log(record)
    with pytest.raises(NotVerifiedError, match=r"cannot be read, so it is not attested \(JSONDecodeError"):
        checked_statement(record, at=datetime.now(UTC))


def test_a_store_of_another_version_is_one_error(plan: Plan, home: Path) -> None:
    ran(plan)
    change(home, f"UPDATE {REVISION_TABLE} SET version_num = '9999'")
    result = plan("export", "last", "--attest", "-o", FILE)
    assert (result.code, "has revision 9999" in result.err, result.err.count("\n")) == (9, True, 1)
    assert [path.name for path in Path.cwd().iterdir()] == ["计划.json"]
    assert not (home / "attestation_key").exists()


def test_an_existing_file_is_replaced_only_with_force(plan: Plan) -> None:
    ran(plan)
    FILE.write_text("mine")
    result = plan("export", "last", "--attest", "-o", FILE)
    assert (result.code, result.err, FILE.read_text()) == (2, f"plan: {FILE} already exists: give another name, or --force\n", "mine")


def test_a_replaced_public_key_of_the_installation_is_reported(plan: Plan, tmp_path: Path) -> None:
    ran(plan)
    attested(plan)
    new_key(tmp_path / "other").with_suffix(".pub").replace(public_key())
    result = plan("export", "last", "--attest")
    assert (result.code, f"{public_key()} is not the public key of" in result.err) == (2, True)
    public_key().unlink()
    attested(plan)


def test_an_unknown_outcome_names_who_resolved_it(plan: Plan, signer: Path) -> None:
    policy = {"approvers": ["ana"], "known_by": ["ssh_signature"]}
    run_id = ran(plan, step("lost", "get_lost"), approval=policy)
    found = attested(plan)
    (unknown,), (call,) = found["unknown_outcomes"], found["calls"]
    assert (unknown["step"], unknown["call_id"], unknown["resolution"]) == ("lost", call["id"], None)
    assert call["receipt"] is None
    assert "  unknown outcome of lost: nobody resolved it\n" in plan("verify", FILE).out
    said = ("done", "--sign", "--by", "ana", "--result", '{"版本": 3}', "--note", "看过了")
    assert plan("resolve", run_id, "lost", *said).code == 0
    assert resumed(plan, run_id).code == 0
    found = attested(plan)
    (unknown,), (call,) = found["unknown_outcomes"], found["calls"]
    resolution = unknown["resolution"]
    assert (resolution["resolution"], resolution["by"], resolution["known_by"], resolution["note"]) == (
        *("done", "ana", "ssh_signature", "看过了"),
    )
    assert resolution["signature"].startswith("-----BEGIN SSH SIGNATURE-----")
    assert (call["receipt"]["result"], call["receipt"]["by"]) == ({"版本": 3}, "ana")
    assert "  unknown outcome of lost: `done` by ana (ssh_signature)\n" in plan("verify", FILE).out
    assert "  unknown outcome of lost: done, 'ana' (ssh_signature)\n" in type_script(FILE, public_key()).out


def test_a_rejected_run_is_attested(plan: Plan) -> None:
    run_id = waiting(plan)
    assert attested(plan)["run"]["status"] == "pending_approval"
    assert plan("reject", run_id, "--note", "不行", "--yes").code == 0
    found = attested(plan)
    (approval,) = found["approvals"]
    assert (found["run"]["status"], found["run"]["reason"], found["calls"]) == ("cancelled", "rejected", [])
    assert (approval["decision"], approval["by"], approval["note"]) == ("reject", ME, "不行")
    assert f"  reject the plan: {ME} (os_user) at " in plan("verify", FILE).out


def test_a_signature_that_does_not_verify_is_not_attested(plan: Plan, signer: Path, tmp_path: Path) -> None:
    run_id = waiting(plan, approval={"approvers": ["ana"], "known_by": ["ssh_signature"]})
    digest = plan("show", run_id, "--json").run["approval_digest"]
    assert plan("approve", run_id, "--digest", digest, "--sign", "--by", "ana").code == 0
    (approval,) = attested(plan)["approvals"]
    assert (approval["by"], approval["known_by"]) == ("ana", "ssh_signature")
    assert approval["signature"].startswith("-----BEGIN SSH SIGNATURE-----")
    FILE.unlink()
    other = new_key(tmp_path / "other").with_suffix(".pub")
    (tmp_path / "allowed").write_text(f"ana {other.read_text()}")
    result = plan("export", run_id, "--attest", "-o", FILE)
    assert (result.code, "so it is not attested: approvals: the signature of ana: " in result.err, FILE.exists()) == (1, True, False)


def test_items_revisions_requests_and_erasures_are_attested(plan: Plan) -> None:
    each = step("each", "greet", parameters={"who": "${{ item }}"}, for_each="${{ ['甲', inputs.who] }}")
    failing = step("bad", "fail", depends_on=["each"])
    run_id = ran(plan, each, failing, inputs={"who": {"default": "王小明"}})
    assert plan("resume", run_id, "--skip", "bad", "--because", "不需要", *TOOLS, "--offline").code == 0
    assert plan("erase", run_id, "--fields", "inputs.who", "--yes").code == 0
    found = attested(plan)
    assert [(call["step"], call["item"]) for call in found["calls"]] == [("each", 1), ("each", 2), ("bad", None)]
    (request,) = found["operator_requests"]
    assert (request["kind"], request["steps"], request["by"], request["reason"]) == ("skip", ["bad"], ME, "不需要")
    (erasure,) = found["erasures"]
    assert (erasure["fields"], erasure["by"], found["inputs"]) == (["inputs.who"], ME, {"who": "[erased]"})
    assert [(one["id"], one["status"]) for one in found["steps"]] == [("each", "completed"), ("bad", "skipped")]


def test_a_replaced_version_of_the_plan_is_attested(plan: Plan) -> None:
    run_id = waiting(plan)
    before = attested(plan)["plan"]
    changed = document(step("greet", "greet", parameters={"who": "大家"}), options={"require_approval": True})
    assert plan("revise", run_id, changed, *TOOLS).code == 0
    found = attested(plan)
    (revision,) = found["revisions"]
    assert (revision["number"], revision["plan"], revision["by"]) == (1, before, ME)
    assert found["plan"]["document"]["steps"][0]["parameters"] == {"who": "大家"}


def test_no_secret_is_in_an_attestation(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "canary-Sx9-secret-42!"
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOK", canary)
    shown = step("show", "bash", parameters={"command": "echo $T", "env": {"T": "${{ secrets.tok }}"}}, on_error="continue")
    ran(plan, shown, step("fail", "fail", parameters={"text": "it is ${{ secrets.tok }}"}))
    attested(plan)
    payload = b64decode(json.loads(FILE.read_bytes())["payload"]).decode()
    assert canary not in payload and "***" in payload
    assert canary not in plan("verify", FILE).out + plan("verify", FILE, "--json").out
