"""Enrolling a person: the seed of their one-time codes goes into the store, encrypted, and is shown this once."""

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.settings import Settings


async def enroll_person(person: str, settings: Settings, *, force: bool, as_json: bool) -> int:
    """Keep a new seed for `person` and print its otpauth URI. One that they have is replaced with `force`, or once that is confirmed."""
    from plan_adapter.approval import os_user
    from plan_adapter.identity.codes import new_seed
    from plan_adapter.identity.seeds import seal

    if not person.strip() or person != person.strip():
        raise UsageError("--enroll needs the name under which the person answers, without white space around it")
    (seed, uri), by = new_seed(person), os_user()
    async with open_store(settings) as store:
        replaced = await store.totp_seed(person) is not None
        await store.refuse_enrolling(person, by=by)
        if replaced and not force:
            await _confirm_replacing(person)
        await store.add_totp_seed(person, seal(person, seed, settings), by=by, known_by="os_user", replaces=replaced)
        where = store.label
    if as_json:
        output.json_line({"person": person, "uri": uri, "replaced": replaced})
    else:
        output.line(uri)
    output.note(f"the seed is kept encrypted in {where}; the line above is shown this once: make a QR code of it for their phone")
    if replaced:
        output.note(f"codes of the seed that {person} had before count no more")
    return ExitCode.DONE


async def _confirm_replacing(person: str) -> None:
    """Ask the person at the terminal; raises UsageError where they do not want it, or nobody is there."""
    from plan_adapter.approvers.conversation import Conversation
    from plan_adapter.cli.asking import is_at_terminal

    has_one = f"{person} has one-time codes, and new ones make those on their phone worthless"
    if not is_at_terminal():
        raise UsageError(f"{has_one}: `--force` replaces them")
    if (await Conversation().ask(f"{has_one}. Replace them? [y]es, [n]o ", forget=True) or "").casefold() not in ("y", "yes"):
        raise UsageError(f"the one-time codes of {person} are as they were")
