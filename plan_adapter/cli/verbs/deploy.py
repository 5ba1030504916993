"""`plan deploy`."""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from plan_adapter.cli import output
from plan_adapter.cli.asking import ask_to_confirm, is_at_terminal
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.foreground import begin_server
from plan_adapter.cli.servers import available_server, running_server, worker_command
from plan_adapter.cli.sources import documents_in, input_texts, open_store, pin, plan_of, tools_of
from plan_adapter.documents import is_test_file, read_file, read_mapping
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.gates.approval import gate_policy_of, os_user, requires_approval
from plan_adapter.gates.coverage import takes_standing_approvals
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import counted, listed, one_line
from plan_adapter.store.store import is_local
from plan_adapter.validation import validate

if TYPE_CHECKING:
    from prefect.client.schemas.schedules import SCHEDULE_TYPES

    from plan_adapter.engine.deployments import Deployer, DeploymentOptions, PlannedDeployment, RunbookDeployment
    from plan_adapter.gates.policy import EffectivePolicy
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.runbooks.added_triggers import AddedTrigger
    from plan_adapter.store.store import PlanStore
    from plan_adapter.tools.registry import ToolRegistry
    from plan_adapter.validation import ValidatedPlan

_ScheduleKind: TypeAlias = Literal["cron", "interval", "rrule"]

MAX_NAMED = 5

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_INTERVAL = re.compile(r"(\d+)\s*([smhd]?)")


