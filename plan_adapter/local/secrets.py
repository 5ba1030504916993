"""`SecretSource`, a place that has secrets, and `SecretChain`, which looks up `${{ secrets.name }}` in several places in order."""

import asyncio
import contextlib
import inspect
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from plan_adapter.local.credentials import MAX_BYTES, credential_values, is_worth_redacting
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import ExpressionError

SECRETS_DIR = "PLAN_ADAPTER_SECRETS_DIR"
ENVIRONMENT_PREFIX = "PLAN_ADAPTER_SECRET_"
ENTRY_POINT_GROUP = "plan_adapter.secrets"

MIN_CHARACTERS = 4
"""The fewest characters of a value. Redacting a shorter one would ruin other text in the record."""

ANSWER_SECONDS = 15.0
"""How long one place may take to answer."""


class SecretSource(Protocol):
    """A source of secrets."""

    async def secret(self, name: str) -> str | None:
        """Return the secret called `name`, or None if there is none."""
        ...


class SecretPlace(SecretSource, Protocol):
    """A source that can say where it looks."""

    def place(self, name: str) -> str:
        """Return a phrase for where `secret` looks for `name`."""
        ...


class SecretUnavailableError(ExpressionError):
    """A place gave no answer, so it may or may not have the secret. Another attempt may succeed."""


class UnusableSecretError(ExpressionError):
    """A place has the secret, and its value cannot be used."""


@dataclass(frozen=True, slots=True)
class MountedSecrets:
    """Files in a folder, as Docker and Kubernetes mount them. A newline at the end of a file is not part of the value."""

    folder: Path

    def place(self, name: str) -> str:
        """Return a phrase with the file's path."""
        return f"the file {self.folder / name}" if _is_file_name(name) else f"the files of {self.folder}"

    async def secret(self, name: str) -> str | None:
        """Return the text of the file called `name`, or None if it is missing or the name contains a path."""
        if not _is_file_name(name):
            return None
        try:
            with (self.folder / name).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise SecretUnavailableError(f"{self.place(name)} cannot be read: {error.strerror}") from None
        return content.decode(errors="surrogateescape").removesuffix("\n").removesuffix("\r")

    async def values(self) -> list[str]:
        """Return the text of every readable file."""
        try:
            names = [path.name for path in self.folder.iterdir() if path.is_file()]
        except OSError:
            return []
        found = list[str | None]()
        for name in names:
            with contextlib.suppress(SecretUnavailableError):
                found.append(await self.secret(name))
        return [value for value in found if value is not None]


@dataclass(frozen=True, slots=True)
class EnvironmentSecrets:
    """Variables of this process: `PLAN_ADAPTER_SECRET_DB_PASSWORD` for `db-password`. An empty one counts as missing."""

    def place(self, name: str) -> str:
        """Return a phrase with the variable's name."""
        return f"the environment variable {variable_name(name)}"

    async def secret(self, name: str) -> str | None:
        """Return the value of the variable for `name`, or None."""
        return os.environ.get(variable_name(name)) or None


@dataclass(frozen=True, slots=True)
class EntryPointSecrets:
    """Secrets from installed packages: callables `name -> str | None`, sync or async, in the group `plan_adapter.secrets`."""

    def place(self, name: str) -> str:
        """Return a phrase with the entry points' names."""
        known = ", ".join(sorted(point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP)))
        return f"the entry points {ENTRY_POINT_GROUP} ({known or 'none is installed'})"

    async def secret(self, name: str) -> str | None:
        """Return the value from the first callable that knows `name`. An error in one ends the search."""
        for point in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
            try:
                value = await _call_entry_point(point.load(), name)
            except Exception as error:  # the message is not repeated, because it may contain a secret
                raise SecretUnavailableError(f"the entry point {point.name} ({point.value}) failed: {type(error).__name__}") from None
            if value is not None:
                return value
        return None


