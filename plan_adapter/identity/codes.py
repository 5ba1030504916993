"""One-time codes (TOTP, RFC 6238: 30 seconds, 6 digits), as an approver's phone shows them."""

import hmac
import re
import time
from hashlib import sha256
from typing import Protocol

from pyotp import random_base32
from pyotp.totp import TOTP

from plan_adapter.errors import NotApprovedError
from plan_adapter.readable import duration, one_line
from plan_adapter.secrets import SecretSource

STEP_SECONDS = 30
WINDOW = 1
"""Steps before and after the present one whose codes count: clocks differ, and typing takes time."""

ISSUER = "prefect-plan-adapter"
BLOCK_PREFIX = "plan-totp"

_BLOCK_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class CodeStore(Protocol):
    """What keeps count of the codes of everybody, for all processes: a `PlanStore`."""

    async def try_code(self, name: str) -> float:
        """Count a try as a wrong one until `use_code` follows, and return 0.0; else the seconds until the next try, and count nothing."""
        ...

    async def use_code(self, name: str, counter: int) -> bool:
        """Return true once for each name and counter, ever."""
        ...


def block_name(person: str) -> str:
    """Return the name of the Secret block that holds the secret of `person`; two people never share one.

    Prefect allows small letters, digits and dashes: a name that has others is told by its digest, behind two dashes, which no plain
    name has.
    """
    if len(person) <= 64 and _BLOCK_NAME.fullmatch(person):
        return f"{BLOCK_PREFIX}-{person}"
    kept = re.sub(r"[^a-z0-9]+", "-", person.lower()).strip("-")[:32].strip("-")
    digest = sha256(person.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{BLOCK_PREFIX}--{kept}-{digest}" if kept else f"{BLOCK_PREFIX}--{digest}"


def new_secret(person: str) -> tuple[str, str]:
    """Return a new secret, for a Secret block called `block_name(person)`, and its otpauth URI, for their phone's QR code."""
    secret = random_base32()
    return secret, TOTP(secret).provisioning_uri(name=person, issuer_name=ISSUER)


async def check(person: str, code: str, *, secrets: SecretSource | None, codes: CodeStore, now: float | None = None) -> int:
    """Return the counter of `code`, which is the one of `person` at `now` (seconds since 1970) and is used up hereby.

    `secrets` keeps their secret under `block_name(person)`.
    Raises NotApprovedError, which says why it does not count.
    """
    who, name = one_line(person), block_name(person)
    if secrets is None:
        raise NotApprovedError("one-time codes need a Prefect server, whose Secret blocks keep their secrets; sign with an SSH key instead")
    secret = await secrets.secret(name)
    if secret is None:
        raise NotApprovedError(f"no secret of one-time codes is kept for {who}: it would be the Secret block `{name}`")
    totp = _totp(secret, who=who, name=name)
    if wait := await codes.try_code(name):  # counted before it is looked at, so that no more tries than that are made at once
        raise NotApprovedError(f"too many wrong codes for {who}: try again in {duration(wait * 1000)}")
    counter = _counter(totp, code, time.time() if now is None else now)
    if counter is None:
        raise NotApprovedError(f"the code of {who} is wrong, or its 30 seconds are over")
    if not await codes.use_code(name, counter):
        raise NotApprovedError(f"this code of {who} was used before: wait for the next one")
    return counter


def _totp(secret: str, *, who: str, name: str) -> TOTP:
    try:
        return TOTP("".join(secret.split()).rstrip("="), interval=STEP_SECONDS)
    except ValueError:  # the message of the library must not be shown: it may hold a part of the secret
        raise NotApprovedError(f"what the Secret block `{name}` keeps for {who} is no secret of one-time codes: base32, 112 bits") from None


def _counter(totp: TOTP, code: str, now: float) -> int | None:
    """Return the counter whose code is `code`; every one in the window is compared, each in constant time."""
    given = "".join(code.split()).encode(errors="replace")
    present = int(now) // STEP_SECONDS
    found: int | None = None
    for counter in range(max(0, present - WINDOW), present + WINDOW + 1):
        if hmac.compare_digest(totp.generate_otp(counter).encode(), given):
            found = counter
    return found
