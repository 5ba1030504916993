"""`plan export`."""

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO

from plan_adapter.cli import output as streams
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.sources import open_store
from plan_adapter.settings import Settings


async def export(run: str, /, *, output: Path | None = None, json: bool = False) -> int:
    """Write everything that the store has about a run as one JSON document; `plan runs verify FILE` verifies it on any machine.

    It holds the plan, the run, its approvals with their signatures, gates, attempts, receipts, revisions, the audit log, and the digest of
    its last entry. Parameters and results are written as they are in the store.

    Args:
        run: The id of a run, or its beginning.
        output: The file to write, readable only by you; default: stdout.
        json: Print the document on one line.
    """
    from plan_adapter.store.export import write_document  # imports SQLAlchemy

    only_ascii = output is None and not streams.is_unicode(sys.stdout)
    async with open_store(Settings()) as store:
        with nullcontext(sys.stdout) if output is None else streams.whole_file(output, private=True) as file:
            write = partial(_write, file)
            try:
                await store.read_export(run, partial(write_document, write=write, in_lines=not json, only_ascii=only_ascii))
            except _UnwrittenError as error:
                with streams.to_stdout() if output is None else nullcontext():
                    raise error.cause from None
    return ExitCode.DONE


class _UnwrittenError(Exception):
    """The output could not be written; the store is not at fault."""

    def __init__(self, cause: OSError) -> None:
        super().__init__()
        self.cause = cause


def _write(file: IO[str], text: str) -> None:
    try:
        file.write(text)
    except OSError as error:
        raise _UnwrittenError(error) from None
