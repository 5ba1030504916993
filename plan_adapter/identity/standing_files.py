"""Standing approvals whose signature is verified: those in the store, and those in a file beside a runbook."""

from dataclasses import replace
from pathlib import Path

from plan_adapter.errors import NotApprovedError
from plan_adapter.identity.signatures import MAX_SIGNATURE_CHARACTERS, allowed_signers, sign, signer
from plan_adapter.policy import PolicyInForce
from plan_adapter.record import StandingApproval
from plan_adapter.standing import read_standing_file, signature_path, write_standing_file


def sign_standing(standing: StandingApproval, *, key: Path) -> StandingApproval:
    """Return `standing` with the signature, by `key`, of the text that `write_standing_file` gives for it."""
    return replace(standing, known_by="ssh_signature", signature=sign(write_standing_file(standing), key=key))


def write_signed(standing: StandingApproval, path: Path) -> None:
    """Write a signed standing approval and its signature to `path` and beside it."""
    if standing.signature is None:
        raise NotApprovedError("a standing approval in a file must be signed")
    path.write_bytes(write_standing_file(standing).encode())
    signature_path(path).write_bytes(standing.signature.encode("ascii"))


def signed_standing(path: Path, *, policy: PolicyInForce) -> StandingApproval:
    """Return the standing approval in the file at `path`, once the signature beside it is known to be of these bytes by who is named.

    Without a signature a file is nobody's word. Raises InvalidPlanError for what the file says, NotApprovedError for its signature.
    """
    standing, text = read_standing_file(path)
    beside = signature_path(path)
    try:
        with beside.open("rb") as stream:
            signature = stream.read(MAX_SIGNATURE_CHARACTERS + 1).decode("ascii", errors="replace")
    except FileNotFoundError:
        raise NotApprovedError(
            f"{path} is not signed: there is no {beside.name} beside it; `plan standing add PLAN --file --sign` writes both"
        ) from None
    except OSError as error:
        raise NotApprovedError(f"the signature {beside} cannot be read: {error}") from None
    try:
        signer(text, signature, allowed=allowed_signers(policy), by=standing.by)
    except NotApprovedError as error:
        raise NotApprovedError(f"{path}: {error}") from None
    return replace(standing, known_by="ssh_signature", signature=signature)


def verify_standing(standing: StandingApproval, *, policy: PolicyInForce) -> None:
    """Return if the signature of `standing`, as the store keeps it, is of what it says; raises NotApprovedError otherwise.

    One that does not claim to be signed is not looked at. One of a file is signed as the file was written, by hand perhaps: where its
    text is another, the file that it came from must still say the same.
    """
    if standing.known_by != "ssh_signature":
        return
    if standing.signature is None:
        raise NotApprovedError(f"the standing approval by {standing.by} is recorded as signed, and holds no signature")
    try:
        signer(write_standing_file(standing), standing.signature, allowed=allowed_signers(policy), by=standing.by)
    except NotApprovedError:
        if standing.source is None:
            raise
        written = signed_standing(Path(standing.source), policy=policy)
        if (written.id, write_standing_file(written)) != (standing.id, write_standing_file(standing)):
            raise NotApprovedError(f"{standing.source} and the standing approval by {standing.by} do not say the same") from None
