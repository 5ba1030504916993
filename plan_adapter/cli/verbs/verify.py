"""`plan verify`."""

import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.policy import EffectivePolicy, effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.audited import RecordCheck
from plan_adapter.model.errors import NotVerifiedError, RunConflictError
from plan_adapter.model.readable import call_name, counted, moment, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plan_adapter.local.attestation_key import PublicKey
    from plan_adapter.store.proof.attestation import RunAttestation
    from plan_adapter.store.proof.signed import CheckedRecord, SignedStatement
    from plan_adapter.store.proof.tombstones import Tombstone, TombstoneSignature
    from plan_adapter.store.proof.verification import Verification
    from plan_adapter.store.store import PlanStore


async def verify(source: str | None = None, /, *, key: Path | None = None, json: bool = False) -> int:
    """Check that the record of a run, or an attestation of it, was not altered; without a run, check the whole store.

    It names the first row that was altered, inserted or deleted behind the audit log, and then exits with 1. It also exits with 1 for a
    run without an audit log, which cannot be verified. Keep the digest that it prints in another place: somebody who can write the whole
    database can write a new audit log, but not one with the same digest. For a run that `plan prune` deleted, it checks and shows the
    tombstone.

    Without a run, it checks the records of all runs, the tombstones of those that were pruned, the policy, and the versions of saved plans.

    Of a file from `plan export --attest`, it checks that the key signed exactly these bytes, and shows who approved what. It exits with 1
    if a byte was changed, or another key signed it.

    Args:
        source: A run: its id, the beginning or end of it, or `last`; or a file from `plan export`, which needs no store.
        key: The public key that must have signed the attestation, in OpenSSH form. By default that of this installation.
        json: Print one JSON object.
    """
    if source is not None and (key is not None or _is_attestation(Path(source))):
        return _verify_attestation(Path(source), key, as_json=json)
    if key is not None:
        raise UsageError("--key is the key of an attestation: name the file from `plan export RUN --attest`")
    if source is not None:
        return await _verify_run(source, as_json=json)
    async with open_store(Settings()) as store:
        return await _verify_store(store, as_json=json)


async def _verify_store(store: "PlanStore", *, as_json: bool) -> int:
    """Return 0 if every record, tombstone and policy of the store is as it was written, 1 otherwise."""
    problems, page, count = list[str](), list[str](), 0
    while page := await store.retention.run_ids(after=page[-1] if page else ""):
        for run_id in page:
            found = await store.verify(run_id)
            problems += [] if found.ok else [f"run {run_id}: {found.problem or 'it has no audit log'}"]
        count += len(page)
    checks = _check_tombstone_signatures(await store.retention.signatures(), await store.policy.effective(Settings()))
    problems += [check["problem"] for check in checks if check["problem"] is not None]
    for problem in (await store.retention.problem(), (await store.policy.history())[1], await store.versions_problem()):
        problems += [] if problem is None else [problem]
    if as_json:
        output.json_line("store_verification", {"runs": count, "ok": not problems, "problems": problems})
    for problem in [] if as_json else problems:
        output.line(f"altered: {problem}")
    if not problems and not as_json:
        output.line(f"{counted(count, 'run')}, tombstones, policy and versions of plans: intact")
    return ExitCode.FAILED if problems else ExitCode.DONE


def _is_attestation(path: Path) -> bool:
    """Return whether a file begins as an attestation, in whatever spelling of JSON."""
    try:
        with path.open("rb") as file:
            return re.match(rb'\s*\{\s*"(payload|signatures)', file.read(64)) is not None
    except (OSError, ValueError):
        return False


def _verify_attestation(path: Path, key: Path | None, *, as_json: bool) -> int:
    """Return 0 if the key signed exactly the bytes of the file, 1 otherwise. Raises UsageError if the file cannot be read."""
    from plan_adapter.local.attestation_key import installation_public_key, read_public_key
    from plan_adapter.store.proof.attestation import verified_attestation  # imports SQLAlchemy

    signer = installation_public_key(Settings()) if key is None else read_public_key(key)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    attested, problem = None, None
    try:
        attested = verified_attestation(content, signer)
    except NotVerifiedError as error:
        problem = str(error)
    if as_json:
        output.json_line("attestation", _attestation_json(path, signer, attested, problem))
    elif attested is None:
        output.line(f"not verified: {path}: {problem}")
    else:
        _print_attestation(signer, attested)
    return ExitCode.FAILED if attested is None else ExitCode.DONE