@dataclass(frozen=True, slots=True)
class SecretChain:
    """Several places in order. The first one that has a secret wins."""

    places: Sequence[SecretPlace]

    async def value(self, name: str) -> str:
        """Return the value of `secrets.<name>`. Raises the errors of `find`."""
        return (await self.find(name))[1]

    async def locate(self, name: str) -> "SecretLocation":
        """Return where the secret comes from, or why it cannot be used, but never its value."""
        try:
            place, _ = await self.find(name)
        except ExpressionError as error:
            is_known, exists = not isinstance(error, SecretUnavailableError), isinstance(error, UnusableSecretError)
            return SecretLocation(name, None, str(error), is_known=is_known, exists=exists)
        return SecretLocation(name, place.place(name), None, variable=_variable_of(place, name))

    async def find(self, name: str) -> tuple[SecretPlace, str]:
        """Return the place that has the secret, and its value.

        Raises ExpressionError, which names every place but no value, if no place has a usable value. Raises SecretUnavailableError if a
        place gave no answer, because a later place might hold a different value under the same name.
        """
        for place in self.places:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    value = await place.secret(name)
            except TimeoutError:
                message = f"`secrets.{name}`: {place.place(name)} did not answer within {ANSWER_SECONDS:g} s"
                raise SecretUnavailableError(message) from None
            except SecretUnavailableError as error:
                raise SecretUnavailableError(f"`secrets.{name}`: {error}") from None
            if value is not None:
                return place, _require_usable(value, name, place)
        checked = "; ".join(place.place(name) for place in self.places)
        raise ExpressionError(f"there is no secret `{name}`; places checked: {checked or 'none'}")


@dataclass(frozen=True, slots=True)
class SecretLocation:
    """Where a secret was found, without its value, or why it cannot be used."""

    name: str
    place: str | None
    problem: str | None
    is_known: bool = True  # False if a place that gave no answer may have it
    exists: bool = False  # True if a place has it and it cannot be used, because it is too short, for example
    variable: str | None = None  # the environment variable of this process without which it would not be found there


async def visible_secrets(settings: Settings) -> list[str]:
    """Return the secrets that this process can see without knowing their names: mounted files and credentials in its environment."""
    mounted = [] if settings.secrets_dir is None else await MountedSecrets(settings.secrets_dir).values()
    keys = [key.get_secret_value() for key in (settings.model_key, settings.totp_key) if key is not None]
    return [*filter(is_worth_redacting, (*mounted, *keys)), *credential_values(os.environ)]


def secret_chain(settings: Settings, *, blocks: SecretPlace | None = None) -> SecretChain:
    """Return the places of `settings` in order: mounted files, the environment, `blocks` (default: the server's), entry points."""
    mounted: list[SecretPlace] = [] if settings.secrets_dir is None else [MountedSecrets(settings.secrets_dir)]
    return SecretChain([*mounted, EnvironmentSecrets(), *([blocks] if blocks is not None else _server_places), EntryPointSecrets()])


def add_server_place(place: SecretPlace) -> None:
    """Make `place` part of every chain: Prefect's server, which only a room above this one can reach."""
    _server_places[:] = [place]


_server_places: list[SecretPlace] = []


async def known_values(settings: Settings, names: Collection[str], chain: SecretChain | None = None) -> list[str]:
    """Return the values of the secrets `names`, as far as they can be found, and of those that this process can see anyway."""
    chain, found = chain or secret_chain(settings), list[str]()
    for name in sorted(names):
        with contextlib.suppress(ExpressionError):  # a missing secret has no value that could be recorded
            found.append(await chain.value(name))
    return [*found, *await visible_secrets(settings)]


def _is_file_name(name: str) -> bool:
    return "/" not in name and "\\" not in name and "\0" not in name and name not in ("", ".", "..")


def variable_name(name: str) -> str:
    """Return the environment variable that may have the secret called `name`."""
    return ENVIRONMENT_PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


def _variable_of(place: SecretPlace, name: str) -> str | None:
    match place:
        case MountedSecrets():
            return SECRETS_DIR
        case EnvironmentSecrets():
            return variable_name(name)
        case _:
            return None


async def _call_entry_point(function: Any, name: str) -> str | None:
    if inspect.iscoroutinefunction(function):
        return await function(name)
    answer = await asyncio.to_thread(function, name)
    return await answer if inspect.isawaitable(answer) else answer


def _require_usable(value: object, name: str, place: SecretPlace) -> str:
    what = f"`secrets.{name}` from {place.place(name)}"
    if not isinstance(value, str):
        raise UnusableSecretError(f"{what} is a {type(value).__name__}, not text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UnusableSecretError(f"{what} is not UTF-8 text") from None
    if len(value) < MIN_CHARACTERS:
        raise UnusableSecretError(f"{what} has fewer than {MIN_CHARACTERS} characters, too short to be redacted in the record")
    if size > MAX_BYTES or "\0" in value:
        raise UnusableSecretError(f"{what} is larger than {MAX_BYTES // 1024} KiB" if size > MAX_BYTES else f"{what} contains a NUL")
    return value
