"""Tests of sealed seeds of one-time codes: encrypted with a private key file and bound to their person."""

import base64
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from plan_adapter.gates.totp import KEY_FILE, decrypt_seed, encrypt_seed
from plan_adapter.local.secrets import visible_secrets
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError
from tests.processes import Program

SEED = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    """Settings with an empty home."""
    return Settings(home=tmp_path / "home")


def refusal(settings: Settings, sealed: str, person: str = "ana") -> str:
    with pytest.raises(NotApprovedError) as error:
        decrypt_seed(person, sealed, settings)
    assert SEED not in str(error.value)
    return str(error.value)


def test_a_seed_can_be_opened_only_for_its_person(home: Settings) -> None:
    sealed = encrypt_seed("安娜", SEED, home)
    assert SEED not in sealed and SEED.encode() not in base64.urlsafe_b64decode(sealed)
    assert decrypt_seed("安娜", sealed, home) == SEED
    assert "belongs to somebody else" in refusal(home, sealed, "ana")


def test_the_key_is_created_on_first_use_and_only_its_owner_can_read_it(home: Settings) -> None:
    before = os.umask(0)
    try:
        sealed = encrypt_seed("ana", SEED, home)
    finally:
        os.umask(before)
    key = home.home / KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [path.name for path in home.home.iterdir()] == [KEY_FILE]
    assert decrypt_seed("ana", sealed, home) == SEED


def test_concurrent_processes_create_one_key(home: Settings) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from plan_adapter.gates.totp import encrypt_seed; from plan_adapter.local.settings import Settings\n"
        f"print(encrypt_seed('ana', {SEED!r}, Settings(home=Path(sys.argv[1]))))"
    )
    processes = [Program(code, home.home, stdout=subprocess.PIPE) for _ in range(4)]
    sealed = [process.communicate()[0].strip() for process in processes]
    assert [decrypt_seed("ana", seed, home) for seed in sealed] == [SEED] * 4


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_key_that_others_can_access_is_refused(home: Settings, mode: int) -> None:
    sealed = encrypt_seed("ana", SEED, home)
    (home.home / KEY_FILE).chmod(mode)
    assert "other users can read" in refusal(home, sealed)
    with pytest.raises(NotApprovedError, match="chmod 600"):
        encrypt_seed("bo", SEED, home)


def test_a_key_that_is_a_symlink_or_a_pipe_is_refused(home: Settings, tmp_path: Path) -> None:
    sealed = encrypt_seed("ana", SEED, home)
    key = home.home / KEY_FILE
    key.rename(tmp_path / "elsewhere")
    key.symlink_to(tmp_path / "elsewhere")
    assert "cannot be read" in refusal(home, sealed)
    key.unlink()
    os.mkfifo(key, 0o600)
    assert "not a regular file of this account" in refusal(home, sealed)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"too short", SEED.encode(), b"a" * 5000])
def test_an_invalid_key_file_is_reported_without_its_content(home: Settings, content: bytes) -> None:
    sealed = encrypt_seed("ana", SEED, home)
    (home.home / KEY_FILE).write_bytes(content)
    assert "is not a key" in refusal(home, sealed)


def test_a_missing_or_different_key_is_reported_with_what_to_do(home: Settings, tmp_path: Path) -> None:
    sealed = encrypt_seed("ana", SEED, home)
    assert "the key for one-time codes is missing" in refusal(Settings(home=tmp_path / "other"), sealed)
    other = Settings(home=home.home, totp_key=SecretStr(Fernet.generate_key().decode()))
    message = refusal(other, sealed)
    assert "another key than PLAN_ADAPTER_TOTP_KEY" in message and "plan enroll ana" in message


async def test_the_setting_replaces_the_file_and_is_masked(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Fernet.generate_key().decode()
    monkeypatch.setenv("PLAN_ADAPTER_TOTP_KEY", key)
    settings = Settings(home=home.home)
    assert decrypt_seed("ana", encrypt_seed("ana", SEED, settings), settings) == SEED
    assert not home.home.exists()
    assert key not in repr(settings) and key not in json.dumps(settings.model_dump(mode="json"))
    assert key in await visible_secrets(settings)
    monkeypatch.setenv("PLAN_ADAPTER_TOTP_KEY", "no key")
    with pytest.raises(NotApprovedError, match="PLAN_ADAPTER_TOTP_KEY is not a key"):
        encrypt_seed("ana", SEED, Settings(home=home.home))
