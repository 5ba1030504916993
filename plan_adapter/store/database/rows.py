"""Convert between the record's dataclasses and table rows."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from pydantic import JsonValue
from sqlalchemy import ColumnElement, RowMapping, or_

from plan_adapter.model.approvals import (
    AGREE,
    LEAVES_OPEN,
    Agreement,
    Approval,
    Delegation,
    FreezeOverride,
    GatePolicy,
    delegation_result,
)
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.record import MIN_END_CHARACTERS, Attempt, GroupItem, Receipt, RollbackStatus, RunContext, RunFolder, StepRun
from plan_adapter.model.status import Outcome, StepStatus
from plan_adapter.store.proof.digests import new_salt

Row: TypeAlias = RowMapping

NO_ITEM = -1

BATCH = 500
"""How many ids one query takes. SQLite and the driver of PostgreSQL refuse more than 32,000."""


def batched(ids: Iterable[str]) -> Iterator[Sequence[str]]:
    """Yield the ids in lists that one query can take."""
    whole = [*ids]
    yield from (whole[start : start + BATCH] for start in range(0, len(whole), BATCH))


class HasContext(Protocol):
    """A run or a RunContext."""

    @property
    def agent_id(self) -> str | None: ...  # noqa: D102
    @property
    def org_id(self) -> str | None: ...  # noqa: D102
    @property
    def tenant_id(self) -> str | None: ...  # noqa: D102
    @property
    def task_id(self) -> str | None: ...  # noqa: D102


def dump_json(value: JsonValue) -> str:
    """Return `value` as JSON that both databases accept. It stays readable; only characters that UTF-8 cannot encode are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate
        return json.dumps(value, separators=(",", ":"))
    return text


def load_json(text: str) -> Any:
    """Return the value that `dump_json` wrote."""
    return json.loads(text)


def context_columns(context: HasContext) -> dict[str, str | None]:
    """Return the context columns of a row."""
    return {"tenant_id": context.tenant_id or "", "agent_id": context.agent_id, "org_id": context.org_id, "task_id": context.task_id}


def context_of(row: Row) -> RunContext:
    """Return the context of `row`."""
    return RunContext(agent_id=row["agent_id"], org_id=row["org_id"], tenant_id=row["tenant_id"] or None, task_id=row["task_id"])


def attempt_row(attempt: Attempt) -> dict[str, Any]:
    """Return the row of an attempt, without its context columns."""
    return {
        "id": attempt.id,
        "run_id": attempt.run_id,
        "step_id": attempt.step_id,
        "item": item_column(attempt.item),
        "number": attempt.number,
        "tool_name": attempt.tool_name,
        "effect": attempt.effect,
        "parameters": dump_json(attempt.parameters),
        "idempotency_key": attempt.idempotency_key,
        "started_at": attempt.started_at,
        "approval_id": attempt.approval_id,
        "approval_digest": attempt.approval_digest,
        "code_digest": attempt.code_digest,
        "label": attempt.label,
        "kind": attempt.kind,
        "salt": new_salt(),
    }


def command_row(attempt: Attempt, process: HostProcess) -> dict[str, Any]:
    """Return the row of a command that the tool of `attempt` started, without its context columns."""
    return {
        "run_id": attempt.run_id,
        "step_id": attempt.step_id,
        "kind": attempt.kind,
        "item": item_column(attempt.item),
        "number": attempt.number,
        "process": str(process),
        "attempt_id": attempt.id,
    }


def attempt_of(row: Row) -> Attempt:
    """Return the intent that `attempt_row` wrote."""
    return Attempt(
        id=row["id"],
        run_id=row["run_id"],
        step_id=row["step_id"],
        item=item_of(row),
        number=row["number"],
        tool_name=row["tool_name"],
        effect=row["effect"],
        parameters=load_json(row["parameters"]),
        idempotency_key=row["idempotency_key"],
        started_at=row["started_at"],
        approval_id=row["approval_id"],
        approval_digest=row["approval_digest"],
        code_digest=row["code_digest"],
        label=row["label"],
        kind=row["kind"],
    )


def receipt_row(receipt: Receipt) -> dict[str, Any]:
    """Return the row of a receipt, without its context columns."""
    return {
        "attempt_id": receipt.attempt_id,
        "run_id": receipt.run_id,
        "step_id": receipt.step_id,
        "item": item_column(receipt.item),
        "number": receipt.number,
        "outcome": receipt.outcome.value,
        "result": dump_json(receipt.result),
        "error": receipt.error,
        "ended_at": receipt.ended_at,
        "duration_ms": receipt.duration_ms,
        "by": receipt.by,
        "known_by": receipt.known_by,
        "note": receipt.note,
        "kind": receipt.kind,
        "salt": new_salt(),
    }


