"""`plan export`."""

import sys
from contextlib import nullcontext
from functools import partial
from json import dumps
from pathlib import Path
from typing import IO, Annotated, Literal

from cyclopts import Parameter

from plan_adapter.cli import output as streams
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store, plan_of, tools_of
from plan_adapter.cli.verbs.graph import mermaid_text
from plan_adapter.importers.aster import as_aster
from plan_adapter.local.settings import Settings
from plan_adapter.validation import validate


async def export(
    source: str,
    /,
    *,
    format: Literal["record", "mermaid", "aster"] = "record",
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: bool = False,
    attest: bool = False,
    key: Path | None = None,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Write everything that the store has about a run as JSON Lines; `plan verify FILE` verifies it on any machine.

    It holds the plan, the run, its approvals with their signatures, gates, attempts, receipts, revisions, the audit log, and the digest of
    its last entry. The first line is a header with the run, each further line one row with its table. Parameters and results are written as
    they are in the store.

    With `--attest`, check the record and write a signed statement about it instead: the plan, the inputs, who approved what and how they
    were identified, every call with its receipt, and who resolved what was unknown. It is an in-toto statement in a DSSE envelope, which
    an auditor verifies without this package (`plan guide attestations`), or with `plan verify FILE --key PUBLIC_KEY`. A record that does
    not verify is not attested.

    With `--format mermaid` or `aster`, write a plan instead: as a picture of its steps, or as the JSON of Aster's
    executor, with a note on everything that this format cannot hold.

    Args:
        source: A run: its id, the beginning or end of it, or `last`. For the other formats a plan, named as for `plan run`.
        format: `record` of a run; `mermaid`, a flowchart of a plan; `aster`, a plan as Aster's JSON.
        output: The file to write, readable only by you; default: stdout.
        force: Overwrite that file.
        attest: Write a signed attestation of the run instead of its record.
        key: The OpenSSH ed25519 private key that signs the attestation, without a passphrase. By default the key of this installation,
            which is created at first use.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        json: Write Aster's JSON on one line. A record is always JSON Lines.
    """
    if key is not None and not attest:
        raise UsageError("--key is the key of an attestation: add --attest")
    if format != "record" and attest:
        raise UsageError(f"--attest is about the record of a run, and --format {format} writes a plan: leave out one of them")
    if attest:
        return await _export_attestation(source, key, output, force=force)
    if format != "record":
        return await _export_plan(source, format, output, tools or [], in_lines=not json, force=force)
    return await _export_run(source, output, force=force)


async def _export_plan(
    source: str, format: Literal["mermaid", "aster"], output: Path | None, tools: list[str], *, in_lines: bool, force: bool
) -> int:
    plan = await plan_of(source)
    if format == "mermaid":
        text = (await mermaid_text(plan, tools)).rstrip("\n")
    else:
        document, notes = as_aster(validate(plan, tools_of(tools)))
        text = dumps(document, ensure_ascii=False, indent=2 if in_lines else None)
        for note in notes:
            streams.note(note)
    if output is None:
        streams.line(text)
    else:
        with streams.atomic_file(output, private=True, overwrite=force) as file:
            file.write(f"{text}\n")
    return ExitCode.DONE


async def _export_run(run: str, output: Path | None, *, force: bool) -> int:
    from plan_adapter.store.proof.export import write_document  # imports SQLAlchemy

    only_ascii = output is None and not streams.is_unicode(sys.stdout)
    async with open_store(Settings()) as store:
        with nullcontext(sys.stdout) if output is None else streams.atomic_file(output, private=True, overwrite=force) as file:
            write = partial(_write_text, file)
            try:
                await store.read_export(run, partial(write_document, write=write, only_ascii=only_ascii))
            except _OutputError as error:
                with streams.writing_to_stdout() if output is None else nullcontext():
                    raise error.cause from None
    return ExitCode.DONE


async def _export_attestation(run: str, key: Path | None, output: Path | None, *, force: bool) -> int:
    async with open_store(Settings()) as store:
        with nullcontext(sys.stdout) if output is None else streams.atomic_file(output, private=True, overwrite=force) as file:
            attested = await store.attest(run, key=key)
            with streams.writing_to_stdout() if output is None else nullcontext():
                file.write(attested.envelope.decode("ascii"))
    public = attested.signer.path.with_name(f"{attested.signer.path.name}.pub")
    where = f"is in {public}" if public.exists() else f"is `{attested.signer.text}`"
    streams.note(f"signed with {attested.signer.path}, {attested.signer.fingerprint}; the public key, for those who verify it, {where}")
    return ExitCode.DONE


class _OutputError(Exception):
    """The output could not be written; the store is not at fault."""

    def __init__(self, cause: OSError) -> None:
        super().__init__()
        self.cause = cause


def _write_text(file: IO[str], text: str) -> None:
    try:
        file.write(text)
    except OSError as error:
        raise _OutputError(error) from None
