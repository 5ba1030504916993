"""`make automations`: creates or updates the automations in the folder `automations`, which notify people of open gates."""

import argparse
import asyncio
import math
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.documents import read_mapping
from plan_adapter.engine.connection import use_server
from plan_adapter.engine.local_server import ensure_server
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import PlanAdapterError
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import visible

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import BlockDocument
    from prefect.events.schemas.automations import AutomationCore

FOLDER = Path(__file__).with_name("automations")
MIN_SECONDS = 10.0
"""Prefect's minimum for an automation that waits for something not to happen."""
PAGE_SIZE = 200


class UnknownBlockError(PlanAdapterError):
    """The server has no notification block with this name."""


async def apply(blocks: Sequence[str], *, after: timedelta) -> list[str]:
    """Create or update, by name, every automation in the folder so that it notifies through `blocks` (type/name). Return a line about each.

    `after` is how long a gate may be open before a reminder. One that was switched off on the server stays off. Raises UnknownBlockError.
    """
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        documents = await _notification_blocks(client)
        chosen = [_find_block(name, documents) for name in dict.fromkeys(blocks)]
        return [line for path in sorted(FOLDER.glob("*.yaml")) for line in await _apply_one(client, read(path, chosen, after=after))]


def read(path: Path, blocks: Sequence["BlockDocument"], *, after: timedelta) -> "AutomationCore":
    """Return the automation in the file `path`, with its action once for each of `blocks`, and `after` as the delay of a reminder."""
    from prefect.events.schemas.automations import AutomationCore

    document: Any = read_mapping(path)[0]
    document["actions"] = [{**action, "block_document_id": block.id} for action in document["actions"] for block in blocks]
    if document["trigger"]["posture"] == "Proactive":
        document["trigger"]["within"] = after
    return AutomationCore.model_validate(document)


async def _apply_one(client: "PrefectClient", automation: "AutomationCore") -> list[str]:
    # Names are not unique on the server. A second automation with this name, created by hand, would notify through another block.
    existing = await client.read_automations_by_name(automation.name)
    for known in existing:
        await client.update_automation(known.id, automation.model_copy(update={"enabled": known.enabled}))
    if not existing:
        await client.create_automation(automation)
        return [f"created {automation.name}"]
    return [f"updated {automation.name}" + ("" if known.enabled else " (it is disabled and stays disabled)") for known in existing]


async def _notification_blocks(client: "PrefectClient") -> "dict[str, BlockDocument]":
    """Return every block on the server that can send notifications, by type/name."""
    found: dict[str, BlockDocument] = {}
    for offset in range(0, sys.maxsize, PAGE_SIZE):
        page = await client.read_block_documents(limit=PAGE_SIZE, offset=offset, include_secrets=False)
        for document in page:
            schema, kind = document.block_schema, document.block_type
            if schema is not None and kind is not None and "notify" in schema.capabilities:
                found[f"{kind.slug}/{document.name}"] = document
        if len(page) < PAGE_SIZE:
            break
    return found


def _find_block(name: str, documents: "dict[str, BlockDocument]") -> "BlockDocument":
    if name in documents:
        return documents[name]
    known = did_you_mean(name, documents) if documents else "the server has none: create one in its UI, as in Blocks > Slack Webhook"
    raise UnknownBlockError(f"no notification block is called `{visible(name)}`: {visible(known)}")


def _minutes(text: str) -> timedelta:
    minutes = float(text)
    if not (math.isfinite(minutes) and minutes * 60 >= MIN_SECONDS and minutes <= 60 * 24 * 365):
        raise argparse.ArgumentTypeError(f"{text} is not a number of minutes between {MIN_SECONDS:g} seconds and a year")
    return timedelta(minutes=minutes)


_minutes.__name__ = "number of minutes"  # the name that argparse shows for an invalid value


def main(arguments: Sequence[str] | None = None) -> int:
    """Apply the automations to the server in Prefect's settings, or else to the local one. Return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m deployments.automations", description=__doc__)
    parser.add_argument("--block", required=True, nargs="+", metavar="TYPE/NAME", help="notification blocks, as in slack-webhook/oncall")
    parser.add_argument("--after", type=_minutes, default="30", metavar="MINUTES", help="when to remind of an open gate (default: 30)")
    given = parser.parse_args(arguments)
    try:
        with use_server(ensure_server(Settings(), notify=lambda line: print(line, file=sys.stderr))):
            for line in asyncio.run(apply(given.block, after=given.after)):
                print(line)
    except PlanAdapterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