def _attestation_json(path: Path, signer: "PublicKey", attested: "RunAttestation | None", problem: str | None) -> dict[str, Any]:
    verified = {"file": str(path), "ok": attested is not None, "problem": problem, "fingerprint": signer.fingerprint}
    if attested is None:
        return verified
    run = attested.run
    return verified | {
        "run_id": run.id,
        "name": run.name,
        "status": run.status,
        "exported_at": attested.exported_at,
        "plan_digest": attested.plan.digest,
        "audit_digest": attested.audit.digest,
        "approvals": [asdict(approval) for approval in attested.approvals],
        "unknown_outcomes": [asdict(unknown) for unknown in attested.unknown_outcomes],
    }


def _print_attestation(signer: "PublicKey", attested: "RunAttestation") -> None:
    run, audit = attested.run, attested.audit
    at = moment(datetime.fromisoformat(attested.exported_at))
    output.line(f"intact: signed by {signer.fingerprint} ({signer.path}) at {at}")
    output.line(f"  run {run.id} of {one_line(run.name)}: {run.status}, plan {attested.plan.digest}")
    output.line(f"  record: {counted(audit.entries, 'entry', 'entries')}, digest {audit.digest}")
    for approval in attested.approvals:
        what = "the plan" if approval.step is None else call_name(approval.step, None if approval.item is None else approval.item - 1)
        note = f": {one_line(approval.note)}" if approval.note else ""
        by = f"{one_line(approval.by)} ({approval.known_by})"
        at = moment(datetime.fromisoformat(approval.at))
        output.line(f"  {approval.decision} {what}: {by} at {at}, digest {approval.approval_digest}{note}")
    for unknown in attested.unknown_outcomes:
        call = call_name(unknown.step, None if unknown.item is None else unknown.item - 1, kind=unknown.kind)
        said = unknown.resolution
        resolved = "nobody resolved it" if said is None else f"`{said.resolution}` by {one_line(said.by)} ({said.known_by})"
        output.line(f"  unknown outcome of {call}: {resolved}")


async def _verify_run(run_or_file: str, *, as_json: bool) -> int:
    """Return 0 if the record is intact, 1 if it is altered or cannot be verified. A file needs no store."""
    settings = Settings()
    document, policy = _read_export_file(Path(run_or_file)), effective_policy(settings)  # the store that wrote a file may be elsewhere
    if document is not None:
        record = _check_record(document)
    else:
        async with open_store(settings) as store:
            try:
                record = await store.read_export(run_or_file, _check_record)
            except RunConflictError:
                pruned = [tombstone for tombstone in await store.retention.tombstones(run_or_file) if tombstone.kind == "pruned"]
                if len(pruned) != 1:
                    raise
                signatures = await store.retention.signatures()
                checks = _check_tombstone_signatures(signatures, await store.policy.effective(settings))
                problem = await store.retention.problem() or next((check["problem"] for check in checks if check["problem"]), None)
                covering = (check for signature, check in zip(signatures, checks, strict=True) if signature.number >= pruned[0].number)
                return _print_tombstone(pruned[0], problem, next(covering, None), as_json=as_json)
            policy = await store.policy.effective(settings)
    found, run_id, erased = record.verification, record.run_id, record.erased
    checks = [_check_signature(statement, policy) for statement in record.signed]
    invalid = [check for check in checks if check["problem"] is not None]
    if as_json:
        verdict = "altered" if invalid else found.verdict
        output.json_line(
            "verification",
            {
                **asdict(found),
                "verdict": verdict,
                "ok": verdict == "intact",
                "run_id": run_id,
                "run": run_id,
                "erased": erased,
                "signatures": checks,
            },
        )
    else:
        _print_verdict(found, checks)
        if erased:
            output.note(f"erased: {', '.join(map(one_line, erased))}; everything else is as it was written, also in these rows:")
            for place, columns in sorted(found.erased_rows.items()):
                output.note(f"  {one_line(place)}: {columns}")
    return ExitCode.DONE if found.ok and not invalid else ExitCode.FAILED


async def check_run(run_id: str, store: "PlanStore", policy: EffectivePolicy) -> RecordCheck:
    """Check the record of a run as `plan verify` does."""
    record = await store.read_export(run_id, _check_record)
    found, checks = record.verification, [_check_signature(statement, policy) for statement in record.signed]
    invalid = [check for check in checks if check["problem"] is not None]
    if invalid:
        problem = f"the signature of {one_line(invalid[0]['by'])}: {one_line(invalid[0]['problem'])}"
        return RecordCheck("altered", problem, found.digest)
    return RecordCheck(found.verdict, None if found.problem is None else str(found.problem), found.digest)


