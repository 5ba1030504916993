"""The file next to a runbook that holds its standing approval, and the signature of that file."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias, cast

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from plan_adapter.documents import read_typed
from plan_adapter.gates.coverage import find_standing_problems
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.signatures import MAX_SIGNATURE_CHARACTERS, allowed_signers, sign, verify_signature
from plan_adapter.model.approvals import StandingApproval
from plan_adapter.model.canonical import canonical_json
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError
from plan_adapter.model.options import DocumentModel
from plan_adapter.model.problems import Problem, value_error
from plan_adapter.model.values import find_bad_values

MAX_BYTES = 256 * 1024
SUFFIX = ".approval.yaml"

_EARLIEST = datetime.min.replace(tzinfo=UTC)
_TIME_HINT = "write it with its time zone: 2026-12-31T23:59:59Z"


def _read_digest(value: str) -> str:
    if value and not re.fullmatch("[0-9a-f]{64}", value):
        raise value_error("bad-value", "this is not the digest of a runbook", "`plan standing add PLAN --file --sign` writes it")
    return value


def _read_time(value: object) -> datetime | None:
    if value in (None, ""):
        return None
    try:
        read = datetime.fromisoformat(cast("str", value))
    except (ValueError, TypeError):
        raise value_error("bad-value", "this is not a time", _TIME_HINT) from None
    if read.utcoffset() is None:
        raise value_error("bad-value", "the time has no time zone", _TIME_HINT)
    try:
        return read.astimezone(UTC)
    except OverflowError:
        raise value_error("bad-value", "the time is out of range", _TIME_HINT) from None


_Time: TypeAlias = Annotated[datetime | None, BeforeValidator(_read_time)]


class _StandingFile(DocumentModel):
    """What the file may contain. Null is as good as an absent field."""

    noun: ClassVar[str] = "a standing approval"
    start_hint: ClassVar[str] = "`plan standing add PLAN --file --sign` writes it"

    runbook_digest: Annotated[str, AfterValidator(_read_digest)] | None = None
    name: str | None = None
    by: str | None = None
    at: _Time = None
    inputs: dict[str, JsonValue] = Field(default_factory=dict)
    schedules: list[str] = Field(default_factory=list)
    steps: list[str] = Field(default_factory=list)
    until: _Time = None
    max_runs: int | None = None
    note: str | None = None


def standing_path(plan_path: Path) -> Path:
    """Return the path of the standing approval for the runbook at `plan_path`: `nightly.approval.yaml` next to `nightly.yaml`."""
    return plan_path.with_name(plan_path.stem + SUFFIX)


def is_standing_file(path: str | Path) -> bool:
    """Return whether `path` names a standing approval, such as `nightly.approval.yaml` beside the plan `nightly.yaml`."""
    return str(path).lower().endswith(SUFFIX)


def signature_path(path: Path) -> Path:
    """Return the path of the signature of the file at `path`, which is where `ssh-keygen -Y sign` writes it."""
    return path.with_name(f"{path.name}.sig")


def find_standing_file(plan_path: str | Path) -> Path | None:
    """Return the file with the standing approval of the runbook at `plan_path`, or None if there is none."""
    path = standing_path(Path(plan_path))
    return path if path.is_file() else None


def standing_file_text(standing: StandingApproval) -> str:
    """Return `standing` as the text of a file. It contains neither its use (runs, who revoked it) nor how `by` was identified.

    The same approval always gives the same text, so it can be signed and verified without a file. Raises InvalidPlanError if it holds a
    value that no document can.
    """
    from plan_adapter.documents.yaml_text import write_yaml  # imports yaml

    document: dict[str, JsonValue] = {"runbook_digest": standing.runbook_digest, "name": standing.name, "by": standing.by}
    document |= {"at": _format_time(standing.at), "schedules": list[JsonValue](standing.schedules), "inputs": _canonical_inputs(standing)}
    document |= {"steps": list[JsonValue](standing.steps), "until": _format_time(standing.until), "max_runs": standing.max_runs}
    document |= {"note": standing.note}
    if problems := find_bad_values(document):
        raise InvalidPlanError(problems)
    return write_yaml({name: value for name, value in document.items() if value not in (None, "", [], {})})


def read_standing_file(path: str | Path) -> tuple[StandingApproval, str]:
    """Return the standing approval in the file at `path`, and the exact text of the file, which its signature covers.

    Nothing is proved yet, so `known_by` is `unverified`. The id is the SHA-256 of the text, so a changed file is another approval. Raises
    InvalidPlanError, which lists every problem with its line and column.
    """
    file = read_typed(path, _StandingFile, max_bytes=MAX_BYTES)
    written = file.value
    standing = StandingApproval(
        id=sha256(file.text.encode()).hexdigest(),
        runbook_digest=written.runbook_digest or "",
        name=written.name or "",
        by=written.by or "",
        known_by="unverified",
        at=written.at or _EARLIEST,
        inputs=written.inputs,
        schedules=tuple(dict.fromkeys(written.schedules)),
        steps=tuple(dict.fromkeys(written.steps)),
        until=written.until,
        max_runs=written.max_runs,
        note=written.note or "",
        source=str(path),
    )
    missing = [_missing(name) for name in ("runbook_digest", "by", "at") if not getattr(written, name)]
    known = {_top_field(problem.at) for problem in (*file.problems, *missing)}
    if "max_runs" in known:  # unknown whether the approval has an end
        known.add("until")
    found = [problem for problem in find_standing_problems(standing) if _top_field(problem.at) not in known]
    if problems := file.all_problems([*missing, *found]):
        raise InvalidPlanError(problems)
    return standing, file.text


def _missing(name: str) -> Problem:
    hint = "`plan standing add PLAN --file --sign` writes the whole file"
    return Problem("missing-field", at=name, message=f"`{name}` is missing", hint=hint)


def _top_field(at: str) -> str:
    return re.split(r"[.\[]", at, maxsplit=1)[0]


def _canonical_inputs(standing: StandingApproval) -> JsonValue:
    """Return the inputs in canonical form, because a database may reorder keys and turn 1.0 into 1."""
    return json.loads(canonical_json(standing.inputs))


def _format_time(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat() if at is not None else None


def sign_standing(standing: StandingApproval, *, key: Path) -> StandingApproval:
    """Return `standing` with a signature by `key` of the text from `standing_file_text`."""
    return replace(standing, known_by="ssh_signature", signature=sign(standing_file_text(standing), key=key))


def write_signed_standing(standing: StandingApproval, path: Path) -> None:
    """Write a signed standing approval to `path`, and its signature next to it."""
    if standing.signature is None:
        raise NotApprovedError("a standing approval in a file must be signed")
    path.write_bytes(standing_file_text(standing).encode())
    signature_path(path).write_bytes(standing.signature.encode("ascii"))


def read_signed_standing(path: Path, *, policy: EffectivePolicy) -> StandingApproval:
    """Return the standing approval in the file at `path`, if the signature next to it covers these bytes and belongs to the named approver.

    A file without a signature is refused. Raises InvalidPlanError for the file's content and NotApprovedError for its signature.
    """
    standing, text = read_standing_file(path)
    beside = signature_path(path)
    try:
        with beside.open("rb") as stream:
            signature = stream.read(MAX_SIGNATURE_CHARACTERS + 1).decode("ascii", errors="replace")
    except FileNotFoundError:
        raise NotApprovedError(
            f"{path} is not signed: {beside.name} is missing; `plan standing add PLAN --file --sign` writes both"
        ) from None
    except OSError as error:
        raise NotApprovedError(f"the signature {beside} cannot be read: {error}") from None
    try:
        verify_signature(text, signature, allowed=allowed_signers(policy), by=standing.by)
    except NotApprovedError as error:
        raise NotApprovedError(f"{path}: {error}") from None
    return replace(standing, known_by="ssh_signature", signature=signature)


def verify_standing(standing: StandingApproval, *, policy: EffectivePolicy) -> None:
    """Return if the signature of `standing`, as stored, matches its content; raise NotApprovedError otherwise.

    An approval that is not recorded as signed is not checked. One from a file was signed as the file was written, perhaps by hand. If that
    text differs, the source file must still exist, be signed and say the same.
    """
    if standing.known_by != "ssh_signature":
        return
    if standing.signature is None:
        raise NotApprovedError(f"the standing approval by {standing.by} is recorded as signed, but has no signature")
    try:
        verify_signature(standing_file_text(standing), standing.signature, allowed=allowed_signers(policy), by=standing.by)
    except NotApprovedError:
        if standing.source is None:
            raise
        from_file = read_signed_standing(Path(standing.source), policy=policy)
        if (from_file.id, standing_file_text(from_file)) != (standing.id, standing_file_text(standing)):
            raise NotApprovedError(f"{standing.source} and the standing approval by {standing.by} differ") from None
