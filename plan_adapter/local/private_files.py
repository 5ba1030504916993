"""Folders and files that only this account can use: modes 0700 and 0600 whatever the umask, and errors for paths that others could change.

Modes and owners are checked, as sshd does with `StrictModes`. Access control lists are not.
"""

import errno
import grp
import os
import pwd
import secrets
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_LINKS = 40
"""The most symbolic links on the path to a folder."""


class UnsafePathError(PermissionError):
    """Other users could read or replace the content of a path. `strerror` says where, why and what to type."""

    def __init__(self, path: Path, message: str) -> None:
        """Store path and message as in any OSError."""
        super().__init__(errno.EPERM, message, str(path))


def check_folder(path: Path) -> None:
    """Raise UnsafePathError unless only this account can change the folder `path`. A missing folder is accepted."""
    path = path.absolute()
    _check_parents(path)
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(found.st_mode):
        real = path.resolve()
        raise UnsafePathError(path, f"{path} is a symbolic link: set PLAN_ADAPTER_HOME so that it names the folder itself ({real})")
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))
    if found.st_uid != os.geteuid():
        raise UnsafePathError(path, f"{path} belongs to {_account_name(found.st_uid)}: set PLAN_ADAPTER_HOME to a folder of your own")
    if _others_may_write(found):
        raise UnsafePathError(path, _writable_message(path, found))


def make_folder(path: Path) -> None:
    """Create the folder `path` and its missing parents with mode 0700. Remove others' access to an existing one of this account.

    Raises UnsafePathError as `check_folder` does.
    """
    path = path.absolute()
    check_folder(path)
    for folder in (*reversed(path.parents), path):
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:  # it exists, or its parent does not allow it
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(folder)) if folder.exists() else error  # noqa: B904
        else:
            folder.chmod(0o700)  # the umask may have removed more
    check_folder(path)  # again, because another process may have created it first
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def open_file(path: Path, flags: int) -> int:
    """Return a descriptor of the file `path`. Create a missing file with mode 0600, and remove others' access to an existing one."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o600:
        os.fchmod(descriptor, 0o600)
    return descriptor


def create_once(path: Path, content: bytes) -> None:
    """Write a new file that only this account can read. If it exists, or another process creates it first, that one stays."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read_private(path: Path, limit: int) -> bytes:
    """Return up to `limit` bytes of a file that only this account can read.

    Raises UnsafePathError for any other file, and OSError if it cannot be read.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise UnsafePathError(path, f"{path} is not a regular file of this account")
        if found.st_mode & 0o077:
            raise UnsafePathError(path, f"other users can read {path}: `chmod 600 {shlex.quote(str(path))}`")
        return stream.read(limit)


def tighten_file(path: Path) -> None:
    """Remove others' read access to the file `path`. Raises UnsafePathError if others can write to it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if _others_may_write(found):
        raise UnsafePathError(path, _writable_message(path, found))
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        path.chmod(0o600)


def refuse_world_writable(path: Path) -> None:
    """Raise UnsafePathError for a file that is writable by everyone."""
    found = path.stat()
    if found.st_mode & stat.S_IWOTH:
        raise UnsafePathError(path, _writable_message(path, found))


def _check_parents(path: Path) -> None:
    """Raise UnsafePathError if another user could replace `path` or one of its parents."""
    trusted = _trusted_uids()
    for folder, entry in _path_entries(path):
        found = folder.stat()
        if found.st_uid not in trusted:
            raise UnsafePathError(
                folder,
                f"{folder} belongs to {_account_name(found.st_uid)}, who could replace {path} with another folder: "
                "set PLAN_ADAPTER_HOME to a folder elsewhere",
            )
        if not _others_may_write(found):
            continue
        if found.st_mode & stat.S_ISVTX:  # as in /tmp: only its owner can move an entry
            owner = entry.lstat().st_uid if os.path.lexists(entry) else os.geteuid()
            if owner in trusted:
                continue
            raise UnsafePathError(entry, f"{entry} belongs to {_account_name(owner)}: set PLAN_ADAPTER_HOME to a folder of your own")
        raise UnsafePathError(
            folder,
            f"other users may write to {folder} (mode {stat.S_IMODE(found.st_mode):04o}), and could replace {path} with another "
            f"folder: type `chmod go-w {shlex.quote(str(folder))}`, or set PLAN_ADAPTER_HOME to a folder elsewhere",
        )


def _path_entries(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each existing folder above `path`, with its entry that leads to `path`. Symbolic links above `path` are followed."""
    here, names, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    while names:
        entry = here / names.pop()
        yield here, entry
        if not names:
            return
        if entry.is_symlink() and (links := links + 1) <= MAX_LINKS:
            target = entry.readlink()
            here = Path(target.anchor) if target.is_absolute() else here
            names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        elif entry.name == "..":
            here = here.parent
        elif entry.is_dir():
            here = entry
        else:
            return  # missing or not a folder: creating it raises the error


def _others_may_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and _has_other_members(found.st_gid)


def _has_other_members(gid: int) -> bool:
    """Return whether the group has members besides this account and root. Many systems give each user a group of its own."""
    trusted, accounts = _trusted_uids(), pwd.getpwall()
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        members = set[str]()
    members -= {account.pw_name for account in accounts if account.pw_uid in trusted}
    return bool(members) or any(account.pw_gid == gid and account.pw_uid not in trusted for account in accounts)


def _trusted_uids() -> set[int]:
    return {0, os.geteuid(), Path("/").stat().st_uid}  # in a user namespace root may have no UID; then the owner of / counts


def _account_name(uid: int) -> str:
    try:
        return f"the account {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the account {uid}"


def _writable_message(path: Path, found: os.stat_result) -> str:
    mode, closed = stat.S_IMODE(found.st_mode), "700" if stat.S_ISDIR(found.st_mode) else "600"
    return (
        f"other users may write to {path} (mode {mode:04o}), so its content may not be yours: check it, "
        f"then type `chmod {closed} {shlex.quote(str(path))}`"
    )
