"""`plan gates`."""

from datetime import datetime
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.approval_state import age, caller_refusal, time_left
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import FIND_LIMIT, NO_FORM, QUESTION_SUFFIXES, gate_json, gate_place
from plan_adapter.cli.servers import known_server, lacks_store_of_server
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.gate import changes_text
from plan_adapter.local.settings import Settings
from plan_adapter.model.language import later, tr
from plan_adapter.model.readable import as_text, cut, duration, one_line, plain
from plan_adapter.model.record import short_ids
from plan_adapter.text.commands import SHOWN_DIGITS, answer_command, command_at_gate, ways_to_answer
from plan_adapter.text.listing import limits_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plan_adapter.model.approvals import Approval, ExcludedAs, Gate
    from plan_adapter.model.options import Input
    from plan_adapter.store.store import PlanStore

SHOWN_CHARACTERS = 200
"""How many characters of a question are shown."""


async def gates(*, limit: int = 100, api: bool = False, wide: bool = False, json: bool = False) -> int:
    """List the gates that wait for an answer, newest first: for how long, until when, and who may answer.

    Answer with `plan approve RUN` or `plan reject RUN`, a question with `plan answer RUN STEP`, and an unknown outcome with
    `plan resolve RUN STEP`. Unknown outcomes of runs that have stopped are listed too.

    Args:
        limit: Show at most this many; default: 100.
        api: List the forms in Prefect's API: for a machine that cannot reach the store.
        wide: Show whole ids, digests, and whether a process is waiting.
        json: Print one JSON object per gate.
    """
    if limit < 1:
        raise UsageError("--limit must be at least 1")
    settings = Settings()
    if api:
        from plan_adapter.cli.remote import list_remotely  # only for `--api`

        return await list_remotely(settings, limit=limit, as_json=json)
    async with open_store(settings) as store:
        found, now = await waiting_gates(store, settings), await store.now()
        changes = await store.gates.change_requests() if found else {}
        commands = await _commands_of(found, store)
    if not found and lacks_store_of_server(settings):
        from plan_adapter.cli.remote import list_remotely  # only if this machine's store is not the server's

        return await list_remotely(settings, limit=limit, as_json=json)
    _print_gates(found, now, changes, commands, settings, limit=limit, wide=wide, as_json=json)
    return ExitCode.DONE


async def waiting_gates(store: "PlanStore", settings: Settings, *, with_texts: bool = False) -> "list[Gate]":
    """Close expired gates, and return the open ones and the unknown outcomes that no process asks about, newest first."""
    from plan_adapter.runs.reconcile import unasked_outcomes  # imports SQLAlchemy

    found, now = await store.gates.find(limit=FIND_LIMIT, with_texts=with_texts), await store.now()
    if any(gate.is_over(now) for gate in found):
        from plan_adapter.runs.plan_approval import end_expired  # imports SQLAlchemy

        await end_expired(store)
        found = await store.gates.find(limit=FIND_LIMIT, with_texts=with_texts)
    unasked = await unasked_outcomes(store, settings, open_digests={gate.approval_digest for gate in found})
    return sorted([*found, *unasked], key=lambda gate: gate.opened_at, reverse=True)


async def _commands_of(found: "list[Gate]", store: "PlanStore") -> dict[str, str]:
    """Return whether the command of each unknown outcome still runs, as text, by the digest of its gate."""
    from plan_adapter.store.outcomes import outcome_digest  # imports SQLAlchemy

    runs = dict.fromkeys(gate.run_id for gate in found if gate.kind == "outcome")
    started = [command for run_id in runs for command in await store.outcomes.commands(run_id)]
    return {outcome_digest(command.attempt.id): command.in_words for command in started}


