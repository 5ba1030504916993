"""`plan replay`."""

from typing import Literal

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store, plan_of, tools_of
from plan_adapter.cli.spans import parse_span
from plan_adapter.local.settings import Settings


async def replay(
    plan: str,
    /,
    *,
    runs: int = 40,
    since: str | None = None,
    fail_on: Literal["any", "write"] | None = None,
    format: Literal["text", "github", "junit", "sarif"] = "text",
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Show what recorded runs would have done with this version of their plan. No tool is called.

    A call of the same step with the same parameters ends as it did in the run. Any other call is simulated, or its result is unknown.

    Args:
        plan: A plan document, `-` for stdin, `git:REVISION:FILE`, or a stored plan: its name, `name@version` or digest.
        runs: How many runs to replay, the newest first; default: 40.
        since: Only runs of this time: `30d`; s, m, h, d and w are seconds, minutes, hours, days, weeks.
        fail_on: Exit with 1 if a run would go differently: in `any` way; or, with `write`, in a call that writes, a lost gate, or inputs or
            an answer that do not fit any more.
        format: `github` prints annotations of a workflow, `junit` and `sarif` files for other programs. In `junit`, what `--fail-on` does
            not count is no failure.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        json: Print one JSON object per run, then one about all.
    """
    # These import SQLAlchemy.
    from plan_adapter.replay import replay as replay_recorded
    from plan_adapter.text import replay_text

    if json and format != "text":
        raise UsageError(f"--json and --format {format}: give one of them")
    if runs < 1:
        raise UsageError(f"`--runs {runs}`: replay at least one run")
    settings, age = Settings(), None if since is None else parse_span(since, option="--since")
    async with open_store(settings) as store:
        found = await replay_recorded(await plan_of(plan, store), tools_of(tools or []), store, settings, runs=runs, since=age)
    if json:
        for run in found.runs:
            output.json_line("replayed_run", replay_text.run_json(run))
        output.json_line("replay", replay_text.replay_json(found))
    elif format == "text":
        if found.findings:
            output.table(replay_text.COLUMNS, replay_text.replay_rows(found))
            output.line("")
        for text in replay_text.replay_lines(found):
            output.line(text)
    elif format == "github":
        for text in replay_text.replay_github(found):
            output.line(text)
    else:
        output.document(
            (replay_text.replay_sarif(found) if format == "sarif" else replay_text.replay_junit(found, fail_on or "any")) + "\n"
        )
    return ExitCode.FAILED if fail_on is not None and found.failing(fail_on) else ExitCode.DONE
