"""`plan policy`: its actions."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.answering import refuse_name_alone
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.policy import Policy, read_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.readable import moment, one_line

if TYPE_CHECKING:
    from plan_adapter.gates.identity import Identity
    from plan_adapter.store.policies import PolicyVersion
    from plan_adapter.store.store import PlanStore


async def policy_show(*, all: bool = False, json: bool = False) -> int:
    """Show the policy that the store keeps for every plan.

    A policy says who may approve and operate, which groups exist, how approvers must prove who they are, which steps get a gate, whose SSH
    signatures count, and when runs do not start. Environment variables (PLAN_ADAPTER_…) can only tighten it. Exits with 1 if a version
    was altered in the database.

    Args:
        all: Print every version, oldest first.
        json: Print one JSON object per version.
    """
    async with open_store(Settings()) as store:
        versions, problem = await store.policy.history()
    for version in versions if all else versions[-1:]:
        if json:
            output.json_line("policy", {**_version_json(version), "problem": problem})
        else:
            _print_version(version)
            if version is versions[-1]:
                _print_freezes(version)
    if problem is not None:
        output.note(f"altered: {problem}; this store approves and runs nothing until its owner restores the rows")
        return ExitCode.FAILED
    if not versions and json:
        output.json_line("policy", {"number": None, "policy": None, "problem": None})
    elif not versions:
        output.line("the store has no policy: the environment of each process decides who may do what; `plan policy set FILE` sets one")
    return ExitCode.DONE


async def policy_set(file: str, /, *, sign: bool = False, code: str | None = None, by: str | None = None, json: bool = False) -> int:
    """Set the next version of the policy that the store keeps for every plan.

    If the current policy names operators, only they can set the next version. Anybody who can write to the store can set the first.

    Args:
        file: A YAML or JSON file with any of approvers, operators, groups, known_by, quorum, self_approval, author_approval,
            gate_effects, allow_unapproved, allowed_signers, freezes.
        sign: Sign the policy with your SSH key, where the policy asks for that.
        code: Your one-time code, where the policy asks for one.
        by: Who sets it (with `--sign` or `--code`); default: your account.
        json: Print one JSON object.
    """
    refuse_name_alone(by, sign=sign, code=code)
    from plan_adapter.gates.approval import os_user  # only to set a policy

    settings = Settings()
    async with open_store(settings) as store:
        version = await _set_policy(read_policy(file), store, settings, with_signature=sign, code=code, by=by or os_user())
    if json:
        output.json_line("policy", _version_json(version))
        return ExitCode.DONE
    output.line(f"version {version.number} of the store's policy applies from now on, set by {one_line(version.by)} ({version.known_by})")
    if not version.policy.operators:
        output.note(
            "it names no operators: anybody who can write to this store can set the next one, and enroll one-time codes for anybody"
        )
    if version.policy.approvers and not version.policy.known_by:
        output.note(
            "it names approvers but no `known_by`: a program can answer under any of these names; `known_by: [os_user]` asks for proof"
        )
    return ExitCode.DONE


async def _set_policy(
    new: Policy, store: "PlanStore", settings: Settings, *, with_signature: bool, code: str | None, by: str
) -> "PolicyVersion":
    # Only to set a policy.
    from plan_adapter.gates.identity import identity_by_code, identity_of_account
    from plan_adapter.store.policies import NewPolicy

    current = await store.policy.current()
    number = 1 if current is None else current.number + 1
    identity, signature = identity_of_account(by), None
    if code is not None:
        identity = await identity_by_code(by, code, codes=store.codes, settings=settings)
    if with_signature:
        identity, signature = await _sign_policy(new, number, by, store, settings)
    return await store.policy.set(NewPolicy(new, number, by, identity.known_by, signature), identity=identity)


async def _sign_policy(new: Policy, number: int, by: str, store: "PlanStore", settings: Settings) -> "tuple[Identity, str]":
    """Return who signed a new policy, by the current allowed signers, and the signature."""
    from plan_adapter.gates.identity import identity_by_signature
    from plan_adapter.gates.signatures import default_key, sign
    from plan_adapter.store.policies import signed_policy

    text = signed_policy(new, number)
    signature = sign(text, key=default_key(settings))
    return await identity_by_signature(by, text, signature, policy=await store.policy.effective(settings)), signature


def _version_json(version: "PolicyVersion") -> dict[str, Any]:
    return {
        "number": version.number,
        "by": version.by,
        "known_by": version.known_by,
        "at": version.at.isoformat(),
        "digest": version.digest,
        "policy": version.policy.to_document(),
    }


def _print_version(version: "PolicyVersion") -> None:
    from plan_adapter.documents.yaml_text import write_yaml

    author = f"{one_line(version.by)} ({version.known_by})"
    output.line(f"# version {version.number}, set by {author} at {moment(version.at)}, digest {version.digest}")
    output.line(write_yaml(version.policy.to_document()).rstrip("\n"))


def _print_freezes(version: "PolicyVersion") -> None:
    """Print which of the policy's change freezes are in force, and when the others start if that is soon."""
    from plan_adapter.gates.freezes import freeze_line, shown_freezes  # imports the time zones

    try:
        for freeze, in_force in shown_freezes(version.policy.freezes, datetime.now(UTC)):
            output.line(f"# {freeze_line(freeze, in_force=in_force)}")
    except NotApprovedError as error:  # without the extra `calendars`
        output.note(str(error))
