"""`plan standing`: its actions."""

from dataclasses import asdict, dataclass, replace
from datetime import datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.answering import AnswerOptions, refuse_name_alone
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import input_texts, open_store, plan_of, tools_of
from plan_adapter.cli.spans import parse_time
from plan_adapter.gates.approval import gate_policy_of, os_user, refusal, strictest
from plan_adapter.gates.coverage import new_standing_approval
from plan_adapter.gates.identity import Identity, identity_of_account, identity_of_name, recorded_identity
from plan_adapter.gates.quorum import why_one_is_too_few
from plan_adapter.gates.signatures import default_key
from plan_adapter.gates.standing_files import sign_standing, signature_path, standing_path, verify_standing, write_signed_standing
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.readable import as_text, counted, moment
from plan_adapter.runs.gate_policies import authors_at
from plan_adapter.validation import ValidatedPlan, validate

if TYPE_CHECKING:
    from plan_adapter.gates.policy import EffectivePolicy
    from plan_adapter.model.approvals import GatePolicy, StandingApproval
    from plan_adapter.store.store import PlanStore

DEFAULT_LIMIT = 100

LAST_SECOND = time(23, 59, 59)
"""When a standing approval until a day ends."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of `plan standing add`: which runs of a plan the approval covers."""

    plan: str
    schedules: tuple[str, ...]
    steps: tuple[str, ...]
    until: str | None
    max_runs: int | None
    inputs: tuple[str, ...]  # `name=pattern`
    tools: tuple[str, ...]
    in_file: bool = False


async def standing_list(*, all: bool = False, limit: int = DEFAULT_LIMIT, json: bool = False) -> int:
    """List the plans whose scheduled runs are approved in advance, newest first.

    Args:
        all: Also list the standing approvals that are revoked, expired or used up.
        limit: List at most this many; default: 100.
        json: Print one JSON object per standing approval.
    """
    if limit < 1:
        raise UsageError("--limit must be at least 1")
    async with open_store(Settings()) as store:
        found, now = list(reversed(await store.standing.find(include_ended=all)))[:limit], await store.now()
    if found and json:
        for standing in found:
            output.json_line("standing_approval", standing_json(standing))
    elif found:
        columns = ("STANDING", "PLAN", "BY", "LEFT", "UNTIL", "SCHEDULES", "INPUTS", "STEPS", *(["ENDED"] if all else []))
        output.table(columns, [(*_table_row(standing), *([_end_text(standing, now)] if all else [])) for standing in found])
    else:
        which = "" if all else "active "
        ended = "" if all else "`--all` also lists those that have ended; "
        output.note(f"no {which}standing approvals; {ended}`plan standing add PLAN --schedule flow/deployment --until DATE` adds one")
    return ExitCode.DONE


async def standing_add(
    plan: str,
    /,
    *,
    schedule: list[str] | None = None,
    until: str | None = None,
    runs: int | None = None,
    input: list[str] | None = None,
    step: list[str] | None = None,
    tools: list[str] | None = None,
    file: bool = False,
    note: str = "",
    sign: bool = False,
    by: str | None = None,
    json: bool = False,
) -> int:
    """Approve a plan's scheduled runs in advance.

    A standing approval covers exactly one plan and its tools, for the schedules you name, until a date or for a number of runs. A run that
    it covers does not wait at the gate of its plan. Any other content, schedule or input value still asks.

    Args:
        plan: The plan, as `plan run` takes it.
        schedule: `flow/deployment` whose scheduled runs are approved; may be repeated.
        until: The last day (`2026-12-31`), or a time (`2026-12-31T18:00`).
        runs: How many runs it covers.
        input: `name=pattern`, a regular expression that the whole value of the input must match; may be repeated.
        step: A step whose own gate is approved as well; may be repeated.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        file: Write it beside the plan as NAME.approval.yaml, signed, instead of into the store.
        note: A note to record with it.
        sign: Sign it with your SSH key.
        by: Who approves (with `--sign`); default: your account.
        json: Print one JSON object.
    """
    refuse_name_alone(by, sign=sign, code=None)
    terms = Terms(plan, tuple(schedule or ()), tuple(step or ()), until, runs, tuple(input or ()), tuple(tools or ()), in_file=file)
    return await _add_approval(terms, AnswerOptions("approve", note=note, sign=sign, by=by), Settings(), as_json=json)


async def standing_revoke(id: str, /, *, json: bool = False) -> int:
    """Revoke a standing approval: runs that start from now on cannot use it.

    Args:
        id: The id of the standing approval, or its beginning.
        json: Print one JSON object.
    """
    async with open_store(Settings()) as store:
        revoked = await store.standing.revoke(id, by=os_user())
    if json:
        output.json_line("standing_approval", standing_json(revoked))
    else:
        output.line(f"revoked standing approval {revoked.id} of {revoked.name}, by {revoked.revoked_by} at {moment(revoked.revoked_at)}")
    return ExitCode.DONE


