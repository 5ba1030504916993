"""`plan run`."""

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.asking import ask_missing_inputs, is_at_terminal
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.foreground import ForegroundRun, RunOptions, begin_server, refuse_empty_reason
from plan_adapter.cli.servers import with_known_variables
from plan_adapter.cli.sources import input_texts, open_store, plan_of, policy_of_store, tools_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.inventory import ON
from plan_adapter.validation import bind_inputs, validate


def run(
    plan: str,
    /,
    *,
    input: list[str] | None = None,
    inputs: Path | None = None,
    on: Annotated[str | None, Parameter(name=("--on", "--limit"))] = None,
    tools: list[str] | None = None,
    offline: bool = False,
    on_server: bool = False,
    yes: bool = False,
    detach: bool = False,
    dry_run: Annotated[bool, Parameter(name=("--dry-run", "--dry"))] = False,
    no_reads: bool = False,
    answer: list[str] | None = None,
    override_freeze: str | None = None,
    json: bool = False,
) -> int:
    """Run a plan and show its progress: live on a terminal, as plain lines elsewhere.

    At a terminal you are asked for required inputs that are missing or wrong, unless you give `--yes` or `--json`. Tools and secrets are
    checked before.

    At a gate you are asked on the terminal, and in a form on the run's page in Prefect; `plan approve` answers as well. The run stays
    waiting, and the command exits with 6, where nobody can be asked: offline without a terminal, or after SIGTERM or a closed terminal.

    The run is a flow run on the Prefect server of Prefect's settings, or else on a local server that starts once. With `--on-server` a
    worker runs it: the command starts the runbook that `plan deploy` deployed and follows its run. Ctrl-C then stops only following.

    With `--dry-run` nothing is changed: tools that read are called, those that write are simulated or their results stay unknown, and gates
    are listed. It exits with 1 if a call fails.

    Args:
        plan: A plan document, `-` for stdin, `git:REVISION:FILE`, or a stored plan: its name, `name@version` or digest. With
            `--on-server`: the name of a deployed runbook.
        input: `name=value`, an input of the run; may be repeated.
        inputs: A JSON or YAML file of inputs; `--input` overrides it.
        on: The hosts of the run, of those in the plan: `web-1,web-2`, or `web:!web-3`. It is the input `on`.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        offline: Run without Prefect: same steps, same record, no UI.
        on_server: Start the deployment of this runbook, and follow its run.
        yes: Approve gates as your account, as far as the policy allows; never changed content or the calls of a model.
        detach: Do not wait for answers: once only gates are left to wait for, leave the run waiting and exit with 6. With `--on-server`:
            print the id of the flow run and do not wait for anything.
        dry_run: Show what a run would do, without any effect.
        no_reads: With `--dry-run`: do not call tools that read, either.
        answer: With `--dry-run`: `step.field=value`, an answer to a question; may be repeated.
        override_freeze: Ask to start during a change freeze of the store's policy, and say why. The people whom the policy names for that
            must approve the run.
        json: Print events as JSON Lines; the last line is the run.
    """
    given = input_texts([*(input or []), *([f"{ON}={on}"] if on is not None else [])], inputs)
    refuse_empty_reason(override_freeze)
    if override_freeze is not None and (dry_run or on_server):
        raise UsageError("--override-freeze is for a run of this process: nobody sees the gate of a dry run or of a worker in time")
    if dry_run:
        if refused := [name for name, is_given in (("--detach", detach), ("--on-server", on_server), ("--yes", yes)) if is_given]:
            raise UsageError(f"{refused[0]} is for a run, and --dry-run only shows what one would do")
        return asyncio.run(_dry_run(plan, given, tools or [], _answers_of(answer or []), reads=not no_reads, as_json=json))
    if no_reads or answer:
        raise UsageError("--no-reads and --answer go with --dry-run")
    if on_server:
        if refused := [name for name, is_given in (("--offline", offline), ("--yes", yes), ("--tools", tools)) if is_given]:
            raise UsageError(f"{refused[0]} is for a run of this process, and with --on-server a worker runs the plan")
        from plan_adapter.cli.deployed_run import run_deployed  # imports Prefect

        return asyncio.run(run_deployed(plan, given, detach=detach, as_json=json))
    return asyncio.run(_run(plan, given, tools or [], RunOptions(yes, detach, json, override_freeze), offline=offline))


def _answers_of(given: list[str]) -> dict[str, dict[str, str]]:
    """Return the answers to questions: by step, the values of the fields as texts."""
    answers = dict[str, dict[str, str]]()
    for pair in given:
        place, equals, value = pair.partition("=")
        step_id, dot, name = place.strip().rpartition(".")
        if not (equals and dot and step_id and name):
            raise UsageError(f"`--answer {pair}`: write --answer step.field=value")
        answers.setdefault(step_id, {})[name] = value
    return answers


async def _dry_run(
    source: str, texts: dict[str, str], tools: list[str], answers: dict[str, dict[str, str]], *, reads: bool, as_json: bool
) -> int:
    # These import SQLAlchemy.
    from plan_adapter.rehearsal import rehearse
    from plan_adapter.text.dry_run_text import COLUMNS, dry_run_json, dry_run_lines, dry_run_rows

    settings = Settings()
    plan, policy = await plan_of(source), await policy_of_store(settings)
    given = await with_known_variables(plan, texts, settings)
    found = await rehearse(plan, tools_of(tools), given, policy=policy, settings=settings, answers=answers, reads=reads, from_text=True)
    if as_json:
        output.json_line("dry_run", dry_run_json(found))
    else:
        output.table(COLUMNS, dry_run_rows(found))
        output.line("")
        for text in dry_run_lines(found):
            output.line(text)
    return ExitCode.DONE if found.is_complete else ExitCode.FAILED


async def _run(source: str, texts: dict[str, str], tools: list[str], options: RunOptions, *, offline: bool) -> int:
    # These import SQLAlchemy.
    from plan_adapter.runs.run_session import look_up_secrets_on
    from plan_adapter.runs.secret_lookup import refuse_missing_secrets
    from plan_adapter.runs.start import execute_plan
    from plan_adapter.runs.variables import note_variables, with_variables

    settings = Settings()
    async with open_store(settings) as store:
        plan = await plan_of(source, store)
        pending = begin_server(settings, offline=offline)
        registry = tools_of(tools)
        validated = validate(plan, registry)
        can_ask = is_at_terminal() and not (options.json or options.yes)
        reads = bool(validated.plan.unread_variables(texts))
        server = await in_daemon_thread(pending.wait) if pending is not None and (reads or (can_ask and validated.secrets)) else None
        given = known = await with_variables(validated.plan, texts, server=server)
        if can_ask:
            with look_up_secrets_on(server):  # before anybody types a value that the run would then not use
                await refuse_missing_secrets(validated, settings)
            given = await ask_missing_inputs(validated.plan, given)
        bound = note_variables(bind_inputs(validated, given, from_text=True), before=texts, after=known)
        if server is None and pending is not None:
            server = await in_daemon_thread(pending.wait)
        foreground = ForegroundRun(server, options, store=store, tools=registry, imports=tools)
        execution = execute_plan(bound, run_request=foreground.request(settings), store=store, offline=offline, record_pending=True)
        return await foreground.complete(execution)