def _print_gates(
    found: "list[Gate]",
    now: datetime,
    changes: "Mapping[str, Approval]",
    commands: "Mapping[str, str]",
    settings: Settings,
    *,
    limit: int,
    wide: bool,
    as_json: bool,
) -> None:
    shown = found[:limit]
    if not shown:
        output.note(tr("nothing waits for an answer"))
        return
    if as_json:
        server = known_server(settings) if any(gate.flow_run_id for gate in shown) else None
        for gate in shown:
            link = server.run_url(gate.flow_run_id) if server is not None and gate.flow_run_id is not None else None
            asked = changes.get(gate.id)
            requested = None if asked is None else {"by": asked.by, "note": asked.note, "at": asked.at}
            output.json_line("gate", {**gate_json(gate), "link": link, "changes": requested, "process": commands.get(gate.approval_digest)})
        return
    ids = {gate.run_id: gate.run_id for gate in shown} if wide else short_ids([gate.run_id for gate in shown])
    columns = [tr("RUN"), tr("RUNBOOK"), tr("WAITS FOR"), tr("AGE"), tr("UNTIL"), tr("WHO")]
    columns += [tr("DIGEST"), tr("WAITING")] if wide else []
    output.table(columns, [[ids[gate.run_id], *_row(gate, now, wide=wide)] for gate in shown])
    for gate in shown:
        place = f"{gate.run_id} {gate_place(gate)}"
        if gate.kind == "outcome":
            output.line(f"{place}: {tr('`{command}` records the outcome', command=answer_command(gate))}")
            if (running := commands.get(gate.approval_digest)) is not None:
                output.line(f"{place}: {tr('its command {state}', state=one_line(running))}")
        if gate.kind == "question":
            fields = "; ".join(field_text(name, field) for name, field in gate.fields.items())
            question = one_line(gate.description.strip())
            question = question if len(question) <= SHOWN_CHARACTERS else f"{cut(question, SHOWN_CHARACTERS)} …"
            output.line(tr("{gate} asks: {question} (answer with {fields})", gate=place, question=question, fields=fields))
        if gate.has_form is False:
            ways = ways_to_answer(gate, gate.gate_policy.known_by)
            output.line(f"{place}: {tr('{why}: answer {ways}', why=NO_FORM, ways=ways)}")
        if (changed := changes.get(gate.id)) is not None:
            output.line(f"{place}: {one_line(changes_text(changed))}")
    more = tr("; {count} more: --limit", count=len(found) - limit) if len(found) > limit else ""
    who = f"; {refused}" if (refused := caller_refusal(shown[0])) is not None else ""
    command = command_at_gate(shown[0], known_by := shown[0].gate_policy.known_by)
    first = tr("answer the first one {ways}", ways=ways_to_answer(shown[0], known_by))
    output.note((first if command is None else tr("{command} answers the first one", command=command)) + who + more)


def field_text(name: str, field: "Input") -> str:
    """Return a field of a question with the values it takes."""
    choices = [as_text(choice) for choice in field.enum or ([True, False] if field.type == "boolean" else [])]
    kind = one_line(tr(" or ").join(choices)) or field.type
    default = "" if field.is_required else tr(" (by default {value})", value=as_text(field.default))
    return f"{name}={kind}{plain(limits_of(field))}{default}"


def who_may_answer(gate: "Gate") -> str:
    """Return the people who may answer at `gate`, with which proofs, and how many of several approvals it has."""
    gate_policy = gate.gate_policy
    excluded = {name: tr(_EXCLUDED_AS[why]) for name, why in gate_policy.may_not_approve.items()}
    approvers = None if gate_policy.approvers is None else [name for name in gate_policy.approvers if name not in excluded]
    who = tr("anyone") if approvers is None else ", ".join(approvers) or tr("nobody")
    others = [tr("not {name}, {why}", name=name, why=why) for name, why in excluded.items()]
    if gate_policy.escalate_to and approvers is not None and not gate_policy.is_escalated:
        names, after = ", ".join(gate_policy.escalate_to), duration(gate_policy.escalate_after_ms)
        others.append(tr("after {time} also {names}", time=after, names=names))
    other = f" ({', '.join(others)})" if others else ""
    known = tr(", with {proofs}", proofs=tr(" or ").join(gate_policy.known_by)) if gate_policy.known_by is not None else ""
    return f"{who}{other}{known}{_progress(gate)}"


_EXCLUDED_AS: "Mapping[ExcludedAs, str]" = {
    "reviser": later("who revised it"),
    "requester": later("who started it"),
    "author": later("an author"),
}


def _row(gate: "Gate", now: datetime, *, wide: bool) -> list[str]:
    cells = [
        gate.name,
        tr("the plan") if gate.step_id is None else gate_place(gate) + tr(QUESTION_SUFFIXES[gate.kind]),
        age(now, gate.opened_at),
        time_left(gate.expires_at, now),
        who_may_answer(gate),
    ]
    waiting = {True: tr("a process"), False: tr("no process"), None: tr("another host")}
    attended = tr("worker released") if gate.is_released else waiting[gate.attended]
    return [*cells, gate.approval_digest[:SHOWN_DIGITS], attended] if wide else cells


def _progress(gate: "Gate") -> str:
    """Return how many of several approvals a gate has, for the end of the list of those who may answer."""
    given, quorum = len(gate.agreements), gate.gate_policy.quorum
    return "" if quorum == 1 else tr(": {count} of {quorum} approved", count=given, quorum=quorum)
