"""`plan runs verify`: whether the record of a run, in the store or in an exported file, is as it was written."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.readable import counted, one_line
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.store.verification import Verification


async def verify_run(run_or_file: str, *, as_json: bool) -> int:
    """Say whether the record is whole, or name the first row that was altered; a file is verified without a store."""
    settings = Settings()
    document = _read(Path(run_or_file))
    if document is not None:
        found, signed, run_id = _examined(document)
    else:
        async with open_store(settings) as store:
            found, signed, run_id = await store.read_export(run_or_file, _examined)
    checked = [_signature(row, settings) for row in signed]
    bad = [line for line in checked if line["problem"] is not None]
    if as_json:
        output.json_line({**asdict(found), "ok": found.ok and not bad, "run": run_id, "signatures": checked})
    else:
        _tell(found, checked)
    return ExitCode.DONE if found.ok and not bad else ExitCode.FAILED


def _tell(found: "Verification", checked: list[dict[str, Any]]) -> None:
    if found.problem is not None:
        output.line(f"altered: {found.problem}")
        return
    for line in checked:
        if line["problem"] is not None:
            output.line(f"altered: approvals: the signature of {one_line(line['by'])}: {one_line(line['problem'])}")
    if not any(line["problem"] for line in checked):
        if found.entries:
            output.line(f"{counted(found.entries, 'entry', 'entries')}, intact: digest {found.digest}")
        else:
            output.line("no entries: an earlier version ran this, which kept no audit")
    for line in checked:
        if not line["checked"]:
            output.note(
                f"the signature of {one_line(line['by'])} is not checked: PLAN_ADAPTER_ALLOWED_SIGNERS names no file of allowed signers"
            )


def _examined(document: dict[str, Any]) -> "tuple[Verification, list[dict[str, Any]], str | None]":
    """Return what was found, the signed answers where that is well, and the id of the run."""
    from plan_adapter.store.verification import verify

    found, run = verify(document), document.get("run")
    rows = document["approvals"] if found.ok else ()
    signed = [row for row in rows if row["signature"] is not None and row["standing_id"] is None]
    return found, signed, run.get("id") if isinstance(run, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


def _signature(row: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return of a signed answer by whom it is, whether its signature was looked at, and what is wrong with it."""
    from plan_adapter.approval import signed_text
    from plan_adapter.errors import NotApprovedError
    from plan_adapter.identity.signatures import allowed_signers, signer

    told: dict[str, Any] = {"approval": row["id"], "by": row["by"], "checked": settings.allowed_signers is not None, "problem": None}
    if settings.allowed_signers is not None:
        text = signed_text(
            approval_digest=row["approval_digest"], decision=row["decision"], run_id=row["run_id"] or "", gate_id=row["gate_id"] or ""
        )
        try:
            signer(text, row["signature"], allowed=allowed_signers(settings), by=row["by"])
        except NotApprovedError as error:
            told["problem"] = str(error)
    return told


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a file holds, None where there is none and `path` is an id; raises UsageError for what is no exported run."""
    from plan_adapter.store.exported import read_exported

    if not path.is_file():
        if path.suffix == ".json":
            raise UsageError(f"there is no file {path}")
        return None
    try:
        document = read_exported(path)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no exported run: {error}") from None
    if document is None:
        raise UsageError(f"{path} is no exported run: write one with `plan export RUN --output {path}`")
    return document
