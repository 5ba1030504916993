"""Seeds of one-time codes as the store keeps them: encrypted with a key that is not in the database."""

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter.errors import NotApprovedError
from plan_adapter.readable import one_line
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

KEY_FILE = "totp.key"
"""In the home folder, readable by its owner alone."""

MAX_KEY_BYTES = 4096


def seal(person: str, seed: str, settings: Settings) -> str:
    """Return the seed of `person`, encrypted; the key is made where there is none yet. Raises NotApprovedError."""
    fernet = _fernet(settings, make=True)
    return fernet.encrypt(json.dumps({"person": person, "seed": seed}).encode()).decode("ascii")


def unseal(person: str, sealed: str, settings: Settings) -> str:
    """Return the seed of `person` that `seal` encrypted; raises NotApprovedError, which never holds a part of it."""
    from cryptography.fernet import InvalidToken

    fernet, who = _fernet(settings, make=False), one_line(person)
    try:
        kept = json.loads(fernet.decrypt(sealed.encode()))
    except InvalidToken:
        raise NotApprovedError(
            f"the one-time code seed of {who} was encrypted with another key than {_place(settings)}: use the key of the machine where "
            f"{who} was enrolled, or enroll again with `plan enroll {who}`"
        ) from None
    if kept["person"] != person:  # somebody who can write the database has copied the seed of another person
        raise NotApprovedError(f"the one-time code seed that the store has for {who} belongs to somebody else")
    return kept["seed"]


def _place(settings: Settings) -> str:
    return "PLAN_ADAPTER_TOTP_KEY" if settings.totp_key is not None else str(_path(settings))


def _path(settings: Settings) -> Path:
    return settings.home.expanduser().absolute() / KEY_FILE


def _fernet(settings: Settings, *, make: bool) -> "Fernet":
    from cryptography.fernet import Fernet

    key = settings.totp_key.get_secret_value() if settings.totp_key is not None else _key_of_file(_path(settings), make=make)
    try:
        return Fernet(key.strip())
    except ValueError:
        raise NotApprovedError(
            f"{_place(settings)} holds no key, which is 32 random bytes in URL-safe base64: `openssl rand -base64 32 | tr +/ -_` makes one"
        ) from None


def _key_of_file(path: Path, *, make: bool) -> str:
    """Return the key in the file at `path`, which is made first where it is missing and `make`; raises NotApprovedError."""
    if make and not path.exists():
        _make(path)
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotApprovedError(
            f"there is no key for the seeds of one-time codes: neither {path} nor PLAN_ADAPTER_TOTP_KEY. Copy it from the machine where "
            "people were enrolled, or enroll here with `plan enroll NAME`"
        ) from None
    except OSError as error:
        raise NotApprovedError(f"the key of one-time codes {path} cannot be read: {error.strerror or error}") from None
    with os.fdopen(opened, "rb") as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise NotApprovedError(f"the key of one-time codes {path} is no file of your own: remove it, and enroll people again")
        if found.st_mode & 0o077:
            raise NotApprovedError(
                f"others may read the key of one-time codes {path}: enroll people again with a new key, or `chmod 600 {path}`"
            )
        return stream.read(MAX_KEY_BYTES).decode("ascii", errors="replace")


def _make(path: Path) -> None:
    """Make the key: in one piece and once, however many processes do so at the same time."""
    from cryptography.fernet import Fernet

    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as stream:
            stream.write(Fernet.generate_key() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):  # another process was first
            os.link(draft, path)
        draft.unlink()
    except OSError as error:
        raise NotApprovedError(f"the key of one-time codes {path} cannot be made: {error.strerror or error}") from None
