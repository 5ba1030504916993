"""Tests of `copy_to` and `copy_from` with a real server: exact bytes, names and modes, and copies that stop in the middle."""

import asyncio
import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.execution.redactor import Redactor
from plan_adapter.model.errors import ToolError
from plan_adapter.tools import ToolContext
from plan_adapter.tools.copies import copy_from, copy_to, simulate_copy_from, simulate_copy_to
from plan_adapter.tools.remote_programs import receive_program, send_program
from plan_adapter.tools.ssh_connection import reads_program_of
from tests.ssh import HOST, NASTY, SHELLS, SshServer

BYTES = bytes(range(256)) * 1000 + "中文\n".encode()
ABOUT_BYTES = {"size": len(BYTES), "digest": f"sha256:{hashlib.sha256(BYTES).hexdigest()}"}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Return a folder of the host, which is this machine."""
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for files, with the file `local`."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(folder))
    (folder / "local").write_bytes(BYTES)
    return folder


def mode_of(file: Path) -> str:
    return f"{file.stat().st_mode & 0o7777:04o}"


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


# To a host


async def test_a_file_arrives_with_exactly_its_bytes(server: SshServer, context: ToolContext, there: Path) -> None:
    before = server.connections
    to = str(there / "new/folder/file")
    assert await copy_to(HOST, "local", to, context) == {"host": HOST, "path": "local", "to": to, **ABOUT_BYTES}
    assert server.connections - before == 1
    assert Path(to).read_bytes() == BYTES
    assert names_in(there / "new/folder") == ["file"]


async def test_an_empty_file_is_copied(server: SshServer, context: ToolContext, here: Path, there: Path) -> None:
    (here / "empty").touch()
    await copy_to(HOST, "empty", str(there / "empty"), context)
    assert (await copy_from(HOST, str(there / "empty"), "again", context))["size"] == 0
    assert (there / "empty").read_bytes() == (here / "again").read_bytes() == b""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=[] if number % 4 == 0 else pytest.mark.thorough)
        for number, text in enumerate(text for text in NASTY if text and not text.endswith("\n"))
    ],
)
async def test_names_of_any_text_are_copied_both_ways(text: str, server: SshServer, context: ToolContext, here: Path, there: Path) -> None:
    await copy_to(HOST, "local", f"{there}/{text}/{text}", context)
    await copy_from(HOST, f"{there}/{text}/{text}", "back", context)
    assert (here / "back").read_bytes() == (there / text / text).read_bytes() == BYTES


async def test_a_relative_path_is_in_the_home_folder(server: SshServer, context: ToolContext, there: Path) -> None:
    relative = os.path.relpath(there / "-n", Path.home().resolve())
    await copy_to(HOST, "local", relative, context)
    assert (there / "-n").read_bytes() == BYTES


@pytest.mark.parametrize(
    ("old", "mode", "new"),
    [
        (None, None, "0644"),
        (None, "0600", "0600"),
        (None, "755", "0755"),
        (0o400, None, "0400"),
        (0o4750, None, "4750"),
        (0o777, "0640", "0640"),
    ],
)
async def test_the_mode_is_the_given_one_or_that_of_the_old_file(
    old: int | None, mode: str | None, new: str, server: SshServer, context: ToolContext, there: Path
) -> None:
    file = there / "file"
    if old is not None:
        file.write_text("old")
        file.chmod(old)
    await copy_to(HOST, "local", str(file), context, mode=mode)
    assert (mode_of(file), file.read_bytes() == BYTES) == (new, True)


async def test_a_link_is_replaced_and_what_it_names_stays(server: SshServer, context: ToolContext, there: Path) -> None:
    (there / "kept").write_text("kept")
    (there / "link").symlink_to("kept")
    await copy_to(HOST, "local", str(there / "link"), context)
    assert (not (there / "link").is_symlink(), (there / "link").read_bytes() == BYTES, (there / "kept").read_text()) == (True, True, "kept")


async def test_user_port_and_jump_host_are_used(server: SshServer, context: ToolContext, there: Path) -> None:
    before = server.connections
    await copy_to("127.0.0.1", "local", str(there / "file"), context, port=server.port, jump=HOST)
    await copy_from("127.0.0.1", str(there / "file"), "back", context, port=server.port, jump=HOST)
    assert server.connections - before == 4


# What is refused


DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"path": "../there"}, "'../there' does not lead to a file in"),
        ({"path": "no"}, "no cannot be read in .*: No such file or directory"),
        ({"path": "."}, "'.' does not lead to a file"),
        ({"digest": DIGEST}, f"local has the digest {ABOUT_BYTES['digest']}, and not {DIGEST}: it was not copied"),
        ({"to": "~/file"}, "'~/file' is not a path on a host: a relative path is in the home folder, so leave out `~/`"),
        ({"to": "folder/"}, "'folder/' is not the path of a file: name the file, not only its folder"),
        ({"to": ""}, "'' is not the path of a file"),
        ({"to": "a/.."}, "'a/..' is not the path of a file"),
        ({"to": "a\0b"}, "a NUL character"),
        ({"host": "-oProxyCommand=id"}, "'-oProxyCommand=id' cannot be the host"),
    ],
)
async def test_what_cannot_be_copied_is_refused_before_a_connection(
    parameters: dict[str, Any], message: str, server: SshServer, context: ToolContext
) -> None:
    before = server.connections
    with pytest.raises(ToolError, match=message):
        await copy_to(**{"host": HOST, "path": "local", "to": "file", "context": context, **parameters})
    assert server.connections == before


async def test_what_the_host_refuses_is_said(server: SshServer, context: ToolContext, here: Path, there: Path) -> None:
    for path, why in ((there, "it is a folder"), (Path("/proc/no/file"), "mkdir: .*/proc/no.*")):
        with pytest.raises(ToolError, match=rf"^local was not copied to web-1: {why}"):
            await copy_to(HOST, "local", str(path), context)
    for path, why in ((there, "it is not a regular file"), (there / "no", "there is no such file")):
        with pytest.raises(ToolError, match=f"^{path} was not copied from web-1: {why}$"):
            await copy_from(HOST, str(path), "back", context)
    assert (names_in(there), names_in(here)) == ([], ["local"])


async def test_another_file_than_the_expected_one_is_not_kept(server: SshServer, context: ToolContext, here: Path, there: Path) -> None:
    (there / "file").write_text("other")
    with pytest.raises(ToolError, match=rf"has the digest sha256:\w+, and not {DIGEST}: it was not copied"):
        await copy_from(HOST, str(there / "file"), "back", context, digest=DIGEST)
    assert names_in(here) == ["local"]


async def test_a_failed_connection_copies_nothing(
    server: SshServer, context: ToolContext, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", str(server.write_config("changed", known="changed_hosts")))
    with pytest.raises(ToolError, match=r"^local was not copied to web-1: the host key of web-1 has changed"):
        await copy_to(HOST, "local", str(there / "file"), context)
    assert names_in(there) == []


async def test_a_secret_in_a_path_of_a_host_is_refused(server: SshServer, context: ToolContext) -> None:
    redactor = Redactor()
    redactor.add("s3cret-of-the-test")
    with pytest.raises(ToolError, match="they may hold no secret"):
        await copy_to(HOST, "local", "/tmp/s3cret-of-the-test", replace(context, redaction=redactor))


def test_a_dry_run_shows_the_file_and_connects_to_nothing(there: Path) -> None:
    simulated = simulate_copy_to(HOST, "local", f"{there}/file", mode="0600", digest=ABOUT_BYTES["digest"])
    assert simulated.shows == f"copy local ({len(BYTES)} bytes, {ABOUT_BYTES['digest']}) to web-1:{there}/file with mode 0600"
    assert simulated.result == {"host": HOST, "path": "local", "to": f"{there}/file", **ABOUT_BYTES}
    assert simulate_copy_from(HOST, "/etc/hosts", "hosts").shows == "copy web-1:/etc/hosts to hosts"
    with pytest.raises(ToolError, match="does not lead to a file"):
        simulate_copy_from(HOST, "/etc/hosts", "../hosts")


# Copies that stop in the middle


@pytest.fixture
def endless(here: Path) -> Iterator[Path]:
    """Yield a file that is too long to be copied while the test runs. It has no blocks on the disk."""
    with (here / "endless").open("wb") as file:
        file.truncate(1 << 29)
    yield here / "endless"
    (here / "endless").unlink()


@pytest.mark.parametrize("how", ["cancelled", "connection"])
async def test_a_copy_that_stops_in_the_middle_leaves_the_old_file(
    how: str, server: SshServer, context: ToolContext, here: Path, there: Path, endless: Path
) -> None:
    (there / "file").write_text("old")
    copying = asyncio.ensure_future(copy_to(HOST, "endless", str(there / "file"), context))
    await _until_partial(there)
    if how == "cancelled":
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
    else:
        server.end_sessions()
        with pytest.raises(ToolError, match=r"^endless was not copied to web-1: no connection to web-1"):
            await copying
    await _until_clean(there)
    assert (there / "file").read_text() == "old"


async def _until_partial(there: Path) -> None:
    while not any(file.name.startswith(".plan_adapter.") and file.stat().st_size > 3 for file in there.iterdir()):
        await asyncio.sleep(0.01)


async def _until_clean(there: Path) -> None:
    while names_in(there) != ["file"]:
        await asyncio.sleep(0.01)


# Other shells, without a connection


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_the_programs_work_in_any_posix_shell(shell: list[str], there: Path) -> None:
    to = f"{there}/it's 中/file"
    digest = hashlib.sha256(BYTES).hexdigest()
    program = receive_program("call", to, mode=None, digest=digest).encode()
    command = reads_program_of(len(program)).removeprefix("exec sh -c '").removesuffix("'")
    received = subprocess.run([*shell, "-c", command], input=program + BYTES, capture_output=True, check=True)
    sent = subprocess.run([*shell], input=send_program(to).encode(), capture_output=True, check=True)
    assert (received.stdout, received.stderr) == (b"plan_adapter: copied\n", b"")
    assert (sent.stdout == BYTES, sent.stderr.decode()) == (True, f"plan_adapter: {digest}\n")
    assert names_in(there / "it's 中") == ["file"]
