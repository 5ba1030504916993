"""`SecretBlocks`: secrets kept in Prefect blocks, which the server encrypts and the UI hides."""

import inspect
import json
import re
from typing import Any, cast

from prefect.blocks.core import Block
from prefect.blocks.system import Secret
from prefect.exceptions import ObjectNotFound
from pydantic import SecretBytes, SecretStr

from plan_adapter.engine.connection import describe_server_error
from plan_adapter.local.secrets import SecretUnavailableError


class SecretBlocks:
    """The blocks of the configured Prefect server as a source of a plan's secrets. Implements `secrets.SecretPlace`.

    `secrets.db_password` is the Secret block `db-password`, because Prefect allows no other characters. `secrets["aws-secret/db"]` is the
    block `db` of type `aws-secret`. A block of another type must have a method that reads a secret, a `get()`, or exactly one secret field.
    """

    def place(self, name: str) -> str:
        """Return a phrase with the block's type and name."""
        return f"the Prefect block {_slug(name)}"

    async def secret(self, name: str) -> str | None:
        """Return the secret in the block of `name`, or None if there is no block. Raises SecretUnavailableError."""
        slug = _slug(name)
        try:
            block: Any = await Block.aload(slug)
            return _text(await _secret_of(block))
        except Exception as error:  # a message of a block or of the client may contain a secret, so it is not repeated
            if isinstance(error.__cause__, ObjectNotFound):
                return None
            reason = describe_server_error(error) or type(error).__name__
            raise SecretUnavailableError(f"the Prefect block {slug} cannot be read: {reason}") from None


def _slug(name: str) -> str:
    if "/" in name:
        return name
    return "secret/" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


async def _secret_of(block: Any) -> Any:
    if isinstance(block, Secret):
        return cast("Any", block).value  # not `get()`, which would parse a string of digits as a number
    for method in ("aread_secret", "read_secret", "get"):
        if callable(call := getattr(block, method, None)):
            value = call()
            return await value if inspect.isawaitable(value) else value
    fields = cast("dict[str, Any]", vars(block))
    (secret,) = [value for value in fields.values() if isinstance(value, SecretStr | SecretBytes)]
    return secret


def _text(value: Any) -> str:
    plain = value.get_secret_value() if hasattr(value, "get_secret_value") else value
    if isinstance(plain, bytes):
        return plain.decode()
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
