"""The file next to a runbook that holds its standing approval, and the signature of that file."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from plan_adapter.documents.nodes import Node, UnreadableError
from plan_adapter.gates.coverage import find_standing_problems
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.signatures import MAX_SIGNATURE_CHARACTERS, allowed_signers, sign, verify_signature
from plan_adapter.model.approvals import StandingApproval
from plan_adapter.model.canonical import canonical_json
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.readable import one_line
from plan_adapter.model.values import find_bad_values, join

MAX_BYTES = 256 * 1024
SUFFIX = ".approval.yaml"

_EARLIEST = datetime.min.replace(tzinfo=UTC)
_TIME_HINT = "write it with its time zone: 2026-12-31T23:59:59Z"


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
    file = str(path)
    text = _read_text(Path(path), file)
    root, problems = _parse(text, file)
    values = root.plain()
    if not isinstance(values, dict):
        raise InvalidPlanError([Problem("wrong-type", line=root.line, column=root.column, message="the file is not a mapping", file=file)])
    fields = _Fields(values)
    standing = StandingApproval(
        id=sha256(text.encode()).hexdigest(),
        runbook_digest=fields.text("runbook_digest", required=True, pattern="[0-9a-f]{64}"),
        name=fields.text("name"),
        by=fields.text("by", required=True),
        known_by="unverified",
        at=fields.time("at", required=True) or _EARLIEST,
        inputs=fields.mapping("inputs"),
        schedules=fields.texts("schedules"),
        steps=fields.texts("steps"),
        until=fields.time("until"),
        max_runs=fields.integer("max_runs"),
        note=fields.text("note"),
        source=file,
    )
    fields.report_unknown_fields()
    known = {_top_field(problem.at) for problem in (*problems, *fields.problems)}
    if "max_runs" in known:  # unknown whether the approval has an end
        known.add("until")
    problems += fields.problems + [problem for problem in find_standing_problems(standing) if _top_field(problem.at) not in known]
    if problems:
        raise InvalidPlanError(_locate(problems, root, file))
    return standing, text


class _Fields:
    """Reads the fields of the file one by one. A bad field is reported and gets its default."""

    def __init__(self, values: Mapping[str, JsonValue]) -> None:
        self.problems: list[Problem] = []
        self._values = values
        self._known: list[str] = []

    def text(self, name: str, *, required: bool = False, pattern: str = r"[\s\S]*") -> str:
        value = self._get(name, required=required)
        if value is None:
            return ""
        if not isinstance(value, str):
            self._report_type(name, "text")
        elif not re.fullmatch(pattern, value):
            self._report("bad-value", name, "this is not the digest of a runbook", "`plan standing add PLAN --file --sign` writes it")
        else:
            return value
        return ""

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self._report_type(name, "a list of strings")
            return ()
        for index, member in enumerate(value):
            if not isinstance(member, str):
                self._report_type(join(name, index), "text")
        return tuple(dict.fromkeys(member for member in value if isinstance(member, str)))

    def time(self, name: str, *, required: bool = False) -> datetime | None:
        value = self._get(name, required=required)
        if value is None:
            return None
        try:
            read = datetime.fromisoformat(cast("str", value))
        except (ValueError, TypeError):
            self._report("bad-value", name, "this is not a time", _TIME_HINT)
            return None
        if read.utcoffset() is None:
            self._report("bad-value", name, "the time has no time zone", _TIME_HINT)
            return None
        try:
            return read.astimezone(UTC)
        except OverflowError:
            self._report("bad-value", name, "the time is out of range", _TIME_HINT)
            return None

    def integer(self, name: str) -> int | None:
        value = self._get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        self._report_type(name, "an integer")
        return None

    def mapping(self, name: str) -> dict[str, JsonValue]:
        value = self._get(name)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self._report_type(name, "a mapping of inputs to patterns or values")
        return {}

    def report_unknown_fields(self) -> None:
        """Report the fields that were not read."""
        for name in self._values:
            if name not in self._known:
                hint = did_you_mean(name[:60], frozenset(self._known))
                self._report("unknown-field", name, f"a standing approval has no field `{one_line(name)[:60]}`", hint)

    def _get(self, name: str, *, required: bool = False) -> JsonValue:
        self._known.append(name)
        if required and self._values.get(name) in (None, ""):
            self._report("missing-field", name, f"`{name}` is missing", "`plan standing add PLAN --file --sign` writes the whole file")
        return self._values.get(name)

    def _report_type(self, at: str, wanted: str) -> None:
        self._report("wrong-type", at, f"it takes {wanted}", "")

    def _report(self, code: str, at: str, message: str, hint: str) -> None:
        if _top_field(at) not in {problem.at for problem in self.problems}:
            self.problems.append(Problem(code, at=at, message=message, hint=hint))


def _read_text(path: Path, file: str) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _unreadable("unreadable", "the file does not exist", "check the path", file) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unreadable("unreadable", f"the file cannot be read: {reason}", "check the path and its permissions", file) from None
    if len(content) > MAX_BYTES:
        raise _unreadable("too-large", f"the file is larger than {MAX_BYTES // 1024} KB", "a standing approval is never that large", file)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _unreadable("not-utf8", "the file is not UTF-8 text", "save it as UTF-8", file) from None


def _parse(text: str, file: str) -> tuple[Node, list[Problem]]:
    from plan_adapter.documents.yaml_text import read_yaml  # imports yaml

    try:
        root, problems = read_yaml(text.removeprefix("\ufeff"))
    except UnreadableError as error:
        raise InvalidPlanError([replace(error.problem, file=file)]) from None
    if root is None:
        raise _unreadable("syntax", "the file is empty", "`plan standing add PLAN --file --sign` writes it", file)
    return root, problems


def _unreadable(code: str, message: str, hint: str, file: str) -> InvalidPlanError:
    return InvalidPlanError([Problem(code, message=message, hint=hint, file=file)])


def _locate(problems: list[Problem], root: Node, file: str) -> list[Problem]:
    located: list[Problem] = []
    for problem in problems:
        node = root.find(problem.at)
        line, column = (problem.line, problem.column) if problem.line is not None else (node.line, node.column)
        located.append(replace(problem, line=line, column=column, file=file))
    return sorted(located, key=lambda problem: (problem.line or 0, problem.column or 0))


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
