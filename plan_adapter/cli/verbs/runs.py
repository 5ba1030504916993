"""`plan runs`."""

from dataclasses import asdict, replace
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.approval_state import age, states_of
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import run_json
from plan_adapter.cli.sources import names_of_runbook, open_store, parse_status
from plan_adapter.gates.policy import EffectivePolicy, effective_policy
from plan_adapter.gates.signatures import allowed_signers, verify_signature
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.language import tr
from plan_adapter.model.readable import counted, duration, moment, one_line
from plan_adapter.model.record import PlanRun, short_ids
from plan_adapter.model.status import PlanStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plan_adapter.store.proof.signed import SignedStatement
    from plan_adapter.store.proof.tombstones import Tombstone, TombstoneSignature
    from plan_adapter.store.proof.verification import Verification
    from plan_adapter.store.store import PlanStore


async def runs(
    action: Literal["list", "verify"] = "list",
    run: str | None = None,
    /,
    *,
    limit: int = 20,
    status: str | None = None,
    runbook: Annotated[str | None, Parameter(name=("--runbook", "--name"))] = None,
    tag: list[str] | None = None,
    wide: bool = False,
    json: bool = False,
) -> int:
    """List runs, those that wait for a person first, then the newest; or, with `verify RUN`, check that a record was not altered.

    Every command that takes a run also takes the end of its id, as the list shows it.

    `plan runs verify` names the first row that was altered, inserted or deleted behind the audit log, and then exits with 1. It also exits
    with 1 for a run without an audit log, which cannot be verified. Keep the digest that it prints in another place: somebody who can write
    the whole database can write a new audit log, but not one with the same digest. For a run that `plan prune` deleted, it checks and shows
    the tombstone.

    Args:
        action: `list` (the default) or `verify`.
        run: With `verify`: the id of a run, its beginning or end, `last`, or a file from `plan export`, which needs no store.
        limit: Show at most this many; default: 20.
        status: Show only runs with this status: pending_approval, approved, executing, completed, failed, cancelled or partial.
        runbook: Show only runs of plans with this name, also as Prefect shows it.
        tag: Show only runs of plans with this tag; may be repeated, and then a plan needs all of them.
        wide: Show whole ids, the progress in words, and when a run was created and how long it took.
        json: Print one JSON object per run, newest first.
    """
    if action == "verify":
        if run is None:
            raise UsageError("verify what? `plan runs verify RUN`, with the id of a run or a file from `plan export`")
        return await _verify_run(run, as_json=json)
    if run is not None:
        raise UsageError(f"`plan runs list` takes no run; `plan show {run}` shows one, `plan runs verify {run}` verifies it")
    if limit < 1:
        raise UsageError("--limit must be at least 1")
    from plan_adapter.runs.plan_approval import end_expired  # imports SQLAlchemy

    settings = Settings()
    async with open_store(settings) as store:
        await end_expired(store)
        names = None if runbook is None else await names_of_runbook(runbook, store)
        found = await store.runs(limit=limit, status=parse_status(status), names=names, tags=tag or ())
        if found and json:
            for run_ in found:
                output.json_line("run", run_json(run_, steps=False))
        elif found:
            await _print_runs(found, store, settings, wide=wide)
        else:
            output.note(tr("no runs match") if status or runbook or tag else tr("no runs yet; `plan run plan.yaml` starts one"))
    return ExitCode.DONE


async def _print_runs(found: "Sequence[PlanRun]", store: "PlanStore", settings: Settings, *, wide: bool) -> None:
    from plan_adapter.text.preview import name_of_run  # only for lists

    states, now, ids = await states_of(found, store, settings), await store.now(), short_ids([run.id for run in found])
    named = {run.id: name_of_run(await store.get(run.digest), run.inputs) or "" for run in found}
    has_names = any(named.values())
    columns = [tr("RUN"), tr("RUNBOOK"), *([tr("NAME")] if has_names else []), tr("STATE"), tr("DONE")]
    columns += [tr("CREATED"), tr("TOOK")] if wide else [tr("AGE")]
    rows = list[list[str]]()
    for run in sorted(found, key=lambda run: not states[run.id].is_waiting):
        summary = run.summary()
        done = summary.text if wide else f"{summary.completed}/{summary.total_steps}"
        took = duration(run.total_duration_ms) if run.completed_at is not None and run.started_at is not None else "-"
        when = [moment(run.created_at), took] if wide else [age(now, run.created_at)]
        name = [named[run.id]] if has_names else []
        rows.append([run.id if wide else ids[run.id], run.name, *name, states[run.id].text, done, *when])
    output.table(columns, rows)
    if any(run.status is PlanStatus.PENDING_APPROVAL for run in found):
        output.note(tr("`plan gates` lists what waits for an answer, `plan show RUN` shows what to type"))


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
                checks = check_tombstone_signatures(signatures, await store.policy.effective(settings))
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


def check_tombstone_signatures(signatures: "Sequence[TombstoneSignature]", policy: EffectivePolicy) -> list[dict[str, Any]]:
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
