"""`plan gates`."""

from datetime import datetime
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.records import answer_command, gate_json, gate_place
from plan_adapter.cli.servers import known_server
from plan_adapter.cli.sources import open_store
from plan_adapter.cli.waiting import age
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.record import Gate
    from plan_adapter.store.store import PlanStore

MOST = 1_000_000
"""More gates than are ever open."""


async def gates(*, standing: bool = False, limit: int = 100, api: bool = False, json: bool = False) -> int:
    """List what waits for an answer, the newest first: since when, until when, who may answer, and whether a process waits for it.

    `plan approve RUN` and `plan reject RUN` answer.

    Args:
        standing: List the standing approvals instead, and how many runs each has left.
        limit: How many at most; 100 if it is not given.
        api: Ask Prefect's API alone: for a machine that does not reach the store.
        json: Print one JSON object per gate.
    """
    if limit < 1:
        raise UsageError("--limit is at least 1")
    settings = Settings()
    if standing:
        from plan_adapter.cli.standings import list_standing

        return await list_standing(settings, limit=limit, as_json=json)
    if api:
        from plan_adapter.cli.remote import list_remotely

        return await list_remotely(settings, limit=limit, as_json=json)
    async with open_store(settings) as store:
        found, now = await _open_gates(store), await store.now()
    if not found and _has_only_the_api(settings):
        from plan_adapter.cli.remote import list_remotely

        return await list_remotely(settings, limit=limit, as_json=json)
    _show(found, now, settings, limit=limit, as_json=json)
    return ExitCode.DONE


async def _open_gates(store: "PlanStore") -> "list[Gate]":
    """Return the gates that are open, newest first; those that nobody waits at and whose time is over are ended first."""
    found, now = await store.gates(limit=MOST), await store.now()
    if any(gate.is_over(now) for gate in found):
        from plan_adapter.runs.approving import end_expired

        await end_expired(store)
        found = await store.gates(limit=MOST)
    return found[::-1]


def _has_only_the_api(settings: Settings) -> bool:
    """Return whether the store is only the default one of this machine, while Prefect's settings name a server."""
    from plan_adapter.engine.connection import configured_api_url

    return settings.database_url is None and configured_api_url() is not None


def _show(found: "list[Gate]", now: datetime, settings: Settings, *, limit: int, as_json: bool) -> None:
    shown = found[:limit]
    if as_json:
        server = known_server(settings) if any(gate.flow_run_id for gate in shown) else None
        for gate in shown:
            link = server.run_url(gate.flow_run_id) if server is not None and gate.flow_run_id is not None else None
            output.json_line({**gate_json(gate), "link": link})
        return
    if not shown:
        output.note("nothing waits for an answer")
        return
    columns = ("RUN", "PLAN", "STEP", "SINCE", "UNTIL", "WHO MAY", "WAITS")
    output.table(columns, [_row(gate, now) for gate in shown])
    more = f"; {len(found) - limit} more: --limit" if len(found) > limit else ""
    output.note(f"`{answer_command(shown[0])}` answers the first one{more}")


def _row(gate: "Gate", now: datetime) -> tuple[str, ...]:
    rules = gate.rules
    who = ", ".join(rules.approvers) if rules.approvers is not None else "anyone"
    known = f", by {' or '.join(rules.known_by)}" if rules.known_by is not None else ""
    other = "" if rules.self_approval or not rules.requested_by else f", not {rules.requested_by}"
    return (
        gate.run_id,
        gate.name,
        "-" if gate.step_id is None else gate_place(gate),
        age(now, gate.opened_at),
        "-" if gate.expires_at is None else f"in {age(gate.expires_at, now)}",
        f"{who or 'nobody'}{other}{known}",
        {True: "here", False: "nobody: plan resume", None: "elsewhere"}[gate.attended],
    )