async def _add_approval(terms: Terms, options: AnswerOptions, settings: Settings, *, as_json: bool) -> int:
    """Add a standing approval to the store, or write it beside the plan document. Raises InvalidPlanError, UsageError."""
    if terms.in_file and not options.sign:
        raise UsageError("--file needs --sign: anybody can write an unsigned file")
    async with open_store(settings) as store:
        validated = validate(await plan_of(terms.plan, store), tools_of(terms.tools))
        try:
            policy = await store.policy.effective(settings)
            new = _new_approval(terms, options, validated, await store.now())
            standing = _check_and_sign(new, options, await _gate_policy(new, validated, store, policy), settings, policy)
            if terms.in_file:
                return _write_beside_plan(standing, terms, policy, as_json=as_json)
            await store.standing.add(standing)
        except NotApprovedError as error:
            raise UsageError(str(error)) from error
    if as_json:
        output.json_line("standing_approval", standing_json(standing))
    else:
        output.line(f"standing approval {standing.id} of {standing.name}, by {standing.by} ({standing.known_by}): {_limits_text(standing)}")
        output.note(f"`plan standing` lists it; `plan standing revoke {standing.id}` revokes it")
    return ExitCode.DONE


def standing_json(standing: "StandingApproval") -> dict[str, Any]:
    """Return a standing approval as `--json` prints it, with the runs it has left (null: no limit)."""
    return {**asdict(standing), "plan_digest": standing.runbook_digest, "runs_left": _runs_left(standing)}


def _new_approval(terms: Terms, options: AnswerOptions, validated: ValidatedPlan, now: datetime) -> "StandingApproval":
    return new_standing_approval(
        validated,
        by=options.by or os_user(),
        known_by=identity_of_account(options.by).known_by,
        at=now,
        schedules=terms.schedules,
        inputs=dict(input_texts(terms.inputs, None)),
        steps=terms.steps,
        until=None if terms.until is None else parse_time(terms.until, option="--until", time_of_day=LAST_SECOND),
        max_runs=terms.max_runs,
        note=options.note,
    )


async def _gate_policy(
    standing: "StandingApproval", validated: ValidatedPlan, store: "PlanStore", policy: "EffectivePolicy"
) -> "GatePolicy":
    """Return the strictest of the policies of the gates that `standing` answers."""
    places = [None, *(step_id for step_id in standing.steps if step_id in validated.steps)]
    authors = {step_id: await authors_at(validated.plan, store, policy, step_id=step_id) for step_id in places}
    return strictest(
        *(gate_policy_of(validated.plan, policy, requested_by="", authors=authors[step_id], step_id=step_id) for step_id in places)
    )


def _check_and_sign(
    standing: "StandingApproval", options: AnswerOptions, gate_policy: "GatePolicy", settings: Settings, policy: "EffectivePolicy"
) -> "StandingApproval":
    """Return `standing`, signed if `--sign` was given. Raises NotApprovedError if the policy refuses the approval."""
    if not options.sign:
        _refuse(gate_policy, identity_of_account(standing.by))
        return standing
    _refuse(replace(gate_policy, known_by=None), identity_of_name(standing.by))
    signed = sign_standing(standing, key=default_key(settings))
    if policy.allowed_signers is not None:
        verify_standing(signed, policy=policy)
    _refuse(gate_policy, recorded_identity(signed))
    return signed


def _refuse(gate_policy: "GatePolicy", identity: Identity) -> None:
    if reason := refusal(gate_policy, identity, decision="approve") or why_one_is_too_few(gate_policy, "a standing approval"):
        raise NotApprovedError(reason)


def _write_beside_plan(standing: "StandingApproval", terms: Terms, policy: "EffectivePolicy", *, as_json: bool) -> int:
    if not Path(terms.plan).is_file():
        raise UsageError(f"--file writes beside a plan document, and `{terms.plan}` is not a file")
    path = standing_path(Path(terms.plan))
    try:
        write_signed_standing(standing, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    if as_json:
        output.json_line("standing_approval", {**standing_json(standing), "file": str(path), "signature_file": str(signature_path(path))})
    else:
        output.line(f"wrote {path} and {signature_path(path)}: {_limits_text(standing)}")
        output.note("commit both beside the plan: scheduled runs of exactly this plan then need no other approval")
    if policy.number is None and policy.allowed_signers is None:
        output.note("where the plan runs, PLAN_ADAPTER_ALLOWED_SIGNERS must name a file that lists your key")
    return ExitCode.DONE


def _runs_left(standing: "StandingApproval") -> int | None:
    return None if standing.max_runs is None else max(0, standing.max_runs - standing.runs)


def _limits_text(standing: "StandingApproval") -> str:
    until = f"until {moment(standing.until)}" if standing.until is not None else ""
    runs = f"for {counted(standing.max_runs, 'run')}" if standing.max_runs is not None else ""
    return ", ".join(part for part in (until, runs) if part) + f", schedules {', '.join(standing.schedules)}"


def _end_text(standing: "StandingApproval", now: datetime) -> str:
    if standing.revoked_at is not None:
        return f"revoked by {standing.revoked_by} at {moment(standing.revoked_at)}"
    if standing.until is not None and standing.until <= now:
        return f"expired at {moment(standing.until)}"
    return "used up" if _runs_left(standing) == 0 else "-"


def _table_row(standing: "StandingApproval") -> tuple[str, ...]:
    runs_left = _runs_left(standing)
    return (
        standing.id,
        standing.name,
        f"{standing.by} ({standing.known_by})",
        "no limit" if runs_left is None else f"{counted(runs_left, 'run')} of {standing.max_runs}",
        moment(standing.until),
        ", ".join(standing.schedules),
        ", ".join(f"{name}={as_text(pattern)}" for name, pattern in standing.inputs.items()) or "-",
        ", ".join(standing.steps) or "-",
    )
