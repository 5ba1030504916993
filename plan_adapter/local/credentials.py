"""Keeps this package's and Prefect's credentials in the environment away from commands, and finds their values to redact them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

MIN_CHARACTERS = 8
"""The fewest characters of a value to redact if no plan names it. A shorter value may be a common word."""

MAX_BYTES = 64 * 1024

_SECRET_VARIABLE = re.compile(
    r"PLAN_ADAPTER_(?:SECRET_.*|MODEL_KEY|TOTP_KEY|DESK_.*(?:SECRET|TOKEN|WEBHOOK|PASSWORD))|OPENAI_.*(?:KEY|SECRET|TOKEN)"
    r"|PREFECT_.*(?:KEY|PASSWORD|AUTH_STRING|SECRET|TOKEN)|PREFECT_CLIENT_CUSTOM_HEADERS"
)
"""Variables whose value is a secret."""

_URL_VARIABLE = re.compile(r"(?:PLAN_ADAPTER|PREFECT|OPENAI)_.*URL")
"""Variables whose value is a URL, which may contain a password."""

_DATABASE_VARIABLE = re.compile(r"PLAN_ADAPTER_DATABASE_URL|PREFECT_(?:API|SERVER)_(?:DATABASE_.*|DOCKET_URL)")
_OWN_VARIABLE = re.compile(r"PLAN_ADAPTER_.*|OPENAI_.*")


def environment_without_credentials(environment: Mapping[str, str], *, keeps_settings: bool = False) -> dict[str, str]:
    """Return `environment` for a command: without PLAN_ADAPTER_*, OPENAI_* and Prefect's credentials.

    All other variables belong to the user and stay: PATH, HOME, AWS_ACCESS_KEY_ID. With `keeps_settings`, for a process that runs this
    package's code, the package's variables without credentials stay as well.
    """
    return {name: value for name, value in environment.items() if not _is_withheld(name.upper(), value, keeps_settings)}


def credential_values(environment: Mapping[str, str]) -> list[str]:
    """Return the values of all credentials in `environment` that are long enough to redact, including URLs with their passwords."""
    return [value for name, text in environment.items() for value in _credentials_in(name.upper(), text) if is_worth_redacting(value)]


def is_worth_redacting(value: str) -> bool:
    """Return whether to redact a value that no plan names. Redacting a short one would remove common words from all text."""
    try:
        return len(value) >= MIN_CHARACTERS and len(value.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False


# Prefect and this package's settings ignore the case of variable names, so these functions take names in upper case.


def _is_withheld(name: str, value: str, keeps_settings: bool) -> bool:
    is_credential = (
        _SECRET_VARIABLE.fullmatch(name) or _DATABASE_VARIABLE.fullmatch(name) or (_URL_VARIABLE.fullmatch(name) and any(_passwords(value)))
    )
    return bool(is_credential or (not keeps_settings and _OWN_VARIABLE.fullmatch(name)))


def _credentials_in(name: str, text: str) -> Iterator[str]:
    if _SECRET_VARIABLE.fullmatch(name):
        yield text
        if name.endswith("AUTH_STRING"):
            yield text.partition(":")[2]  # user:password
        elif name.endswith("HEADERS"):
            yield from _header_values(text)
    elif _URL_VARIABLE.fullmatch(name) and (passwords := [*_passwords(text)]):
        yield from (text, *passwords)


def _passwords(url: str) -> Iterator[str]:
    """Yield the passwords of a URL, as written and decoded."""
    try:
        parts = urlsplit(url)
        in_query = [value for name, value in parse_qsl(parts.query) if "password" in name.lower()]
    except ValueError:
        return
    written = parts.netloc.rpartition("@")[0].partition(":")[2]
    yield from dict.fromkeys(word for word in (written, unquote(written), *in_query) if word)


def _header_values(text: str) -> Iterator[str]:
    """Yield the values of headers written as JSON, and the part after their scheme: `Bearer …`."""
    try:
        headers: Any = json.loads(text)
    except ValueError:
        return
    for value in cast("dict[str, object]", headers).values() if isinstance(headers, dict) else ():
        yield from (str(value), str(value).rpartition(" ")[2])
