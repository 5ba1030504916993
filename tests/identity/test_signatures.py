"""Tests of SSH signatures, made by ssh-keygen with real keys and verified for exactly one name."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from plan_adapter.gates import signatures
from plan_adapter.gates.policy import effective_policy
from plan_adapter.gates.signatures import allowed_signers, default_key, sign, verify_signature
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError
from tests.identity.conftest import Key, make_key

TEXT = "prefect-plan-adapter approval\ndigest: 0123\n安娜 says yes\n"


def refused(text: str, signature: str, allowed: Path, by: str = "ana") -> str:
    with pytest.raises(NotApprovedError) as error:
        verify_signature(text, signature, allowed=allowed, by=by)
    return str(error.value)


def test_a_signature_is_valid_for_its_signer(ana: Key, allowed: Path) -> None:
    assert verify_signature(TEXT, ana.signs(TEXT), allowed=allowed, by="ana") == "ana"


@pytest.mark.parametrize("name", ["安娜", "ana@example.org", "Ana Maria", "-ana", "ana's", "O=Lib,x".replace(",", ";")])
def test_a_name_may_be_written_in_any_language(ana: Key, tmp_path: Path, name: str) -> None:
    allowed = tmp_path / "signers"
    allowed.write_text(f'"{name}" {ana.public}\n', encoding="utf-8")
    assert verify_signature(TEXT, ana.signs(TEXT), allowed=allowed, by=name) == name


def test_a_shared_key_signs_for_either_owner_and_nobody_else(ana: Key, tmp_path: Path) -> None:
    allowed = tmp_path / "signers"
    allowed.write_text(f'ana,bo namespaces="prefect-plan-adapter,git" {ana.public}\ncy {ana.public}\n', encoding="utf-8")
    signature = ana.signs(TEXT)
    assert [verify_signature(TEXT, signature, allowed=allowed, by=name) for name in ("ana", "bo", "cy")] == ["ana", "bo", "cy"]
    assert "does not list for di" in refused(TEXT, signature, allowed, "di") or "not of di" in refused(TEXT, signature, allowed, "di")


def test_a_signature_by_somebody_else_is_refused_with_the_signers_name(bo: Key, allowed: Path) -> None:
    assert "by the key of bo, not of ana" in refused(TEXT, bo.signs(TEXT), allowed)


def test_an_unknown_key_is_refused(tmp_path: Path, allowed: Path) -> None:
    stranger = make_key(tmp_path / "stranger")
    assert refused(TEXT, stranger.signs(TEXT), allowed) == f"the signature is by a key that {allowed} does not list for ana"


@pytest.mark.parametrize("changed", [TEXT + " ", TEXT.replace("yes", "no"), "", TEXT.replace("\n", "\r\n")])
def test_a_changed_text_is_refused(ana: Key, allowed: Path, changed: str) -> None:
    assert "another text" in refused(changed, ana.signs(TEXT), allowed)


@pytest.mark.parametrize(
    "signature",
    ["", "yes", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n", "\0", "签名", "\ud800", "x" * 100_000],
    ids=["empty", "word", "hollow", "nul", "chinese", "surrogate", "long"],
)
def test_a_malformed_signature_is_refused_with_the_reason(allowed: Path, signature: str) -> None:
    assert "signature" in refused(TEXT, signature, allowed)


def test_a_damaged_signature_is_refused(ana: Key, allowed: Path) -> None:
    lines = ana.signs(TEXT).splitlines()
    lines[3] = lines[3][::-1]
    refused(TEXT, "\n".join(lines), allowed)


@pytest.mark.parametrize("option", ['valid-before="20200101"', 'valid-after="20990101"', 'namespaces="git"', "nonsense"])
def test_restrictions_in_the_signers_file_are_enforced(ana: Key, tmp_path: Path, option: str) -> None:
    allowed = tmp_path / "signers"
    allowed.write_text(f"ana {option} {ana.public}\n", encoding="utf-8")
    messages = {
        "valid-before": "has expired",
        "valid-after": "not valid yet",
        "namespaces": "may not sign approvals",
        "nonsense": "line 1 there",
    }
    assert messages[option.split("=", maxsplit=1)[0]] in refused(TEXT, ana.signs(TEXT), allowed)


def test_a_signature_with_another_namespace_is_refused(ana: Key, allowed: Path) -> None:
    made = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", str(ana.path), "-n", "git"], input=TEXT.encode(), capture_output=True, check=True
    )
    assert "made for another purpose" in refused(TEXT, made.stdout.decode(), allowed)


@pytest.mark.parametrize("line", ["*", "a*", "?na", "ana*,bo", '"*"'])
def test_a_name_pattern_in_allowed_signers_proves_nobody(ana: Key, tmp_path: Path, line: str) -> None:
    allowed = tmp_path / "signers"
    allowed.write_text(f"{line} {ana.public} cert-authority\n", encoding="utf-8")
    assert "must spell out each name" in refused(TEXT, ana.signs(TEXT), allowed)


@pytest.mark.parametrize("name", ["*", "", "ana,bo", "ana\nbo", "!bo", "a\0", '"ana"', "ana?"])
def test_an_invalid_name_is_refused_before_ssh_keygen_runs(ana: Key, allowed: Path, name: str) -> None:
    assert "cannot be the name of a key's owner" in refused(TEXT, ana.signs(TEXT), allowed, name)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe garbage\n", b"ana\n", b"ana ssh-ed25519 AAAA\n", b"\0" * 100])
def test_a_corrupt_signers_file_verifies_nobody(ana: Key, allowed: Path, content: bytes) -> None:
    allowed.write_bytes(content)
    assert "does not list for ana" in refused(TEXT, ana.signs(TEXT), allowed)


def test_a_replaced_key_in_the_signers_file_invalidates_the_old_one(ana: Key, bo: Key, allowed: Path) -> None:
    allowed.write_text(f"ana {bo.public}\n", encoding="utf-8")
    assert "does not list for ana" in refused(TEXT, ana.signs(TEXT), allowed)


def test_a_missing_signers_file_is_reported(ana: Key, tmp_path: Path) -> None:
    assert "does not exist: PLAN_ADAPTER_ALLOWED_SIGNERS must name a file" in refused(TEXT, ana.signs(TEXT), tmp_path / "none")
    assert "cannot be read" in refused(TEXT, ana.signs(TEXT), tmp_path)
    with pytest.raises(NotApprovedError, match="PLAN_ADAPTER_ALLOWED_SIGNERS"):
        allowed_signers(effective_policy(Settings()))


def test_a_certificate_is_valid_for_its_principals(ana: Key, bo: Key, tmp_path: Path) -> None:
    own = make_key(tmp_path / "cy")
    subprocess.run(["ssh-keygen", "-q", "-s", str(ana.path), "-I", "id", "-n", "cy", str(own.path.with_suffix(".pub"))], check=True)
    allowed = tmp_path / "signers"
    allowed.write_text(f"* cert-authority {ana.public}\n", encoding="utf-8")
    signature = sign(TEXT, key=tmp_path / "cy-cert.pub")
    assert verify_signature(TEXT, signature, allowed=allowed, by="cy") == "cy"
    refused(TEXT, signature, allowed, "ana")
    refused(TEXT, bo.signs(TEXT), allowed, "bo")
    refused(TEXT, ana.signs(TEXT), allowed, "cy")


def test_ecdsa_and_rsa_keys_can_sign(tmp_path: Path) -> None:
    for kind in ("ecdsa", "rsa"):
        key = make_key(tmp_path / kind, kind=kind)
        allowed = tmp_path / "signers"
        allowed.write_text(f"ana {key.public}\n", encoding="utf-8")
        assert verify_signature(TEXT, key.signs(TEXT), allowed=allowed, by="ana") == "ana"


def test_a_key_that_cannot_sign_is_reported_with_the_reason(tmp_path: Path, ana: Key) -> None:
    with pytest.raises(NotApprovedError, match="there is no SSH key"):
        sign(TEXT, key=tmp_path / "none")
    garbage = tmp_path / "garbage"
    garbage.write_text("no key")
    garbage.chmod(0o600)
    with pytest.raises(NotApprovedError, match="did not sign"):
        sign(TEXT, key=garbage)
    open_to_all = make_key(tmp_path / "open")
    open_to_all.path.chmod(0o644)
    with pytest.raises(NotApprovedError, match="chmod 600"):
        sign(TEXT, key=open_to_all.path)
    lonely = tmp_path / "lonely.pub"
    lonely.write_text(make_key(tmp_path / "gone").public)
    with pytest.raises(NotApprovedError, match="neither in the same folder nor in an agent"):
        sign(TEXT, key=lonely)


def test_a_missing_ssh_keygen_is_reported_with_the_command_that_installs_it(
    ana: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotApprovedError, match="apt install openssh-client"):
        sign(TEXT, key=ana.path)


def test_a_hanging_ssh_keygen_is_killed(ana: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "ssh-keygen"
    hanging.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(signatures, "SIGN_SECONDS", 0.2)
    with pytest.raises(NotApprovedError, match="did not finish within"):
        sign(TEXT, key=ana.path)


def test_ssh_keygen_does_not_inherit_our_credentials(ana: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, spy = tmp_path / "environment", tmp_path / "ssh-keygen"
    spy.write_text(f"#!/bin/sh\n/usr/bin/env > {environment}\nexit 1\n")
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_KEY", "pnu_secret")
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", "postgresql://u:secret@h/d")
    with pytest.raises(NotApprovedError):
        sign(TEXT, key=ana.path)
    assert "secret" not in environment.read_text()


@pytest.mark.parametrize(("typed", "works"), [("open sesame", True), ("open seesaw", False)])
def test_a_passphrase_is_asked_for_on_the_terminal(tmp_path: Path, typed: str, works: bool) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    output, status = sign_at_terminal(key, typed)
    assert "Enter passphrase" in output
    assert os.waitstatus_to_exitcode(status) == (0 if works else 1)
    assert ("BEGIN SSH SIGNATURE" if works else "the passphrase is wrong") in output
    assert typed not in output


def sign_at_terminal(key: Key, typed: str) -> tuple[str, int]:
    """Return the output and wait status of a process that signs with `key` at a terminal."""
    code = f"from pathlib import Path; from plan_adapter.gates.signatures import sign; print(sign('x', key=Path({str(key.path)!r})))"
    child, terminal = pty.fork()
    if child == 0:
        os.environ.pop("SSH_AUTH_SOCK", None)
        os.execv(sys.executable, [sys.executable, "-c", code])
    output = b""
    answered = False
    while True:
        try:
            output += os.read(terminal, 4096)
        except OSError:  # end of output on Linux
            break
        if not answered and b"passphrase" in output:
            os.write(terminal, f"{typed}\n".encode())
            answered = True
    os.close(terminal)
    return output.decode(), os.waitpid(child, 0)[1]


def test_the_signing_key_is_the_configured_one_or_the_first_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NotApprovedError, match="ssh-keygen -t ed25519"):
        default_key(Settings())
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_rsa").touch()
    assert default_key(Settings()) == tmp_path / ".ssh/id_rsa"
    (tmp_path / ".ssh/id_ed25519.pub").touch()
    assert default_key(Settings()) == tmp_path / ".ssh/id_ed25519.pub"
    with pytest.raises(NotApprovedError, match="there is no SSH key"):
        default_key(Settings(signing_key=Path("~/other")))
    (tmp_path / "other").touch()
    assert default_key(Settings(signing_key=Path("~/other"))) == tmp_path / "other"
