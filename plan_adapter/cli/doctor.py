"""`plan doctor`."""

import asyncio
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.readable import counted
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.engine.diagnosis import Finding


def doctor(*, tools: list[str] | None = None, json: bool = False) -> int:
    """Say what is wrong with this installation, its server, store, tools and signers; starts no server. Ends with 2 if anything is.

    Args:
        tools: `package.module:name` of tools to look at, too; may be repeated.
        json: Print one JSON object per finding.
    """
    from plan_adapter.engine.diagnosis import diagnose

    settings = Settings()
    findings = diagnose(settings, checks=(lambda: _store(settings), lambda: _tools(tools or []), lambda: _signatures(settings)))
    for finding in findings:
        if json:
            output.json_line(asdict(finding))
        else:
            output.line(f"{'ok ' if finding.ok else 'BAD'} {finding.what}" + (f"\n    {finding.hint}" if finding.hint else ""))
    return ExitCode.DONE if all(finding.ok for finding in findings) else ExitCode.USAGE


def _store(settings: Settings) -> "Finding":
    from plan_adapter.engine.diagnosis import Finding
    from plan_adapter.errors import StoreError

    async def look() -> str:
        async with open_store(settings) as store:
            await store.now()
            return repr(store).strip("<>").removeprefix("PlanStore: ")

    try:
        return Finding(ok=True, what=f"{asyncio.run(look())} answers")
    except StoreError as error:
        return Finding(ok=False, what=str(error))


def _tools(imports: list[str]) -> "Finding":
    from plan_adapter.engine.diagnosis import Finding
    from plan_adapter.errors import ToolDefinitionError

    try:
        return Finding(ok=True, what=f"{len(tools_of(imports))} tools")
    except ToolDefinitionError as error:
        return Finding(ok=False, what=str(error))


def _signatures(settings: Settings) -> "Finding":
    """Whether signed answers can be verified here, where anything demands or names them."""
    from plan_adapter.engine.diagnosis import Finding

    can_sign = shutil.which("ssh-keygen") is not None
    file = settings.allowed_signers.expanduser() if settings.allowed_signers is not None else None
    if file is None:
        demanded = settings.known_by == ("ssh_signature",)
        what = "PLAN_ADAPTER_ALLOWED_SIGNERS names no file: signed answers (`plan approve --sign`) are not taken"
        return Finding(ok=not demanded, what=what, hint="PLAN_ADAPTER_KNOWN_BY takes no other answer" if demanded else "")
    if not can_sign:
        return Finding(ok=False, what="there is no `ssh-keygen`: no signature can be verified", hint="apt install openssh-client")
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        what = f"the file of allowed signers {file} cannot be read: {error.strerror or error}"
        return Finding(ok=False, what=what, hint="PLAN_ADAPTER_ALLOWED_SIGNERS names it: a line for each key, `ana ssh-ed25519 AAAA…`")
    keys = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    hint = "" if keys else "write a line for each key: `ana ssh-ed25519 AAAA…`"
    return Finding(ok=bool(keys), what=f"file of allowed signers {file}: {counted(len(keys), 'key')}", hint=hint)