def _check_tombstone_signatures(signatures: "Sequence[TombstoneSignature]", policy: EffectivePolicy) -> list[dict[str, Any]]:
    """Return the check of each tombstone's signature, in the form of a run's checks. Its `problem` says what is wrong, or is None."""
    from plan_adapter.store.proof.signed import SignedStatement  # imports SQLAlchemy

    checks = [
        _check_signature(SignedStatement("tombstones", str(signature.number), signature.by, signature.text, signature.signature), policy)
        for signature in signatures
    ]
    for check in checks:
        if check["problem"] is not None:
            check["problem"] = f"the signature of {one_line(check['by'])} at tombstone {check['id']}: {check['problem']}"
    return checks


def _print_tombstone(tombstone: "Tombstone", problem: str | None, signed_by: dict[str, Any] | None, *, as_json: bool) -> int:
    """Print what is left of a pruned run, and the signature that covers it. Return 0 if no tombstone was altered."""
    if as_json:
        verdict = "pruned" if problem is None else "altered"
        output.json_line(
            "verification",
            {
                "run_id": tombstone.run_id,
                "run": tombstone.run_id,
                "verdict": verdict,
                "ok": problem is None,
                "problem": problem,
                "tombstone": asdict(tombstone),
                "signature": signed_by,
            },
        )
    elif problem is not None:
        output.line(f"altered: {problem}")
    else:
        ended = f"{one_line(tombstone.name)}, {tombstone.status} at {moment(tombstone.completed_at)}"
        entries = counted(tombstone.entries, "entry", "entries")
        output.line(f"pruned: {tombstone}: {ended}; {entries}, digest {tombstone.last_digest}")
        if signed_by is not None:
            not_checked = "" if signed_by["checked"] else ", which was not checked: no allowed signers are named"
            output.note(f"the signature of {one_line(signed_by['by'])} at tombstone {signed_by['id']} covers it{not_checked}")
    return ExitCode.DONE if problem is None else ExitCode.FAILED


def _print_verdict(found: "Verification", checks: list[dict[str, Any]]) -> None:
    if found.problem is not None:
        output.line(f"altered: {found.problem}")
        return
    for check in checks:
        if check["problem"] is not None:
            step = f", step `{one_line(check['step'])}`" if check["step"] is not None else ""
            output.line(f"altered: {check['table']}{step}: the signature of {one_line(check['by'])}: {one_line(check['problem'])}")
    if not any(check["problem"] for check in checks):
        if found.ok:
            output.line(f"{counted(found.entries, 'entry', 'entries')}, intact: digest {found.digest}")
        else:
            output.line(
                "not verifiable: the run has no audit log, so nothing shows whether its record was altered; its entries were deleted"
            )
    for check in checks:
        if check["erased"]:
            output.note(f"the signature of {one_line(check['by'])} can no longer be checked: part of what was signed is erased")
        elif not check["checked"]:
            output.note(
                f"the signature of {one_line(check['by'])} was not checked: neither the store's policy nor "
                "PLAN_ADAPTER_ALLOWED_SIGNERS names allowed signers"
            )


def _check_record(document: dict[str, Any]) -> "CheckedRecord":
    from plan_adapter.store.proof.signed import check_record  # imports SQLAlchemy

    return check_record(document)


def _check_signature(signed: "SignedStatement", policy: EffectivePolicy) -> dict[str, Any]:
    """Return where a signed record is, who signed it, whether its signature was checked, and what is wrong with the signature."""
    return {
        "table": signed.table,
        "id": signed.key,
        "step": signed.step_id,
        "call_kind": signed.call_kind,
        "by": signed.by,
        "erased": signed.is_erased,
        "checked": signed.is_checkable(policy),
        "problem": signed.problem(policy),
    }


def _read_export_file(path: Path) -> dict[str, Any] | None:
    """Return the exported run in a file; None if `path` is an id. Raises UsageError for any other file."""
    from plan_adapter.store.proof.export import read_exported  # imports SQLAlchemy

    if not path.is_file():
        if path.suffix in (".json", ".jsonl"):
            raise UsageError(f"there is no file {path}")
        return None
    try:
        document = read_exported(path)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not an exported run: {error}") from None
    if document is None:
        raise UsageError(f"{path} is not an exported run: write one with `plan export RUN --output {path}`")
    return document
