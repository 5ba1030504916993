"""`plan export`."""

import json as json_module
import sys
from pathlib import Path

from plan_adapter.cli import output as streams
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.sources import open_store
from plan_adapter.settings import Settings


async def export(run: str, /, *, output: Path | None = None, json: bool = False) -> int:
    """Write everything that the store holds about a run as one JSON document, which `plan runs verify FILE` verifies on any machine.

    It holds the plan, the run, its approvals with their signatures, gates, attempts, receipts, revisions, the audit, and the digest of
    the audit's newest entry. What each step was given, and what it gave back, stands in it as in the store.

    Args:
        run: The id of a run, or its beginning.
        output: The file to write; stdout if it is not given.
        json: Print the document in one line.
    """
    async with open_store(Settings()) as store:
        document = await store.export(run)
    text = json_module.dumps(document, ensure_ascii=False, sort_keys=True, indent=None if json else 1)
    if not _is_utf8(text) or (output is None and not streams.is_unicode(sys.stdout)):
        text = json_module.dumps(document, sort_keys=True, indent=None if json else 1)
    if output is None:
        sys.stdout.write(text + "\n")
    else:
        streams.write_file(output, text + "\n")
    return ExitCode.DONE


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a row that was altered to what is no text
        return False
    return True
