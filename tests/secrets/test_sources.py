"""Tests of secret sources: the order of the search, and the errors when a secret is missing."""

import asyncio
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.local import secrets
from plan_adapter.local.secrets import EnvironmentSecrets, MountedSecrets, SecretChain, SecretUnavailableError, secret_chain
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import ExpressionError


class Blocks:
    """A secret source that returns `answers` and records the names asked for."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked = list[str]()

    def place(self, name: str) -> str:
        return f"the block {name}"

    async def secret(self, name: str) -> Any:
        self.asked.append(name)
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answer_sync(name: str) -> str | None:
    return f"from a vault: {name}" if name == "vaulted" else None


async def answer_async(name: str) -> str | None:
    return "from another vault" if name == "later" else None


def answer_error(name: str) -> str:
    raise ValueError(f"canary of {name}")


def install(monkeypatch: pytest.MonkeyPatch, *functions: str) -> None:
    """Register `functions` of this module as entry points."""
    points = [EntryPoint(name, f"{__name__}:{name}", "plan_adapter.secrets") for name in functions]
    monkeypatch.setattr(metadata, "entry_points", lambda group: EntryPoints(points).select(group=group))


async def test_the_first_source_that_has_a_secret_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "answer_sync", "answer_async")
    blocks = Blocks(token="from a block", blocked="from a block", vaulted=None)
    for name in ("token", "mounted"):
        (tmp_path / name).write_text("from a file\n")
    for name in ("TOKEN", "SET"):
        monkeypatch.setenv(f"PLAN_ADAPTER_SECRET_{name}", "from the environment")
    monkeypatch.setenv("PLAN_ADAPTER_SECRETS_DIR", str(tmp_path))
    chain = secret_chain(Settings(), blocks=blocks)
    names = ["token", "mounted", "set", "blocked", "vaulted", "later"]
    assert {name: await chain.value(name) for name in names} == {
        "token": "from a file",
        "mounted": "from a file",
        "set": "from the environment",
        "blocked": "from a block",
        "vaulted": "from a vault: vaulted",
        "later": "from another vault",
    }
    assert blocks.asked == ["blocked", "vaulted", "later"]


async def test_a_missing_secret_names_every_source_that_was_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "answer_sync")
    chain = secret_chain(Settings(secrets_dir=tmp_path), blocks=Blocks())
    with pytest.raises(ExpressionError) as raised:
        await chain.value("db-pass.word")
    assert str(raised.value) == (
        f"there is no secret `db-pass.word`; places checked: the file {tmp_path}/db-pass.word; the environment variable "
        "PLAN_ADAPTER_SECRET_DB_PASS_WORD; the block db-pass.word; the entry points plan_adapter.secrets (answer_sync)"
    )


@pytest.mark.parametrize("name", ["../token", "a/b", "/etc/hostname", "..", ".", "", "a\\b", "a\0b"])
async def test_a_name_cannot_escape_the_folder_of_mounted_secrets(tmp_path: Path, name: str) -> None:
    (tmp_path / "token").write_text("outside")
    (tmp_path / "folder/a").mkdir(parents=True)
    (tmp_path / "folder/a/b").write_text("below")
    assert await MountedSecrets(tmp_path / "folder").secret(name) is None


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"token", "token"),
        (b"token\n", "token"),
        (b"token\r\n", "token"),
        (b" two\nlines\n\n", " two\nlines\n"),
        ("密码密码".encode(), "密码密码"),
    ],
)
async def test_only_the_trailing_newline_of_a_file_is_stripped(tmp_path: Path, content: bytes, value: str) -> None:
    (tmp_path / "token").write_bytes(content)
    assert await SecretChain([MountedSecrets(tmp_path)]).value("token") == value


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"abc", "fewer than 4"), (b"", "fewer than 4"), (b"\xff\xfe\xfd\xfc", "UTF-8"), (b"x" * 70_000, "64 KiB"), (b"abc\0def", "NUL")],
)
async def test_a_value_that_cannot_be_redacted_or_passed_is_refused_without_showing_it(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ExpressionError, match=message) as raised:
        await SecretChain([MountedSecrets(tmp_path)]).value("token")
    assert not isinstance(raised.value, SecretUnavailableError)
    assert "xxx" not in str(raised.value) and "def" not in str(raised.value)


async def test_folders_and_empty_variables_are_not_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").mkdir()
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "")
    assert await MountedSecrets(tmp_path).secret("token") is None
    assert await EnvironmentSecrets().secret("token") is None


async def test_a_value_that_is_not_text_is_refused() -> None:
    with pytest.raises(ExpressionError, match="is a int, not text"):
        await SecretChain([Blocks(token=12345)]).value("token")


async def test_a_failing_source_ends_the_search_and_its_message_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "answer_error", "answer_sync")
    with pytest.raises(SecretUnavailableError) as raised:
        await secret_chain(Settings()).value("vaulted")
    assert "ValueError" in str(raised.value) and "canary" not in str(raised.value)


async def test_a_source_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Blocks):
        async def secret(self, name: str) -> Any:
            await asyncio.Event().wait()

    monkeypatch.setattr(secrets, "ANSWER_SECONDS", 0.01)
    with pytest.raises(SecretUnavailableError, match=r"the block token did not answer within 0\.01 s"):
        await SecretChain([Silent()]).value("token")
