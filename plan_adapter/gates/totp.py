"""One-time codes (TOTP): their encrypted seeds, and checking a code."""

import asyncio
import hmac
import json
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyotp import random_base32
from pyotp.totp import TOTP

from plan_adapter.local.private_files import UnsafePathError, create_once, read_private
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.readable import duration, one_line

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


KEY_FILE = "totp.key"
"""The name of the key file in the home folder. Only its owner can read it."""

MAX_KEY_BYTES = 4096


def encrypt_seed(person: str, seed: str, settings: Settings) -> str:
    """Return the seed of `person`, encrypted. The key is created if there is none. Raise NotApprovedError if it cannot be used."""
    fernet = _fernet(settings, create=True)
    return fernet.encrypt(json.dumps({"person": person, "seed": seed}).encode()).decode("ascii")


def decrypt_seed(person: str, sealed: str, settings: Settings) -> str:
    """Return the seed of `person` that `encrypt_seed` encrypted. Raise NotApprovedError, which never contains a part of it."""
    from cryptography.fernet import InvalidToken  # only for a stored seed

    fernet, who = _fernet(settings, create=False), one_line(person)
    try:
        payload = json.loads(fernet.decrypt(sealed.encode()))
    except InvalidToken:
        raise NotApprovedError(
            f"the one-time code seed of {who} was encrypted with another key than {_key_source(settings)}: use the key of the machine "
            f"where {who} was enrolled, or enroll again with `plan enroll {who}`"
        ) from None
    if payload["person"] != person:  # somebody with access to the database copied another person's seed
        raise NotApprovedError(f"the one-time code seed that the store has for {who} belongs to somebody else")
    return payload["seed"]


def _key_source(settings: Settings) -> str:
    return "PLAN_ADAPTER_TOTP_KEY" if settings.totp_key is not None else str(_key_path(settings))


def _key_path(settings: Settings) -> Path:
    return settings.home.expanduser().absolute() / KEY_FILE


def _fernet(settings: Settings, *, create: bool) -> "Fernet":
    from cryptography.fernet import Fernet  # only for a stored seed

    key = settings.totp_key.get_secret_value() if settings.totp_key is not None else _read_key_file(_key_path(settings), create=create)
    try:
        return Fernet(key.strip())
    except ValueError:
        raise NotApprovedError(
            f"{_key_source(settings)} is not a key (32 random bytes in URL-safe base64): make one with `openssl rand -base64 32 | tr +/ -_`"
        ) from None


def _read_key_file(path: Path, *, create: bool) -> str:
    """Return the key in the file at `path`. With `create`, create it first if missing. Raise NotApprovedError if it cannot be used."""
    if create and not path.exists():
        _create_key_file(path)
    try:
        return read_private(path, MAX_KEY_BYTES).decode("ascii", errors="replace")
    except FileNotFoundError:
        raise NotApprovedError(
            f"the key for one-time codes is missing: neither {path} nor PLAN_ADAPTER_TOTP_KEY has it. Copy it from the machine where "
            "people were enrolled, or enroll them here with `plan enroll NAME`"
        ) from None
    except UnsafePathError as error:
        raise NotApprovedError(
            f"the key for one-time codes is not safe: {error.strerror}; or remove it and enroll people again, with a new key"
        ) from None
    except OSError as error:
        raise NotApprovedError(f"the key for one-time codes {path} cannot be read: {error.strerror or error}") from None


def _create_key_file(path: Path) -> None:
    from cryptography.fernet import Fernet  # only for a stored seed

    try:
        create_once(path, Fernet.generate_key() + b"\n")
    except OSError as error:
        raise NotApprovedError(f"the key for one-time codes {path} cannot be created: {error.strerror or error}") from None


STEP_SECONDS = 30
WINDOW = 1
"""How many steps before and after the current one are accepted: clocks differ, and typing takes time."""

ISSUER = "prefect-plan-adapter"


class CodeStore(Protocol):
    """Stores the encrypted seeds and counts everybody's codes for all processes: `PlanStore.codes`."""

    async def seed(self, person: str) -> str | None:
        """Return the newest seed of `person` as `encrypt_seed` encrypted it, or None if there is none."""
        ...

    async def count_try(self, name: str) -> float:
        """Count a try and return 0.0, or return the seconds until the next try and count nothing.

        A try counts as wrong until `use` follows.
        """
        ...

    async def use(self, name: str, counter: int) -> bool:
        """Return true once ever for each name and counter."""
        ...


def code_key(person: str) -> str:
    """Return the name under which codes and tries of `person` are counted. Two people never share one."""
    return f"totp-{sha256(person.encode(errors='surrogatepass')).hexdigest()}"


def new_seed(person: str) -> tuple[str, str]:
    """Return a new seed and its otpauth URI, for the QR code on the person's phone."""
    seed = random_base32()
    return seed, TOTP(seed).provisioning_uri(name=person, issuer_name=ISSUER)


async def check_code(person: str, code: str, *, codes: CodeStore, settings: Settings, now: float | None = None) -> int:
    """Return the counter of `code` if it is valid for `person` at `now` (seconds since 1970). The code is used up.

    Raises NotApprovedError, which says why the code is refused.
    """
    who, name = one_line(person), code_key(person)
    sealed = await codes.seed(person)
    if sealed is None:
        raise NotApprovedError(f"{who} has no one-time codes: set them up with `plan enroll {who}`")
    totp = TOTP(await asyncio.to_thread(decrypt_seed, person, sealed, settings), interval=STEP_SECONDS)
    if wait := await codes.count_try(name):  # counted before the check, so that parallel tries cannot exceed the limit
        raise NotApprovedError(f"too many wrong codes for {who}: try again in {duration(wait * 1000)}")
    counter = _matching_counter(totp, code, time.time() if now is None else now)
    if counter is None:
        raise NotApprovedError(f"the code of {who} is wrong or has expired")
    if not await codes.use(name, counter):
        raise NotApprovedError(f"this code of {who} was already used: wait for the next one")
    return counter


def _matching_counter(totp: TOTP, code: str, now: float) -> int | None:
    """Return the counter whose code is `code`, or None. Every counter in the window is compared, each in constant time."""
    given = "".join(code.split()).encode(errors="replace")
    present = int(now) // STEP_SECONDS
    found: int | None = None
    for counter in range(max(0, present - WINDOW), present + WINDOW + 1):
        if hmac.compare_digest(totp.generate_otp(counter).encode(), given):
            found = counter
    return found
