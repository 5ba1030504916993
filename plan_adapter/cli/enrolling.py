"""Making the secret of a person's one-time codes."""

from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.aside import aside
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.servers import answering_server

if TYPE_CHECKING:
    from plan_adapter.settings import Settings


async def enroll_person(person: str, settings: "Settings", *, as_json: bool) -> int:
    """Keep a new secret for `person` in a Prefect Secret block and print its otpauth URI, which is shown this once."""
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
