"""`make blocks`: creates or updates every block in this folder on the Prefect server. Prints names, never values."""

import asyncio
import pkgutil
import sys
from importlib import import_module

from plan_adapter.engine.connection import use_server
from plan_adapter.engine.local_server import ensure_server
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import PlanAdapterError


async def save_blocks() -> None:
    """Save the block of each module in this folder under its name."""
    folder = import_module("blocks")
    for found in pkgutil.iter_modules(folder.__path__):
        if found.name == "__main__":
            continue
        module = import_module(f"blocks.{found.name}")
        block = module.block()
        await block.asave(module.NAME, overwrite=True)
        print(f"saved {block.get_block_type_slug()}/{module.NAME}")
        if (warning := module.warning()) is not None:
            print(f"warning: {warning}", file=sys.stderr)


def main() -> int:
    """Save the blocks on the server in Prefect's settings, or else on the local one. Return an exit code."""
    try:
        with use_server(ensure_server(Settings(), notify=lambda line: print(line, file=sys.stderr))):
            asyncio.run(save_blocks())
    except PlanAdapterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
