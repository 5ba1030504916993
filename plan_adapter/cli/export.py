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
    """Write everything that the store holds about a run as one JSON document, which `plan runs verify FILE` verifies on any machine.

    It holds the plan, the run, its approvals with their signatures, gates, attempts, receipts, revisions, the audit, and the digest of
    the audit's newest entry. What each step was given, and what it gave back, stands in it as in the store.

    Args:
        run: The id of a run, or its beginning.
        output: The file to write, which only you can read; stdout if it is not given.
        json: Print the document in one line.
    """
    from plan_adapter.store.export import write_document

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
    """The output could not be written, which is no fault of the store that is read."""

    def __init__(self, cause: OSError) -> None:
        super().__init__()
        self.cause = cause


def _write(file: IO[str], text: str) -> None:
    try:
        file.write(text)
    except OSError as error:
        raise _UnwrittenError(error) from None
