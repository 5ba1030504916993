"""Making the secret of a person's one-time codes."""

from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.aside import aside
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.servers import answering_server

if TYPE_CHECKING:
    from plan_adapter.settings import Settings


async def enroll_person(person: str, settings: "Settings", *, force: bool, as_json: bool) -> int:
    """Keep a new secret for `person` in a Prefect Secret block and print its otpauth URI, which is shown this once.

    One that they have is replaced with `force`, or if whoever is at the terminal says so.
    """
    from plan_adapter.engine.connection import use_server
    from plan_adapter.identity.codes import block_name, new_secret

    if not person.strip():
        raise UsageError("--enroll needs the name under which the person answers")
    server = await aside(lambda: answering_server(settings))
    if server is None:
        raise UsageError(
            "one-time codes are kept in Prefect's Secret blocks, and no server runs: `plan run` starts one, or set PREFECT_API_URL"
        )
    from plan_adapter.engine.secret_blocks import PrefectSecrets

    name, (secret, uri) = block_name(person), new_secret(person)
    with use_server(server):
        secrets = PrefectSecrets()
        replaced = await secrets.secret(name) is not None
        if replaced and not force:
            await _ask_to_replace(person)
        await secrets.keep_secret(name, secret)
    if as_json:
        output.json_line({"person": person, "block": name, "uri": uri, "replaced": replaced})
    else:
        output.line(uri)
    output.note(
        f"kept in the Secret block `{name}` of {server.api_url}; the line above is shown this once: make a QR code of it for their phone"
    )
    if replaced:
        output.note(f"the codes of the secret that {person} had before count no more")
    return ExitCode.DONE


async def _ask_to_replace(person: str) -> None:
    """Ask the person at the terminal; raises UsageError where they do not want it, or nobody is there."""
    from plan_adapter.approvers.conversation import Conversation
    from plan_adapter.cli.asking import is_at_terminal

    has_one = f"{person} has a secret of one-time codes, and a new one makes the codes on their phone worthless"
    if not is_at_terminal():
        raise UsageError(f"{has_one}: `--force` replaces it")
    if (await Conversation().ask(f"{has_one}. Replace it? [y]es, [n]o ", forget=True) or "").casefold() not in ("y", "yes"):
        raise UsageError(f"the secret of {person} is as it was")