def receipt_of(row: Row) -> Receipt:
    """Return the receipt that `receipt_row` wrote."""
    return Receipt(
        attempt_id=row["attempt_id"],
        run_id=row["run_id"],
        step_id=row["step_id"],
        item=item_of(row),
        number=row["number"],
        outcome=Outcome.SUCCEEDED if row["outcome"] == Outcome.SUCCEEDED else Outcome.FAILED,
        result=load_json(row["result"]),
        error=row["error"],
        ended_at=row["ended_at"],
        duration_ms=row["duration_ms"],
        by=row["by"],
        known_by=row["known_by"],
        note=row["note"],
        kind=row["kind"],
    )


def item_column(item: int | None) -> int:
    """Return the column value of an item. Keys cannot contain NULL."""
    return NO_ITEM if item is None else item


def item_of(row: Row) -> int | None:
    """Return the item of a row, or None."""
    return None if row["item"] == NO_ITEM else row["item"]


def end_row(step: StepRun) -> dict[str, Any]:
    """Return the row of a step that has ended, without its run and context columns. The result of a call is in its receipts."""
    return {
        "step_id": step.id,
        "index": step.index,
        "status": step.status.value,
        "outcome": step.outcome and step.outcome.value,
        "error": step.error,
        "reason": step.reason,
        "retry_count": step.retry_count,
        "attempts": step.attempts,
        "carried": step.carried,
        "rolled_back": step.rolled_back,
        "started_at": step.started_at,
        "completed_at": step.completed_at,
        "duration_ms": step.duration_ms,
        "items": dump_json([[item.label, item.status.value, item.rolled_back, item.is_started] for item in step.items])
        if step.items
        else None,
        "outputs": dump_json(step.result) if step.plan and step.result is not None else None,
        "salt": new_salt(),
    }


def apply_end(step: StepRun, row: Row) -> None:
    """Copy the values that `end_row` wrote into `step`."""
    step.status, step.outcome = StepStatus(row["status"]), Outcome(row["outcome"]) if row["outcome"] else None
    step.error, step.reason = row["error"], row["reason"]
    step.retry_count, step.attempts = row["retry_count"], row["attempts"]
    step.carried, step.rolled_back = row["carried"], row["rolled_back"]
    step.started_at, step.completed_at, step.duration_ms = row["started_at"], row["completed_at"], row["duration_ms"]
    step.items = [GroupItem(label, StepStatus(status), *more) for label, status, *more in load_json(row["items"] or "[]")]
    if row["outputs"]:
        step.result = load_json(row["outputs"])


def folder_column(folder: RunFolder | None) -> str | None:
    """Return the column value of a run's folder."""
    return None if folder is None else dump_json(asdict(folder))


def is_named(run_id: ColumnElement[str], name: str) -> ColumnElement[bool]:
    """Return the condition that `record.names_run` checks: an id begins or ends with `name`."""
    begins = run_id.startswith(name.lower(), autoescape=True)
    return or_(begins, run_id.endswith(name.lower(), autoescape=True)) if len(name) >= MIN_END_CHARACTERS else begins


def folder_of(row: Row) -> RunFolder | None:
    """Return the folder that `folder_column` wrote."""
    return None if row["folder"] is None else RunFolder(**load_json(row["folder"]))


def rollback_column(status: RollbackStatus | None) -> str | None:
    """Return the column value of a run's rollback status."""
    return None if status is None else dump_json(asdict(status))


def rollback_of(row: Row) -> RollbackStatus | None:
    """Return the rollback status that `rollback_column` wrote."""
    return None if row["rollback"] is None else RollbackStatus(**load_json(row["rollback"]))


def approval_row(approval: Approval) -> dict[str, Any]:
    """Return the row of an approval, without its context columns."""
    return {
        "id": approval.id,
        "approval_digest": approval.approval_digest,
        "decision": approval.decision,
        "by": approval.by,
        "known_by": approval.known_by,
        "at": approval.at,
        "note": approval.note,
        "expires_at": approval.expires_at,
        "run_id": approval.run_id,
        "step_id": approval.step_id,
        "item": item_column(approval.item),
        "gate_id": approval.gate_id,
        "standing_id": approval.standing_id,
        "signature": approval.signature,
        "result": None if approval.result is None else dump_json(approval.result),
        "salt": new_salt(),
    }


def agreement_row(approval: Approval, gate_id: str) -> dict[str, Any]:
    """Return the row of `approval` as one of several that the gate needs, without its context columns.

    No reader of answers can take it for one: its decision is another, and it has no `gate_id`, which is unique because a gate has one
    answer. The gate is in `result`.
    """
    return {**approval_row(approval), "decision": AGREE, "gate_id": None, "result": agreed_at(gate_id)}