def deploy(
    source: str,
    /,
    *,
    cron: str | None = None,
    interval: str | None = None,
    rrule: str | None = None,
    time_zone: str | None = None,
    trigger: list[str] | None = None,
    input: list[str] | None = None,
    inputs: Path | None = None,
    pool: str | None = None,
    work_queue: str | None = None,
    concurrency_limit: int | None = None,
    paused: bool = False,
    tools: list[str] | None = None,
    image: str | None = None,
    job_variable: list[str] | None = None,
    pull: Path | None = None,
    dry_run: bool = False,
    delete: bool = False,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Deploy a runbook, or every runbook in a folder, to Prefect: with a form for its inputs, and a schedule if you give one.

    The plan is saved in the store, and each run of the deployment runs exactly that version. Deploy again after a change; runs that wait
    keep their version. Options that you leave out keep the value that the deployment has. Workers need this package, the tools and the
    store: set PLAN_ADAPTER_DATABASE_URL where they run, unless they run on this machine.

    Args:
        source: A plan, named as for `plan run`, or a folder of plan documents.
        cron: Start runs by this cron expression: `"0 3 * * *"`.
        interval: Start runs at this interval: `15m`, `6h`, `1d`, or a number of seconds.
        rrule: Start runs by this iCalendar rule.
        time_zone: The time zone of the schedule, such as `Europe/Berlin`; default: UTC.
        trigger: `EVENT` or `EVENT@RESOURCE`, an event in Prefect, of that resource, that also starts it, whose payload has the required
            inputs by name; or a YAML or JSON file with `triggers`, as in a plan. May be repeated. It belongs to the version that it
            deploys: give it again when you deploy again.
        input: `name=value`, an input of scheduled runs and the value that the form starts with; may be repeated.
        inputs: A JSON or YAML file of inputs; `--input` overrides it.
        pool: The work pool; default: Prefect's own setting, else `plans`. A missing one is created as a process pool, after asking.
        work_queue: The queue of the work pool.
        concurrency_limit: How many runs of the deployment may run at once.
        paused: Deploy it paused: its schedule starts nothing until somebody resumes it in Prefect.
        tools: `package.module:name` of a tool or registry that workers import; may be repeated.
        image: The image of the work pool's containers.
        job_variable: `name=value`, a job variable of the work pool, or `env.NAME=value`; may be repeated.
        pull: A YAML or JSON file with `pull`: a list of Prefect's pull steps, which fetch code before a run.
        dry_run: Show what would change, and change nothing. It starts no server: if none is running, the plans are only checked.
        delete: Delete the deployment of the runbook with that name, its schedule and the automations of its triggers. Its runs, the
            versions of its plan and its standing approvals stay.
        yes: Create a missing work pool without asking.
        json: Print one JSON object per deployment.
    """
    if delete:
        others = (
            cron,
            interval,
            rrule,
            time_zone,
            trigger,
            input,
            inputs,
            pool,
            work_queue,
            concurrency_limit,
            tools,
            image,
            job_variable,
            pull,
        )
        if any(others) or paused or dry_run:
            raise UsageError("--delete takes the name of a runbook, and no other option but --json")
        return asyncio.run(_delete(source, as_json=json))
    from plan_adapter.engine.deployments import DeploymentOptions  # imports Prefect
    from plan_adapter.runbooks.added_triggers import read_added_triggers

    folder = Path(source) if Path(source).is_dir() else None
    options = DeploymentOptions(
        schedule=parse_schedule(cron, interval, rrule, time_zone),
        pool=pool,
        queue=work_queue,
        job_variables=_parse_job_variables(job_variable or [], image, tools or []),
        pull_steps=None if pull is None else _read_pull_steps(pull),
        concurrency_limit=concurrency_limit,
        paused=paused or None,
    )
    if folder is not None and options.schedule is not None:
        raise UsageError("a folder has no schedule of its own: deploy the runbook that needs one by its file")
    if folder is not None and trigger:
        raise UsageError("a folder has no trigger of its own: deploy the runbook that needs one by its file")
    given, added = input_texts(input or [], inputs), read_added_triggers(trigger or [])
    plans = source if folder is None else plans_in(folder)
    return asyncio.run(_deploy(plans, tools_of(tools or []), given, options, added, is_dry=dry_run, yes=yes, as_json=json))


async def _deploy(
    source: "str | list[ExecutionPlan]",
    tools: "ToolRegistry",
    inputs: Mapping[str, str],
    options: "DeploymentOptions",
    added: "Sequence[AddedTrigger]",
    *,
    is_dry: bool,
    yes: bool,
    as_json: bool,
) -> int:
    from plan_adapter.store.redaction import refuse_secrets  # imports SQLAlchemy

    settings = Settings()
    await refuse_secrets({"inputs": dict(inputs)})
    async with open_store(settings) as store:
        plans = [await plan_of(source, store)] if isinstance(source, str) else source
        pending = None if is_dry else begin_server(settings, offline=False)
        policy = await store.policy.effective(settings)
        runbooks = checked_runbooks(plans, tools, policy, inputs, options, added)
        server = await in_daemon_thread(lambda: available_server(settings) if pending is None else pending.wait())
        is_here = is_local(settings.store_url) and server is not None and await in_daemon_thread(lambda: server.is_on_this_machine)
        if is_here:
            runbooks = [(validated, _in_local_store(deployment, settings.store_url)) for validated, deployment in runbooks]
        if server is None:
            return _show_checked([deployment for _, deployment in runbooks], as_json=as_json)
        plans = [validated for validated, _ in runbooks]
        with use_server(server):
            done = await apply_runbooks(runbooks, store, is_dry=is_dry, yes=yes, as_json=as_json)
            notes = [] if is_dry or as_json else [*await approval_notes(plans, store, policy), *await shell_notes(done, plans, settings)]
    print_deployments(done, server, is_dry=is_dry, as_json=as_json)
    if not as_json:
        _print_counts(done)
        if not is_dry:
            _print_next_steps(done, plans, notes, server, settings.store_url, is_here=is_here)
    return ExitCode.DONE


def _show_checked(runbooks: "Sequence[RunbookDeployment]", *, as_json: bool) -> int:
    """Print what a dry run can say without a server."""
    from plan_adapter.engine.deployments import without_server  # imports Prefect

    done = [without_server(deployment) for deployment in runbooks]
    print_deployments(done, None, is_dry=True, as_json=as_json)
    if not as_json:
        _print_counts(done)
    pools = listed([f"`{name}`" for name in _pool_names(done)], MAX_NAMED)
    output.note(
        f"no Prefect server is running: what would change there is not known, nor whether it has the work pool {pools}; name a server in "
        "PREFECT_API_URL, or deploy, which starts a local one"
    )
    return ExitCode.DONE


def _in_local_store(deployment: "RunbookDeployment", store_url: str) -> "RunbookDeployment":
    return replace(deployment, options=replace(deployment.options, local_store=store_url))


def parse_schedule(cron: str | None, interval: str | None, rrule: str | None, time_zone: str | None) -> "SCHEDULE_TYPES | None":
    """Return the schedule of the options. Raises UsageError, DeploymentError."""
    from plan_adapter.engine.deployments import make_schedule  # imports Prefect

    options: dict[_ScheduleKind, str | None] = {"cron": cron, "interval": interval, "rrule": rrule}
    given: list[tuple[_ScheduleKind, str]] = [(kind, text) for kind, text in options.items() if text is not None]
    if len(given) > 1:
        raise UsageError("give one schedule: --cron, --interval or --rrule")
    if not given:
        if time_zone is not None:
            raise UsageError("--time-zone needs a schedule: --cron, --interval or --rrule")
        return None
    if time_zone is not None:
        _check_time_zone(time_zone)
    kind, text = given[0]
    return make_schedule(kind, _parse_interval(text) if kind == "interval" else text, time_zone)


def _check_time_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"`{name}` is not a time zone: write one such as `Europe/Berlin` or `Asia/Shanghai`") from None


def _parse_interval(text: str) -> timedelta:
    found = _INTERVAL.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise UsageError(f"`--interval {text}`: write a time such as `15m`, `6h`, `1d`, or a number of seconds")
    return timedelta(seconds=int(found[1]) * _UNIT_SECONDS[found[2] or "s"])


def _parse_job_variables(given: Sequence[str], image: str | None, tools: Sequence[str]) -> dict[str, Any] | None:
    variables: dict[str, Any] = {}
    env: dict[str, str] = {"PLAN_ADAPTER_TOOLS": ",".join(tools)} if tools else {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"`--job-variable {pair}`: write --job-variable name=value")
        if name.startswith("env."):
            env[name.removeprefix("env.")] = value
        else:
            variables[name.strip()] = value
    if image is not None:
        variables["image"] = image
    if env:
        variables["env"] = env
    return variables or None


def _read_pull_steps(file: Path) -> list[dict[str, Any]]:
    values, problems = read_mapping(file)
    if values is None or problems:
        raise InvalidPlanError(problems)
    steps: Any = values.get("pull")
    if not isinstance(steps, list):
        raise UsageError(f"{file}: write `pull:` with a list of Prefect's pull steps, as in prefect.yaml")
    return cast("list[dict[str, Any]]", steps)


def plans_in(folder: Path) -> "list[ExecutionPlan]":
    """Return the plans of a folder's documents, without its test cases and standing approvals.

    Raises InvalidPlanError with the problems of all documents that cannot be read.
    """
    files = [path for path in documents_in(folder) if not is_test_file(path)]
    read = [read_file(str(path)) for path in files]
    problems = [problem for plan, found in read if plan is None for problem in found]
    if problems:
        raise InvalidPlanError(problems)
    plans = [plan for plan, _ in read if plan is not None]
    for plan in plans:
        pin(plan)
    refuse_duplicate_names(plans)
    return plans


def refuse_duplicate_names(plans: "Sequence[ExecutionPlan]") -> None:
    """Raise UsageError if several plans have the same name: a deployment has the name of its plan."""
    counts = Counter(plan.name for plan in plans)
    if duplicates := sorted(name for name, count in counts.items() if count > 1):
        raise UsageError(f"several plans have the name {', '.join(f'`{name}`' for name in duplicates)}: a deployment needs its own")


def checked_runbooks(
    plans: "Sequence[ExecutionPlan]",
    tools: "ToolRegistry",
    policy: "EffectivePolicy",
    inputs: Mapping[str, str],
    options: "DeploymentOptions",
    added: "Sequence[AddedTrigger]" = (),
) -> "list[tuple[ValidatedPlan, RunbookDeployment]]":
    """Return each plan, with the triggers that are `added`, and its deployment. Raises InvalidPlanError with the problems of all plans."""
    from plan_adapter.runbooks.added_triggers import add_triggers, locate_added
    from plan_adapter.runbooks.deploy import runbook_deployment  # imports Prefect

    runbooks, problems = list[tuple["ValidatedPlan", "RunbookDeployment"]](), list[Problem]()
    for plan in plans:
        try:
            validated = validate(add_triggers(plan, added), tools)
            runbooks.append((validated, runbook_deployment(validated, policy, inputs=inputs, options=options)))
        except InvalidPlanError as error:
            problems += [locate_added(problem, len(plan.triggers), added) for problem in error.problems]
    if problems:
        raise InvalidPlanError(problems)
    return runbooks


async def apply_runbooks(
    runbooks: "Sequence[tuple[ValidatedPlan, RunbookDeployment]]", store: "PlanStore", *, is_dry: bool, yes: bool, as_json: bool
) -> "list[PlannedDeployment]":
    """Create the work pools, save the plans and deploy what differs. A dry run only compares."""
    from plan_adapter.engine.deployments import deployer  # imports Prefect

    async with deployer() as client:
        planned = await client.compare([one for _, one in runbooks])
        if is_dry:
            for name in await _missing_pools(planned, client):
                output.note(f"the process work pool `{name}` would be created, after asking")
            return planned
        await _create_missing_pools(planned, client, yes=yes, as_json=as_json)
        for validated, _ in runbooks:
            await store.save(validated.plan, author=os_user())
        # One after the other: a server on SQLite takes four times as long for concurrent writes.
        return [await client.apply(deployment) for deployment in planned]


async def _create_missing_pools(planned: "Sequence[PlannedDeployment]", client: "Deployer", *, yes: bool, as_json: bool) -> None:
    """Create the missing work pools, after asking. Raises UsageError if the user declines or cannot be asked."""
    for name in await _missing_pools(planned, client):
        if not yes:
            how = f"`--yes` creates it as a process pool, and so does `prefect work-pool create {name} --type process`"
            if as_json or not is_at_terminal():
                raise UsageError(f"the work pool `{name}` does not exist: {how}")
            if not await ask_to_confirm(f"The work pool `{name}` does not exist. Create it as a process pool?"):
                raise UsageError(f"nothing was deployed, because the work pool `{name}` does not exist: {how}")
        await client.create_pool(name)
        output.note(f"created the process work pool `{name}`")


async def _missing_pools(planned: "Sequence[PlannedDeployment]", client: "Deployer") -> list[str]:
    """Return the work pools of the deployments that the server does not have."""
    return [name for name in _pool_names(planned) if not await client.has_pool(name)]


def _pool_names(deployments: "Sequence[PlannedDeployment]") -> list[str]:
    """Return the work pools of the deployments, each once. A deployment served by a process has none."""
    return list(dict.fromkeys(deployment.pool for deployment in deployments if deployment.pool is not None))


def print_deployments(
    done: "Sequence[PlannedDeployment]", server: Server | None, *, is_dry: bool, as_json: bool, all_forms: bool = False
) -> None:
    """Print what happened to each deployment, or what would happen, with the link to the form of the only one, or of each."""
    for deployment in done:
        form = None if deployment.deployment_id is None or server is None else server.form_url(deployment.deployment_id)
        if as_json:
            fields = {
                "deployment": deployment.name,
                "id": deployment.deployment_id,
                "action": deployment.action,
                "changes": list(deployment.changes),
            }
            more = {"pool": deployment.pool, "triggers": deployment.automation_names, "form": form, "dry_run": is_dry}
            output.json_line("deployment", {**fields, **more})
            continue
        what = f"would be {deployment.action}" if is_dry and deployment.action in ("created", "updated") else deployment.action
        changes = f": {', '.join(deployment.changes)}" if deployment.changes else ""
        output.line(f"{deployment.name}: {what}{changes}")
        for name in deployment.automation_names:
            output.line(f"automation: {one_line(name)}")
        for name in deployment.removed_automation_names:
            output.line(f"automation {'would be ' if is_dry else ''}deleted: {one_line(name)}")
        if form is not None and (len(done) == 1 or all_forms):
            output.line(f"form: {form}")


def _print_counts(done: "Sequence[PlannedDeployment]") -> None:
    if len(done) > 1:
        counts = Counter(deployment.action for deployment in done)
        parts = [f"{counts[action]} {action}" for action in ("created", "updated", "unchanged", "checked") if counts[action]]
        output.note(f"{counted(len(done), 'runbook')}: {', '.join(parts)}")


def _print_next_steps(
    done: "Sequence[PlannedDeployment]",
    plans: "Sequence[ValidatedPlan]",
    notes: Sequence[str],
    server: Server,
    store_url: str,
    *,
    is_here: bool,
) -> None:
    from plan_adapter.runbooks.deploy import relative_paths  # imports Prefect

    for planned, validated in zip(done, plans, strict=True):
        if not planned.create.pull_steps and (paths := relative_paths(validated.plan)):
            shown = listed(paths, MAX_NAMED)
            output.note(
                f"{planned.name}: each run works in a new empty folder of its worker: write absolute paths for {shown}, or use --pull"
            )
    for note in notes:
        output.note(note)
    if is_local(store_url):
        workers = "workers must run here" if is_here else "workers elsewhere need PLAN_ADAPTER_DATABASE_URL"
        output.note(f"the store is a file of this machine ({store_url}): {workers}; `plan guide scaling` is about several machines")
    for pool in _pool_names(done):
        output.note(f"`{worker_command(pool, server)}` starts a worker")


async def approval_notes(plans: "Sequence[ValidatedPlan]", store: "PlanStore", policy: "EffectivePolicy") -> list[str]:
    """Return a note if runs wait for an approval, which names `plan standing add` where that would be accepted."""
    from plan_adapter.runs.gate_policies import authors_at  # imports SQLAlchemy

    asking = [validated.plan for validated in plans if requires_approval(validated.plan, policy)]
    for plan in asking:
        gate_policy = gate_policy_of(plan, policy, requested_by="", authors=await authors_at(plan, store, policy))
        if takes_standing_approvals(gate_policy):
            return ["each run waits for an approval; `plan standing add` approves scheduled runs in advance"]
    return ["each run waits for an approval"] if asking else []


async def shell_notes(done: "Sequence[PlannedDeployment]", plans: "Sequence[ValidatedPlan]", settings: Settings) -> list[str]:
    """Return notes about the secrets and settings that runs need where they work, which is here for `plan serve`."""
    from plan_adapter.runbooks.deploy import shell_needs  # imports Prefect

    secrets, missing, variables = dict[str, None](), dict[str, None](), dict[str, None]()
    for planned, validated in zip(done, plans, strict=True):
        needs = await shell_needs(validated, planned, settings)
        missing |= dict.fromkeys(needs.missing if planned.pool is None else ())
        secrets |= dict.fromkeys(needs.secrets if planned.pool is not None else ())
        variables |= dict.fromkeys(needs.variables if planned.pool is not None else ())
    notes = list[str]()
    if missing:
        notes.append(f"runs need {listed([*missing], MAX_NAMED)}, which this process does not have: `plan guide secrets`")
    if secrets:
        notes.append(f"runs need {listed([*secrets], MAX_NAMED)} where their worker runs: `plan guide secrets`")
    if variables:
        notes.append(f"this shell sets {listed([*variables], MAX_NAMED)}: start the worker with the same")
    return notes


async def _delete(name: str, *, as_json: bool) -> int:
    """Delete the deployment of the runbook `name`, and name the standing approvals that stay."""
    settings = Settings()
    async with running_server(settings):
        from plan_adapter.engine.deployments import deployer  # imports Prefect

        async with deployer() as on_server:
            full_name = await on_server.undeploy(name)
    async with open_store(settings) as store:
        standing = [one for one in await store.standing.find() if full_name in one.schedules]
    if as_json:
        output.json_line("deployment", {"deployment": full_name, "action": "deleted", "standing": [one.id for one in standing]})
    else:
        output.line(f"{full_name}: deleted")
    for one in standing:
        message = f"standing approval {one.id} by {one.by} stays, and covers a new deployment of this name"
        output.note(f"{message}: `plan standing revoke {one.id}` revokes it")
    return ExitCode.DONE
