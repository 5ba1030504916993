"""Standing approvals from the command line: given, listed, revoked."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.answering import Words
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.sources import input_texts, open_store, plan_of, tools_of
from plan_adapter.readable import as_text, counted, moment
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.policy import PolicyInForce
    from plan_adapter.record import StandingApproval
    from plan_adapter.validation import ValidatedPlan


@dataclass(frozen=True, slots=True)
class Wish:
    """What `plan approve --standing` was given."""

    plan: str
    schedules: tuple[str, ...]
    steps: tuple[str, ...]
    until: str | None
    max_runs: int | None
    inputs: tuple[str, ...]  # `name=pattern`
    tools: tuple[str, ...]
    in_file: bool = False


async def approve_standing(wish: Wish, words: Words, settings: Settings, *, as_json: bool) -> int:
    """Keep a standing approval of a plan in the store, or write it beside the plan's document. Raises InvalidPlanError, UsageError."""
    from plan_adapter.errors import NotApprovedError
    from plan_adapter.validation import validate

    if words.code is not None:
        raise UsageError("a one-time code proves an answer at a gate; a standing approval is proved with --sign")
    if wish.in_file and not words.sign:
        raise UsageError("without a signature a file is nobody's word: add --sign")
    async with open_store(settings) as store:
        validated = validate(await plan_of(wish.plan, store), tools_of(wish.tools))
        try:
            policy = await store.policy_in_force(settings)
            standing = _signed(_standing(wish, words, validated, await store.now()), words, validated, settings, policy)
            if wish.in_file:
                return _write(standing, wish, policy, as_json=as_json)
            await store.add_standing(standing)
        except NotApprovedError as error:
            raise UsageError(str(error)) from error
    if as_json:
        output.json_line(standing_json(standing))
    else:
        output.line(f"standing approval {standing.id} of {standing.name}, by {standing.by} ({standing.known_by}): {_limits(standing)}")
        output.note(f"`plan gates --standing` lists it, `plan reject --standing {standing.id}` revokes it at once")
    return ExitCode.DONE


async def list_standing(settings: Settings, *, limit: int, with_ended: bool, as_json: bool) -> int:
    """Print the standing approvals that runs may still use, the newest first; `with_ended` also the others, with how they ended."""
    async with open_store(settings) as store:
        found, now = list(reversed(await store.standing(include_ended=with_ended)))[:limit], await store.now()
    if as_json:
        for standing in found:
            output.json_line(standing_json(standing))
    elif found:
        columns = ("STANDING", "PLAN", "BY", "LEFT", "UNTIL", "SCHEDULES", "INPUTS", "STEPS", *(["ENDED"] if with_ended else []))
        output.table(columns, [(*_row(standing), *([_end(standing, now)] if with_ended else [])) for standing in found])
    else:
        usable = "" if with_ended else " that a run may use (`--all` lists those that have ended, too)"
        output.note(
            f"there is no standing approval{usable}; `plan approve --standing PLAN --schedule flow/deployment --until DATE` gives one"
        )
    return ExitCode.DONE


async def revoke_standing(beginning: str, settings: Settings, *, as_json: bool) -> int:
    """Revoke a standing approval: no run that has not begun with it can use it any more."""
    from plan_adapter.approval import os_user

    async with open_store(settings) as store:
        revoked = await store.revoke_standing(beginning, by=os_user())
    if as_json:
        output.json_line(standing_json(revoked))
    else:
        output.line(f"standing approval {revoked.id} of {revoked.name} is revoked, by {revoked.revoked_by} at {moment(revoked.revoked_at)}")
    return ExitCode.DONE


def standing_json(standing: "StandingApproval") -> dict[str, Any]:
    """Return every field of a standing approval, and how many runs are left (null: no limit)."""
    return {**asdict(standing), "runs_left": _left(standing)}


