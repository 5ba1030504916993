"""`SecretSource`, and `SecretChain`: the places where the value of `${{ secrets.name }}` is looked for, one after the other."""

import asyncio
import contextlib
import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from plan_adapter.credentials import LARGEST_BYTES, credential_values, is_worth_hiding
from plan_adapter.errors import ExpressionError
from plan_adapter.settings import Settings

ENVIRONMENT_PREFIX = "PLAN_ADAPTER_SECRET_"
ENTRY_POINT_GROUP = "plan_adapter.secrets"

SHORTEST = 4
"""Characters of a value: a shorter one could not be hidden in the record without ruining all other text."""

ANSWER_SECONDS = 15.0
"""How long one place may take to answer."""


class SecretSource(Protocol):
    """Where secrets are kept."""

    async def secret(self, name: str) -> str | None:
        """Return the secret kept as `name`, None where there is none."""
        ...


class SecretPlace(SecretSource, Protocol):
    """A source that can say where it looks."""

    def place(self, name: str) -> str:
        """Return in words where `secret` looks for `name`."""
        ...


class SecretUnavailableError(ExpressionError):
    """A place could not be asked, so that nobody knows whether it has the secret; another try may come through."""


@dataclass(frozen=True, slots=True)
class MountedSecrets:
    """Files of a folder, as Docker and Kubernetes mount them; the newline at the end of a file is not part of the value."""

    folder: Path

    def place(self, name: str) -> str:
        """Return the file's path, in words."""
        return f"the file {self.folder / name}" if _is_file_name(name) else f"the files of {self.folder}"

    async def secret(self, name: str) -> str | None:
        """Return the text of the file called `name`; None for a name with path parts."""
        if not _is_file_name(name):
            return None
        try:
            with (self.folder / name).open("rb") as file:
                content = file.read(LARGEST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise SecretUnavailableError(f"{self.place(name)} cannot be read: {error.strerror}") from None
        return content.decode(errors="surrogateescape").removesuffix("\n").removesuffix("\r")

    async def values(self) -> list[str]:
        """Return the text of every file that can be read."""
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
    """Variables of this process: `PLAN_ADAPTER_SECRET_DB_PASSWORD` for `db-password`; an empty one counts as none."""

    def place(self, name: str) -> str:
        """Return the variable's name, in words."""
        return f"the environment variable {_variable(name)}"

    async def secret(self, name: str) -> str | None:
        """Return the variable of `name`."""
        return os.environ.get(_variable(name)) or None


@dataclass(frozen=True, slots=True)
class EntryPointSecrets:
    """What installed packages know: callables `name -> str | None`, sync or async, under the group `plan_adapter.secrets`."""

    def place(self, name: str) -> str:
        """Return the entry points' names, in words."""
        known = ", ".join(sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP)))
        return f"the entry points {ENTRY_POINT_GROUP} ({known or 'none is installed'})"

    async def secret(self, name: str) -> str | None:
        """Return what the first callable that knows `name` answers; one that raises ends the search."""
        for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
            try:
                value = await _called(point.load(), name)
            except Exception as error:  # its message is not ours: it may hold what it should not
                raise SecretUnavailableError(f"the entry point {point.name} ({point.value}) failed: {type(error).__name__}") from None
            if value is not None:
                return value
        return None


@dataclass(frozen=True, slots=True)
class SecretChain:
    """Places in their order; the first that has a secret wins."""

    places: Sequence[SecretPlace]

    async def value(self, name: str) -> str:
        """Return the value of `secrets.<name>`; raises what `find` raises."""
        return (await self.find(name))[1]

    async def look(self, name: str) -> "Sight":
        """Return where the secret comes from, or why it cannot be used; never its value."""
        try:
            place, _ = await self.find(name)
        except ExpressionError as error:
            return Sight(name, None, str(error), is_known=not isinstance(error, SecretUnavailableError))
        return Sight(name, place.place(name), None)

    async def find(self, name: str) -> tuple[SecretPlace, str]:
        """Return the place that has the secret, and its value.

        Raises ExpressionError, which names every place but never a value, where no place has one that can be used, and
        SecretUnavailableError where a place could not be asked: a later one might hold another value under the same name.
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
                return place, _usable(value, name, place)
        looked = "; ".join(place.place(name) for place in self.places)
        raise ExpressionError(f"there is no secret `{name}`; looked at: {looked or 'nothing'}")


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a secret without showing it: the place that has it, in words, or why it cannot be used."""

    name: str
    place: str | None
    problem: str | None
    is_known: bool = True  # false where a place could not be asked, so that it may have it


async def values_at_hand(settings: Settings) -> list[str]:
    """Return the values of secrets that this process can see without being told a name: mounted files, credentials of its environment."""
    mounted = [] if settings.secrets_dir is None else await MountedSecrets(settings.secrets_dir).values()
    keys = [key.get_secret_value() for key in (settings.model_key, settings.totp_key) if key is not None]
    return [*filter(is_worth_hiding, (*mounted, *keys)), *credential_values(os.environ)]


def secret_chain(settings: Settings, *, blocks: SecretPlace | None = None) -> SecretChain:
    """Return the places of `settings` in their order: mounted files, the environment, Prefect's `blocks`, entry points."""
    places: list[SecretPlace] = [] if settings.secrets_dir is None else [MountedSecrets(settings.secrets_dir)]
    places.append(EnvironmentSecrets())
    if blocks is not None:
        places.append(blocks)
    return SecretChain([*places, EntryPointSecrets()])


def _is_file_name(name: str) -> bool:
    return "/" not in name and "\\" not in name and "\0" not in name and name not in ("", ".", "..")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


async def _called(function: Any, name: str) -> str | None:
    if inspect.iscoroutinefunction(function):
        return await function(name)
    answer = await asyncio.to_thread(function, name)
    return await answer if inspect.isawaitable(answer) else answer


def _usable(value: object, name: str, place: SecretPlace) -> str:
    what = f"`secrets.{name}` from {place.place(name)}"
    if not isinstance(value, str):
        raise ExpressionError(f"{what} is a {type(value).__name__}, not text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ExpressionError(f"{what} is not UTF-8 text") from None
    if len(value) < SHORTEST:
        raise ExpressionError(f"{what} has fewer than {SHORTEST} characters, and could not be hidden in the record")
    if size > LARGEST_BYTES or "\0" in value:
        raise ExpressionError(f"{what} is larger than {LARGEST_BYTES // 1024} KiB" if size > LARGEST_BYTES else f"{what} holds a NUL")
    return value
