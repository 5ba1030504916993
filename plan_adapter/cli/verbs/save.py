"""`plan save`."""

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.records import version_json
from plan_adapter.cli.sources import open_store, plan_of, tools_of
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.validation import validate


async def save(plan: str, /, *, name: str | None = None, tools: list[str] | None = None, json: bool = False) -> int:
    """Save a plan in the store, as the next version of its name. A version never changes.

    Args:
        plan: A plan document, `-` for stdin, `git:REVISION:FILE`, or a stored plan: its name, `name@version` or digest.
        name: Save it under this name; default: the plan's own.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        json: Print one JSON object.
    """
    settings = Settings()
    async with open_store(settings) as store:
        validated = validate(await plan_of(plan, store), tools_of(tools or []))
        newest = next(iter(await store.versions(name or validated.plan.name)), None)
        saved = await store.save(validated.plan, author=os_user(), name=name)
    if json:
        output.json_line("version", version_json(saved) or {})
        return ExitCode.DONE
    is_new = newest is None or newest.version != saved.version
    output.line(f"{saved.name}@{saved.version}: {'saved' if is_new else 'unchanged'} ({saved.digest[:12]})")
    if is_new:
        output.note(f"`plan run store:{saved.name}@{saved.version}` runs this version")
    return ExitCode.DONE
