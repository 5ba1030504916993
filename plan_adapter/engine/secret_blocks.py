"""`PrefectSecrets`: secrets kept as Prefect Secret blocks, which its server encrypts and its UI does not show."""

from typing import Any

from prefect.blocks.system import Secret
from pydantic import SecretStr

from plan_adapter.engine.gate_events import key_of

# Generic without a type, as the block type that everybody uses: `Secret[str]` would be a type of its own.
_BLOCK: Any = Secret


class PrefectSecrets:
    """Reads and keeps secrets of the Prefect server that Prefect's settings name."""

    async def secret(self, name: str) -> str | None:
        """Return the text of the Secret block called `name`; None if there is none."""
        try:
            block = await _BLOCK.aload(key_of(name))
        except ValueError:
            return None
        # Not `get()`, which reads a text of digits as a number.
        return str(block.value.get_secret_value())

    async def keep_secret(self, name: str, value: str) -> None:
        """Keep `value` as the Secret block called `name`, in place of the one that has this name."""
        await _BLOCK(value=SecretStr(value)).asave(key_of(name), overwrite=True)
