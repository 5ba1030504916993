"""`secrets_of`: where the secrets of a run come from."""

from plan_adapter.engine.connection import configured_api_url, quiet_import
from plan_adapter.errors import NoServerError
from plan_adapter.execution.secrets import RunSecrets
from plan_adapter.secrets import SecretUnavailableError, secret_chain
from plan_adapter.settings import Settings


def secrets_of(settings: Settings) -> RunSecrets:
    """Return the secrets of a new run, none of which is looked up yet."""
    return RunSecrets(secret_chain(settings, blocks=KnownServer()))


class KnownServer:
    """The blocks of the Prefect server, where one is known. Prefect is imported only to look there. Implements `secrets.SecretPlace`."""

    def place(self, name: str) -> str:
        """Return the block, in words, or why none was looked at."""
        if configured_api_url() is None:
            return "no Prefect block (no Prefect server is known)"
        from plan_adapter.engine.secret_blocks import SecretBlocks

        return SecretBlocks().place(name)

    async def secret(self, name: str) -> str | None:
        """Return the secret of the block, None where there is none or no server is known."""
        try:
            if configured_api_url() is None:
                return None
        except NoServerError as error:
            raise SecretUnavailableError(str(error)) from None
        with quiet_import():
            from plan_adapter.engine.secret_blocks import SecretBlocks

        return await SecretBlocks().secret(name)
