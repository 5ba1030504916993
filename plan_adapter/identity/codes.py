"""One-time codes (TOTP, RFC 6238: 30 seconds, 6 digits), as an approver's phone shows them."""

import asyncio
import hmac
import time
from hashlib import sha256
from typing import Protocol

from pyotp import random_base32
from pyotp.totp import TOTP

from plan_adapter.errors import NotApprovedError
from plan_adapter.identity.seeds import unseal
from plan_adapter.readable import duration, one_line
from plan_adapter.settings import Settings

STEP_SECONDS = 30
WINDOW = 1
"""Steps before and after the present one whose codes count: clocks differ, and typing takes time."""

ISSUER = "prefect-plan-adapter"


class CodeStore(Protocol):
    """What keeps the encrypted seeds, and counts the codes of everybody, for all processes: a `PlanStore`."""

    async def totp_seed(self, person: str) -> str | None:
        """Return the newest seed of `person` as `seal` encrypted it, None where there is none."""
        ...

    async def try_code(self, name: str) -> float:
        """Count a try as a wrong one until `use_code` follows, and return 0.0; else the seconds until the next try, and count nothing."""
        ...

    async def use_code(self, name: str, counter: int) -> bool:
        """Return true once for each name and counter, ever."""
        ...


def code_key(person: str) -> str:
    """Return the name under which the codes and tries of `person` are counted; two people never share one."""
    return f"totp-{sha256(person.encode(errors='surrogatepass')).hexdigest()}"


def new_seed(person: str) -> tuple[str, str]:
    """Return a new seed and its otpauth URI, for the QR code of their phone."""
    seed = random_base32()
    return seed, TOTP(seed).provisioning_uri(name=person, issuer_name=ISSUER)


async def check(person: str, code: str, *, codes: CodeStore, settings: Settings, now: float | None = None) -> int:
    """Return the counter of `code`, which is the one of `person` at `now` (seconds since 1970) and is used up hereby.

    Raises NotApprovedError, which says why it does not count.
    """
    who, name = one_line(person), code_key(person)
    sealed = await codes.totp_seed(person)
    if sealed is None:
        raise NotApprovedError(f"{who} has no one-time codes: `plan enroll {who}` makes them")
    totp = TOTP(await asyncio.to_thread(unseal, person, sealed, settings), interval=STEP_SECONDS)
    if wait := await codes.try_code(name):  # counted before it is looked at, so that no more tries than that are made at once
        raise NotApprovedError(f"too many wrong codes for {who}: try again in {duration(wait * 1000)}")
    counter = _counter(totp, code, time.time() if now is None else now)
    if counter is None:
        raise NotApprovedError(f"the code of {who} is wrong, or its 30 seconds are over")
    if not await codes.use_code(name, counter):
        raise NotApprovedError(f"this code of {who} was used before: wait for the next one")
    return counter


def _counter(totp: TOTP, code: str, now: float) -> int | None:
    """Return the counter whose code is `code`; every one in the window is compared, each in constant time."""
    given = "".join(code.split()).encode(errors="replace")
    present = int(now) // STEP_SECONDS
    found: int | None = None
    for counter in range(max(0, present - WINDOW), present + WINDOW + 1):
        if hmac.compare_digest(totp.generate_otp(counter).encode(), given):
            found = counter
    return found
