"""`plan enroll`."""

from plan_adapter.cli import output
from plan_adapter.cli.asking import ask_to_confirm, is_at_terminal
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.approval import os_user
from plan_adapter.gates.totp import encrypt_seed, new_seed
from plan_adapter.local.settings import Settings


async def enroll(person: str, /, *, force: bool = False, json: bool = False) -> int:
    """Set up one-time codes for a person, who then answers with `--code`.

    The seed goes into the store, encrypted. Its otpauth URI is printed once: turn it into a QR code for their authenticator app.

    Args:
        person: The name under which the person answers: their account, as approvers are named in the policy.
        force: Replace the codes that the person already has, without asking.
        json: Print one JSON object.
    """
    if not person.strip() or person != person.strip():
        raise UsageError("NAME must be the name under which the person answers, without spaces around it")
    settings, (seed, uri), by = Settings(), new_seed(person), os_user()
    async with open_store(settings) as store:
        replaced = await store.codes.seed(person) is not None
        await store.codes.refuse_enrolling(person, by=by)
        if replaced and not force:
            await _confirm_replacement(person)
        await store.codes.enroll(person, encrypt_seed(person, seed, settings), by=by, replaces=replaced)
        where = store.label
    if json:
        output.json_line("enrollment", {"person": person, "uri": uri, "replaced": replaced})
    else:
        output.line(uri)
    output.note(
        f"the seed is stored, encrypted, in {where}; the line above is shown only once: turn it into a QR code for their authenticator app"
    )
    if replaced:
        output.note(f"the codes that {person} had before no longer work")
    return ExitCode.DONE


async def _confirm_replacement(person: str) -> None:
    """Ask at the terminal whether to replace the codes. Raises UsageError if the user declines or cannot be asked."""
    warning = f"{person} already has one-time codes; new ones disable those on their phone"
    if not is_at_terminal():
        raise UsageError(f"{warning}: `--force` replaces them")
    if not await ask_to_confirm(f"{warning}. Replace them?"):
        raise UsageError(f"nothing changed: {person} keeps the one-time codes they have")