def _standing(wish: Wish, words: Words, validated: "ValidatedPlan", now: datetime) -> "StandingApproval":
    from plan_adapter.approval import os_user
    from plan_adapter.standing import standing_of

    return standing_of(
        validated,
        by=words.by or os_user(),
        known_by="os_user",
        at=now,
        schedules=wish.schedules,
        inputs=dict(input_texts(wish.inputs, None)),
        steps=wish.steps,
        until=None if wish.until is None else _end_of(wish.until),
        max_runs=wish.max_runs,
        note=words.note,
    )


def _signed(
    standing: "StandingApproval", words: Words, validated: "ValidatedPlan", settings: Settings, policy: "PolicyInForce"
) -> "StandingApproval":
    """Return `standing` with its signature where one is wanted; raises NotApprovedError where the policy does not take it."""
    from plan_adapter.approval import refusal, rules_of
    from plan_adapter.errors import NotApprovedError

    known_by = "ssh_signature" if words.sign else "os_user"
    rules = rules_of(validated.plan, policy, requested_by="")
    if reason := refusal(rules, by=standing.by, known_by=known_by, decision="approve"):
        raise NotApprovedError(reason)
    if not words.sign:
        return standing
    from plan_adapter.identity.signatures import default_key
    from plan_adapter.identity.standing_files import sign_standing, verify_standing

    signed = sign_standing(standing, key=default_key(settings))
    if policy.allowed_signers is not None:
        verify_standing(signed, policy=policy)
    return signed


def _write(standing: "StandingApproval", wish: Wish, policy: "PolicyInForce", *, as_json: bool) -> int:
    from plan_adapter.identity.standing_files import write_signed
    from plan_adapter.standing import signature_path, standing_path

    if not Path(wish.plan).is_file():
        raise UsageError(f"--file writes beside the plan's document, and `{wish.plan}` is no file")
    path = standing_path(Path(wish.plan))
    try:
        write_signed(standing, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    if as_json:
        output.json_line({**standing_json(standing), "file": str(path), "signature_file": str(signature_path(path))})
    else:
        output.line(f"wrote {path} and {signature_path(path)}: {_limits(standing)}")
        output.note("with both beside the plan, scheduled runs of exactly this plan need no other approval")
    if policy.number is None and policy.allowed_signers is None:
        output.note("where the runs are, PLAN_ADAPTER_ALLOWED_SIGNERS must name a file that holds your key")
    return ExitCode.DONE


def _end_of(text: str) -> datetime:
    """Return the moment that `text` names in the local time zone unless it names one, the last one of a day."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--until {text}: write a day, 2026-12-31, or a time, 2026-12-31T18:00") from None
    if len(text) <= len("2026-12-31"):
        at = datetime.combine(at, time(23, 59, 59))
    return at.astimezone(UTC)  # one without a zone is taken as local


def _left(standing: "StandingApproval") -> int | None:
    return None if standing.max_runs is None else max(0, standing.max_runs - standing.runs)


def _limits(standing: "StandingApproval") -> str:
    until = f"until {moment(standing.until)}" if standing.until is not None else ""
    runs = f"for {counted(standing.max_runs, 'run')}" if standing.max_runs is not None else ""
    return ", ".join(part for part in (until, runs) if part) + f", schedules {', '.join(standing.schedules)}"


def _end(standing: "StandingApproval", now: datetime) -> str:
    if standing.revoked_at is not None:
        return f"revoked by {standing.revoked_by} at {moment(standing.revoked_at)}"
    if standing.until is not None and standing.until <= now:
        return f"over since {moment(standing.until)}"
    return "used up" if _left(standing) == 0 else "-"


def _row(standing: "StandingApproval") -> tuple[str, ...]:
    left = _left(standing)
    return (
        standing.id,
        standing.name,
        f"{standing.by} ({standing.known_by})",
        "no limit" if left is None else f"{counted(left, 'run')} of {standing.max_runs}",
        moment(standing.until),
        ", ".join(standing.schedules),
        ", ".join(f"{name}={as_text(pattern)}" for name, pattern in standing.inputs.items()) or "-",
        ", ".join(standing.steps) or "-",
    )
