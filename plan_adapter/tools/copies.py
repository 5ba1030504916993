"""`copy_to` and `copy_from`: a file to or from a host, through this machine's OpenSSH, whole or not at all."""

import hashlib
from collections.abc import Iterator
from typing import IO, Annotated, TypeAlias

from pydantic import Field

from plan_adapter.model.errors import ToolError
from plan_adapter.tools.files import WrittenFile, cannot, open_below, replace_below, resolve_path
from plan_adapter.tools.probing import Simulation
from plan_adapter.tools.processes import CHUNK, CommandResult
from plan_adapter.tools.remote_calls import check_host
from plan_adapter.tools.remote_programs import receive_program, send_program
from plan_adapter.tools.ssh_connection import LOST, READS_PROGRAM, Port, SshConnection, Target, answer_in, reads_program_of, refuse_secrets
from plan_adapter.tools.tool import ToolContext, tool

Digest: TypeAlias = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None
Mode: TypeAlias = Annotated[str, Field(pattern=r"^[0-7]{3,4}$")] | None


class CopiedFile(WrittenFile):
    """A file that was copied from `path` to `to`."""

    host: str
    to: str


def simulate_copy_to(host: str, path: str, to: str, mode: Mode = None, digest: Digest = None) -> Simulation:
    """Show which file `copy_to` would copy, and return what it would."""
    root, place = resolve_path(path)
    with cannot(f"{path} cannot be read in {root}"), open_below(root, place) as file:
        size, found = _measure(file)
    _require(path, found, digest)
    _require_path(to)
    shown = f"copy {path} ({size} bytes, {found}) to {host}:{to}" + (f" with mode {mode}" if mode is not None else "")
    return Simulation(shown, {"host": host, "path": path, "to": to, "size": size, "digest": found})


@tool(effect="idempotent_write", simulate=simulate_copy_to, preflight=check_host, public_parameters=("host", "to", "user", "jump"))
async def copy_to(
    host: str,
    path: str,
    to: str,
    context: ToolContext,
    mode: Mode = None,
    digest: Digest = None,
    user: str | None = None,
    port: Port = None,
    jump: str | None = None,
) -> CopiedFile:
    """Copy a file to a host, through this machine's OpenSSH. The result is {host, path, to, size, digest}.

    The host sees the old file or the new one, never a part of it: its digest is checked there before it gets its name. Missing folders are
    created, and a link at its place is replaced. Nothing is asked: the host has to be in known_hosts, and accept a key of this account.

    Args:
        host: A host name, an address, or a name in the SSH config.
        path: A path in the files folder (`PLAN_ADAPTER_FILES_ROOT`; default: the current folder).
        to: The path of the file on the host. A relative one is in the home folder of the account.
        mode: Its permissions, as in "0644". Default: those of the file that it replaces, or else those of a new file.
        digest: What the file has to be, as `sha256:` and 64 hexadecimal digits. Another file is not copied.
        user: The account on the host.
        port: The port of its SSH server.
        jump: The host to connect through, as for `ssh -J`.
    """
    connection = _connect(Target(host, user, port, jump), to, context)
    root, place = resolve_path(path)
    with cannot(f"{path} cannot be read in {root}"), open_below(root, place) as file:
        size, found = _measure(file)
        _require(path, found, digest)
        name = f"{context.idempotency_key}-{context.attempt}"
        program = receive_program(name, to, mode=mode, digest=found.removeprefix("sha256:")).encode()
        command = reads_program_of(len(program))
        result = await connection.transfer(command, _chunks(program, file))
    if result.exit_code != 0 or answer_in(result.stdout) != ["copied"]:
        raise ToolError(f"{path} was not copied to {host}: {_why_failed(connection, result)}")
    return {"host": host, "path": path, "to": to, "size": size, "digest": found}


def simulate_copy_from(host: str, path: str, to: str) -> Simulation:
    """Show which file `copy_from` would copy. What is in it is not known."""
    _require_path(path)
    resolve_path(to)
    return Simulation(f"copy {host}:{path} to {to}")


@tool(effect="idempotent_write", simulate=simulate_copy_from, preflight=check_host, public_parameters=("host", "path", "user", "jump"))
async def copy_from(
    host: str,
    path: str,
    to: str,
    context: ToolContext,
    digest: Digest = None,
    user: str | None = None,
    port: Port = None,
    jump: str | None = None,
) -> CopiedFile:
    """Copy a file from a host, through this machine's OpenSSH. The result is {host, path, to, size, digest}.

    Readers see the old file or the new one, never a part of it: its digest is checked before it gets its name. Missing folders are created.
    Nothing is asked: the host has to be in known_hosts, and accept a key of this account.

    Args:
        host: A host name, an address, or a name in the SSH config.
        path: The path of the file on the host. A relative one is in the home folder of the account.
        to: A path in the files folder (`PLAN_ADAPTER_FILES_ROOT`; default: the current folder).
        digest: What the file has to be, as `sha256:` and 64 hexadecimal digits. Another file is not kept.
        user: The account on the host.
        port: The port of its SSH server.
        jump: The host to connect through, as for `ssh -J`.
    """
    connection = _connect(Target(host, user, port, jump), path, context)
    root, place = resolve_path(to)
    with cannot(f"{to} cannot be written in {root}"), replace_below(root, place) as file:
        result = await connection.transfer(READS_PROGRAM, [send_program(path).encode()], stdout=file)
        answer = answer_in(result.stderr)
        if result.exit_code != 0 or not answer:
            raise ToolError(f"{path} was not copied from {host}: {_why_failed(connection, result)}")
        size, found = _measure(file)
        if found != f"sha256:{answer[0]}":
            raise ToolError(f"{path} was not copied from {host}: it changed in the meantime, or did not arrive whole")
        _require(path, found, digest)
    return {"host": host, "path": path, "to": to, "size": size, "digest": found}


def _connect(target: Target, remote_path: str, context: ToolContext) -> SshConnection:
    refuse_secrets([remote_path], context)  # `mv` and `cat` have it in their argv
    _require_path(remote_path)
    return SshConnection(target, context)


def _require_path(path: str) -> None:
    """Raise ToolError for the path on a host that would not lead where people expect."""
    if path.startswith("~"):
        raise ToolError(f"{path!r} is not a path on a host: a relative path is in the home folder, so leave out `~/`")
    if not path.rpartition("/")[2] or path.endswith(("/.", "/..")):
        raise ToolError(f"{path!r} is not the path of a file: name the file, not only its folder")


def _require(path: str, found: str, digest: Digest) -> None:
    if digest not in (None, found):
        raise ToolError(f"{path} has the digest {found}, and not {digest}: it was not copied")


def _measure(file: IO[bytes]) -> tuple[int, str]:
    """Return the size of an open file and the digest of its content."""
    digest = hashlib.sha256()
    for chunk in _chunks(b"", file):
        digest.update(chunk)
    return file.tell(), f"sha256:{digest.hexdigest()}"


def _chunks(start: bytes, file: IO[bytes]) -> Iterator[bytes]:
    """Yield `start` and the content of a file."""
    yield start
    file.seek(0)
    while chunk := file.read(CHUNK):
        yield chunk


def _why_failed(connection: SshConnection, result: CommandResult) -> str:
    printed = " ".join(result.stderr.split())
    return printed if result.exit_code not in (0, LOST) and printed else connection.why_failed(result)
