"""`plan runs verify`: whether the record of a run, in the store or in an exported file, is as it was written."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.readable import counted, one_line
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.policy import PolicyInForce
    from plan_adapter.store.signed import Signed
    from plan_adapter.store.verification import Verification


async def verify_run(run_or_file: str, *, as_json: bool) -> int:
    """Say whether the record is intact, altered (and where first) or not verifiable; a file is verified without a store."""
    from plan_adapter.policy import policy_in_force

    settings = Settings()
    document, policy = _read(Path(run_or_file)), policy_in_force(settings)  # of a file: its store, and that one's policy, may be elsewhere
    if document is not None:
        found, signed, run_id = _examined(document)
    else:
        async with open_store(settings) as store:
            found, signed, run_id = await store.read_export(run_or_file, _examined)
            policy = await store.policy_in_force(settings)
    checked = [_checked(one, policy) for one in signed]
    bad = [line for line in checked if line["problem"] is not None]
    if as_json:
        verdict = "altered" if bad else found.verdict
        output.json_line({**asdict(found), "verdict": verdict, "ok": verdict == "intact", "run": run_id, "signatures": checked})
    else:
        _tell(found, checked)
    return ExitCode.DONE if found.ok and not bad else ExitCode.FAILED


def _tell(found: "Verification", checked: list[dict[str, Any]]) -> None:
    if found.problem is not None:
        output.line(f"altered: {found.problem}")
        return
    for line in checked:
        if line["problem"] is not None:
            step = f", step `{one_line(line['step'])}`" if line["step"] is not None else ""
            output.line(f"altered: {line['table']}{step}: the signature of {one_line(line['by'])}: {one_line(line['problem'])}")
    if not any(line["problem"] for line in checked):
        if found.ok:
            output.line(f"{counted(found.entries, 'entry', 'entries')}, intact: digest {found.digest}")
        else:
            output.line(
                "not verifiable: the run has no audit entries, so nothing shows whether its record was altered; "
                "a version that kept no audit ran it, or the entries were deleted"
            )
    for line in checked:
        if not line["checked"]:
            output.note(
                f"the signature of {one_line(line['by'])} is not checked: neither the store's policy nor "
                "PLAN_ADAPTER_ALLOWED_SIGNERS names allowed signers"
            )


def _examined(document: dict[str, Any]) -> "tuple[Verification, list[Signed], str | None]":
    """Return what was found, what is recorded as signed where that is well, and the id of the run."""
    from plan_adapter.store.signed import Signed, signed_of
    from plan_adapter.store.verification import Alteration, verify

    found, run, signed = verify(document), document.get("run"), list[Signed]()
    try:
        signed = list(signed_of(document)) if found.problem is None else []
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # made by whoever can write a whole audit, and not as it is written
        problem = Alteration("document", f"what was signed in it cannot be read ({type(error).__name__}: {error})")
        found = replace(found, problem=problem)
    return found, signed, run.get("id") if isinstance(run, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


def _checked(signed: "Signed", policy: "PolicyInForce") -> dict[str, Any]:
    """Return of what somebody signed where it stands and whose it is, whether its signature was looked at, and what is wrong with it."""
    from plan_adapter.errors import NotApprovedError
    from plan_adapter.identity.signatures import allowed_signers, signer

    told: dict[str, Any] = {"table": signed.table, "id": signed.key, "step": signed.step_id, "by": signed.by}
    if signed.signature is None:
        return told | {"checked": True, "problem": "it is recorded as signed, and there is no signature"}
    if policy.allowed_signers is None:
        return told | {"checked": False, "problem": None}
    try:
        signer(signed.text, signed.signature, allowed=allowed_signers(policy), by=signed.by)
    except NotApprovedError as error:
        return told | {"checked": True, "problem": str(error)}
    return told | {"checked": True, "problem": None}


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
