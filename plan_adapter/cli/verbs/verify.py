"""`plan verify`."""

from dataclasses import asdict, replace
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.policy import EffectivePolicy, effective_policy
from plan_adapter.gates.signatures import allowed_signers, verify_signature
from plan_adapter.local.settings import Settings
from plan_adapter.model.audited import RecordCheck
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.readable import counted, moment, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plan_adapter.store.proof.signed import SignedStatement
    from plan_adapter.store.proof.tombstones import Tombstone, TombstoneSignature
    from plan_adapter.store.proof.verification import Verification
    from plan_adapter.store.store import PlanStore


async def verify(source: str | None = None, /, *, json: bool = False) -> int:
    """Check that the record of a run was not altered; without a run, check the whole store.

    It names the first row that was altered, inserted or deleted behind the audit log, and then exits with 1. It also exits with 1 for a
    run without an audit log, which cannot be verified. Keep the digest that it prints in another place: somebody who can write the whole
    database can write a new audit log, but not one with the same digest. For a run that `plan prune` deleted, it checks and shows the
    tombstone.

    Without a run, it checks the records of all runs, the tombstones of those that were pruned, the policy, and the versions of saved plans.

    Args:
        source: A run: its id, the beginning or end of it, or `last`; or a file from `plan export`, which needs no store.
        json: Print one JSON object.
    """
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


async def _verify_run(run_or_file: str, *, as_json: bool) -> int:
    """Return 0 if the record is intact, 1 if it is altered or cannot be verified. A file needs no store."""
    settings = Settings()
    document, policy = _read_export_file(Path(run_or_file)), effective_policy(settings)  # the store that wrote a file may be elsewhere
    if document is not None:
        found, signed, run_id, erased = _verify_document(document)
    else:
        async with open_store(settings) as store:
            try:
                found, signed, run_id, erased = await store.read_export(run_or_file, _verify_document)
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
    checks = [_check_signature(statement, policy) for statement in signed]
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


async def check_record(run_id: str, store: "PlanStore", policy: EffectivePolicy) -> RecordCheck:
    """Return what `plan verify` says about the record of a run."""
    found, signed, _, _ = await store.read_export(run_id, _verify_document)
    invalid = [check for check in (_check_signature(statement, policy) for statement in signed) if check["problem"] is not None]
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


def _verify_document(document: dict[str, Any]) -> "tuple[Verification, list[SignedStatement], str | None, list[str]]":
    """Return the verification, the signed records if it is intact, the id of the run, and the erased fields."""
    # These import SQLAlchemy.
    from plan_adapter.store.proof.signed import SignedStatement, signed_statements
    from plan_adapter.store.proof.verification import Alteration, verify

    found, run, signed, erased = verify(document), document.get("run"), list[SignedStatement](), list[str]()
    try:
        signed = list(signed_statements(document)) if found.problem is None else []
        erased = [field for row in document["tombstones"] for field in loads(row["fields"])] if found.problem is None else []
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # somebody who can write a whole audit log forged it
        problem = Alteration("document", f"its signed records cannot be read ({type(error).__name__}: {error})")
        found = replace(found, problem=problem)
    run_id = run.get("id") if isinstance(run, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return found, signed, run_id, erased  # pyright: ignore[reportUnknownVariableType]


def _check_signature(signed: "SignedStatement", policy: EffectivePolicy) -> dict[str, Any]:
    """Return where a signed record is, who signed it, whether its signature was checked, and what is wrong with the signature."""
    fields: dict[str, Any] = {
        "table": signed.table,
        "id": signed.key,
        "step": signed.step_id,
        "call_kind": signed.call_kind,
        "by": signed.by,
        "erased": signed.is_erased,
    }
    if signed.signature is None:
        return fields | {"checked": True, "problem": "it is recorded as signed, and there is no signature"}
    if signed.is_erased or policy.allowed_signers is None:
        return fields | {"checked": False, "problem": None}
    try:
        verify_signature(signed.text, signed.signature, allowed=allowed_signers(policy), by=signed.by)
    except NotApprovedError as error:
        return fields | {"checked": True, "problem": str(error)}
    return fields | {"checked": True, "problem": None}


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
