"""`plan preview`."""

import asyncio
from pathlib import Path

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.sources import input_texts, plan_of, tools_of


def preview(
    plan: str,
    /,
    *,
    input: list[str] | None = None,
    inputs: Path | None = None,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Show what a run would do, without doing it: order, waves, resolved parameters, retries, effects, the longest it may take.

    Expressions that depend on results are shown as they are written, and so are those that use inputs that are still missing.

    Args:
        plan: A plan document, `-` for stdin, or a stored plan: its digest or `store:name@version`.
        input: `name=value`, an input of the run; may be repeated.
        inputs: A JSON or YAML file of inputs; `--input` goes before it.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        json: Print one JSON object.
    """
    from plan_adapter.cli.previewing import preview_with
    from plan_adapter.preview import preview_text
    from plan_adapter.validation import validate

    given = input_texts(input or [], inputs)
    shown = preview_with(validate(asyncio.run(plan_of(plan)), tools_of(tools or [])), given)
    if json:
        output.json_line(shown.as_json())
    else:
        output.line(preview_text(shown).rstrip("\n"))
    return ExitCode.DONE