def agreed_at(gate_id: str) -> str:
    """Return the `result` of an agreement at this gate."""
    return dump_json({"gate": gate_id})


def agreement_of(row: Row) -> Agreement:
    """Return the agreement that `agreement_row` wrote."""
    names = ("id", "approval_digest", "by", "known_by", "at", "note", "signature", "expires_at")
    return Agreement(gate_id=load_json(row["result"])["gate"], **{name: row[name] for name in names})


def delegation_row(delegation: Delegation) -> dict[str, Any]:
    """Return the row of a delegation, without its context columns. As with an agreement, no reader can take it for an answer."""
    names = ("id", "approval_digest", "by", "known_by", "at", "note", "signature")
    said = Approval(decision="approve", **{name: getattr(delegation, name) for name in names})
    result = {"gate": delegation.gate_id, **delegation_result(delegation.to, delegation.follows)}
    return {**approval_row(said), "decision": delegation.decision, "result": dump_json(result)}


def delegation_of(row: Row) -> Delegation:
    """Return the delegation that `delegation_row` wrote."""
    names = ("id", "approval_digest", "by", "known_by", "at", "note", "signature", "decision")
    result = load_json(row["result"])
    return Delegation(gate_id=result["gate"], to=result["to"], follows=result.get("follows"), **{name: row[name] for name in names})


def answers_of(rows: Iterable[Row]) -> list[Approval]:
    """Return the answers among `rows` in their order, each with the agreements at its gate. The rows are sorted by time."""
    answers, agreements = list[Row](), dict[str, list[Agreement]]()
    for row in rows:
        if row["decision"] == AGREE:
            agreement = agreement_of(row)
            agreements.setdefault(agreement.gate_id, []).append(agreement)
        elif row["decision"] not in LEAVES_OPEN:
            answers.append(row)
    return [approval_of(row, agreements.get(row["gate_id"], ())) for row in answers]


def approval_of(row: Row, agreements: Sequence[Agreement] = ()) -> Approval:
    """Return the approval that `approval_row` wrote, with the run that used it. `agreements` are those at its gate."""
    return Approval(
        id=row["id"],
        approval_digest=row["approval_digest"],
        decision=row["decision"],
        by=row["by"],
        known_by=row["known_by"],
        at=row["at"],
        note=row["note"],
        expires_at=row["expires_at"],
        run_id=row["run_id"],
        step_id=row["step_id"],
        item=item_of(row),
        gate_id=row["gate_id"],
        standing_id=row["standing_id"],
        signature=row["signature"],
        used_at=row["used_at"],
        result=None if row["result"] is None else load_json(row["result"]),
        agreements=tuple(agreements) if row["decision"] == "approve" else (),
    )


ESCALATION_MARK = '"escalate_after_ms": '
"""What is in the column only if the gate escalates."""

QUORUM_MARK = '"quorum": '
"""What the column `rules` of a gate that needs several approvals contains."""

OVERRIDE_MARK = '"overrides": '
"""What the column `rules` of a gate contains whose approval overrides a change freeze."""


def gate_policy_text(gate_policy: GatePolicy) -> str:
    """Return a gate policy as the column `rules` of a gate holds it."""
    written = asdict(gate_policy)
    written["overrides"] = [{"name": each.name, "until": each.until.isoformat()} for each in gate_policy.overrides]
    for name, default in _LATER_FIELDS.items():  # written only if they say something, because digests cover this text
        if written[name] == default:
            del written[name]
    for name in ("is_escalated", "delegations"):  # what happens at the gate later
        del written[name]
    return json.dumps(written, ensure_ascii=False)


_LATER_FIELDS: dict[str, Any] = {
    "quorum": 1,
    "overrides": [],
    "authors": (),
    "escalate_after_ms": 0,
    "escalate_to": (),
    "delegate": False,
}
"""The fields that gate policies did not have at first, with what they are in those."""


def gate_policy_in(text: str) -> GatePolicy:
    """Return the gate policy that the column `rules` of a gate holds."""
    gate_policy: dict[str, Any] = json.loads(text)
    for name in ("approvers", "known_by", "authors", "escalate_to"):
        given = gate_policy.get(name, ())
        gate_policy[name] = None if given is None else tuple(given)
    overrides = [FreezeOverride(each["name"], datetime.fromisoformat(each["until"])) for each in gate_policy.pop("overrides", ())]
    return GatePolicy(**gate_policy, overrides=tuple(overrides))
