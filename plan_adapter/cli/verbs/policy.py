"""`plan policy`."""

from typing import TYPE_CHECKING, Any, Literal

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.policy import Policy, read_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.readable import moment, one_line

if TYPE_CHECKING:
    from plan_adapter.gates.identity import Identity
    from plan_adapter.store.policies import PolicyVersion
    from plan_adapter.store.store import PlanStore


async def policy(
    action: Literal["show", "set"] = "show",
    file: str | None = None,
    /,
    *,
    all: bool = False,
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    json: bool = False,
) -> int:
    """Show the policy that the store keeps for every plan, or set its next version.

    A policy says who may approve and operate, which groups exist, how approvers must prove who they are, which steps get a gate, and whose
    SSH signatures count. Environment variables (PLAN_ADAPTER_…) can only tighten it. If the policy names operators, only they can set the
    next version; anybody who can write to the store can set the first.

    `plan policy show` exits with 1 if a version was altered in the database.

    Args:
        action: `show` (the default) or `set`.
        file: With `set`: a YAML or JSON file with any of approvers, operators, groups, known_by, self_approval, gate_effects,
            allow_unapproved, allowed_signers.
        all: With `show`: print every version, oldest first.
        sign: With `set`: sign the policy with your SSH key, where the policy asks for that.
        code: With `set`: your one-time code, where the policy asks for one.
        by: With `set`: who sets it (with `--sign` or `--code`); default: your account.
        json: Print one JSON object per version.
    """
    settings = Settings()
    async with open_store(settings) as store:
        if action == "set":
            if file is None or all:
                raise UsageError("`plan policy set FILE` sets a policy")
            if by is not None and not (sign or code):
                raise UsageError("--by alone proves nothing: add --sign, or --code with that person's one-time code")
            return await _set_policy(file, store, settings, sign=sign, code=code, by=by, as_json=json)
        if file is not None or sign or code or by:
            raise UsageError("`plan policy show` takes no file, --sign, --code or --by; `plan policy set FILE` does")
        return await _show_policy(store, with_all=all, as_json=json)


async def _show_policy(store: "PlanStore", *, with_all: bool, as_json: bool) -> int:
    versions, problem = await store.policy.history()
    for version in versions if with_all else versions[-1:]:
        if as_json:
            output.json_line("policy", {**_version_json(version), "problem": problem})
        else:
            _print_version(version)
    if problem is not None:
        output.note(f"altered: {problem}; this store approves and runs nothing until its owner restores the rows")
        return ExitCode.FAILED
    if not versions and as_json:
        output.json_line("policy", {"number": None, "policy": None, "problem": None})
    elif not versions:
        output.line("the store has no policy: the environment of each process decides who may do what; `plan policy set FILE` sets one")
    return ExitCode.DONE


async def _set_policy(
    file: str, store: "PlanStore", settings: Settings, *, sign: bool, code: str | None, by: str | None, as_json: bool
) -> int:
    # Only to set a policy.
    from plan_adapter.gates.approval import os_user
    from plan_adapter.gates.identity import identity_by_code, identity_of_account
    from plan_adapter.store.policies import NewPolicy

    new, current = read_policy(file), await store.policy.current()
    author, number = by or os_user(), 1 if current is None else current.number + 1
    identity, signature = identity_of_account(author), None
    if code is not None:
        identity = await identity_by_code(author, code, codes=store.codes, settings=settings)
    if sign:
        identity, signature = await _sign_policy(new, number, author, store, settings)
    version = await store.policy.set(NewPolicy(new, number, author, identity.known_by, signature), identity=identity)
    if as_json:
        output.json_line("policy", _version_json(version))
        return ExitCode.DONE
    output.line(f"version {version.number} of the store's policy applies from now on, set by {one_line(version.by)} ({version.known_by})")
    if not new.operators:
        output.note(
            "it names no operators: anybody who can write to this store can set the next one, and enroll one-time codes for anybody"
        )
    if new.approvers and not new.known_by:
        output.note(
            "it names approvers but no `known_by`: a program can answer under any of these names; `known_by: [os_user]` asks for proof"
        )
    return ExitCode.DONE


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
