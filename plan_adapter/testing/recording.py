"""`add_case`: turns a run into a case of a test file, with the answers that it got, and expectations of what it did."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import indent

from pydantic import JsonValue

from plan_adapter.documents.yaml_text import write_yaml
from plan_adapter.model.approvals import Approval, Gate
from plan_adapter.model.options import CallKind
from plan_adapter.model.readable import MASK, call_name
from plan_adapter.model.record import Attempt, PlanRun, Receipt
from plan_adapter.model.status import Outcome, StepStatus
from plan_adapter.store.store import PlanStore
from plan_adapter.testing.expectations import PLAN

TIMED_OUT = "no answer within "
"""How the error of a call that timed out begins."""


_TOP_LINE = re.compile(r"^[^\s#-].*", re.MULTILINE)
_CASES = re.compile(r"(cases|\"cases\"|'cases'):\s*(#.*)?")


def add_case(test_file: Path, name: str, case: Mapping[str, JsonValue]) -> None:
    """Add `case` as the last one of a test file, which is created if it is missing. Everything else in it stays as it is.

    Raises ValueError, which says why, if the file has a case of this name or does not end with its cases.
    """
    text = test_file.read_text(encoding="utf-8") if test_file.exists() else "cases:\n"
    lines = _TOP_LINE.findall(text)
    if not lines or not _CASES.fullmatch(lines[-1]):
        raise ValueError(f"{test_file} does not end with `cases:` and a case in each of the lines below: move them to its end")
    added = indent(write_yaml({name: {**case}}), "  ")
    if added.splitlines()[0] in text.splitlines():
        raise ValueError(f"{test_file} already has the case `{name}`")
    test_file.write_text(text + ("" if text.endswith("\n") else "\n") + added, encoding="utf-8")


async def record_case(run: PlanRun, store: PlanStore) -> dict[str, JsonValue]:
    """Return the case of `run`, which has ended: its inputs, the answers to its calls and at its gates, and what it did.

    A value that was masked in the record is in no expectation, because the case has other secrets.
    """
    plan, attempts, receipts = await store.get(run.digest), await store.attempts(run.id), await store.receipts(run.id)
    gates, approvals = await store.gates.find(run_id=run.id, open_only=False), await store.approvals(run.id)
    ends = {receipt.attempt_id: receipt for receipt in receipts}
    asked = {step.id for step in plan.all_steps if step.ask is not None}
    kinds: tuple[tuple[CallKind, str], ...] = (("step", "steps"), ("rollback", "rollbacks"))
    case: dict[str, JsonValue] = {"inputs": run.inputs} if run.inputs else {}
    for kind, name in kinds:
        if answers := _answers([attempt for attempt in attempts if attempt.kind == kind and attempt.step_id not in asked], ends):
            case[name] = answers
    if refused := _refused(gates, approvals):
        case["gates"] = refused
    answered = {step.id: step.result for step in run.steps if step.id in asked and step.status is StepStatus.COMPLETED}
    if answered:
        case["answers"] = answered
    case["expect"] = _expectation(run, attempts, ends, asked)
    return case


def _answers(attempts: Iterable[Attempt], ends: Mapping[str, Receipt]) -> dict[str, JsonValue]:
    """Return the answers by step, as a test file has them. A step whose calls all returned nothing needs none."""
    found = dict[str, dict[int | None, list[JsonValue]]]()
    for attempt in attempts:
        if (receipt := ends.get(attempt.id)) is not None:
            found.setdefault(attempt.step_id, {}).setdefault(attempt.item, []).append(_answer(receipt))
    answers = dict[str, JsonValue]()
    for step_id, items in found.items():
        by_item: list[JsonValue] = [
            tries[0] if len(tries) == 1 else tries for _, tries in sorted(items.items(), key=lambda item: item[0] or 0)
        ]
        if any(answer != {"result": None} for answer in by_item):
            answers[step_id] = by_item[0] if None in items else by_item
    return answers


def _answer(receipt: Receipt) -> JsonValue:
    if receipt.outcome is Outcome.SUCCEEDED:
        return {"result": receipt.result}
    error = receipt.error or ""
    return {"timeout": True} if error.startswith(TIMED_OUT) else {"failure": error}


def _refused(gates: Iterable[Gate], approvals: Iterable[Approval]) -> dict[str, JsonValue]:
    """Return the gates at which nobody approved, with what happened there."""
    rejected = {approval.gate_id for approval in approvals if approval.decision == "reject"}
    ends: dict[str, JsonValue] = {gate.step_id or PLAN: "expire" for gate in gates if gate.end == "expired"}
    return ends | {gate.step_id or PLAN: "reject" for gate in gates if gate.id in rejected}


def _expectation(run: PlanRun, attempts: Sequence[Attempt], ends: Mapping[str, Receipt], asked: Collection[str]) -> dict[str, JsonValue]:
    calls = [attempt for attempt in attempts if attempt.kind == "step"]
    expect: dict[str, JsonValue] = {"status": run.status.value}
    if run.reason is not None:
        expect["reason"] = run.reason.value
    expect["order"] = [*dict.fromkeys(call.step_id for call in calls)]
    if failed := [step.id for step in run.steps if step.status is StepStatus.FAILED]:
        expect["failed"] = [*failed]
    undone = [
        call_name(attempt.step_id, attempt.item, attempt.label)
        for attempt in attempts
        if attempt.kind == "rollback" and attempt.id in ends and ends[attempt.id].outcome is Outcome.SUCCEEDED
    ]
    if undone:
        expect["rolled_back"] = [*undone]
    called_with = dict[str, JsonValue]()
    for step_id in dict.fromkeys(call.step_id for call in calls):
        last = {call.item: call.parameters for call in calls if call.step_id == step_id}
        given: list[JsonValue] = [parameters for _, parameters in sorted(last.items(), key=lambda item: item[0] or 0)]
        if step_id not in asked and MASK not in str(given):
            called_with[step_id] = given
    if called_with:
        expect["called_with"] = called_with
    if run.outputs:
        expect["outputs"] = run.outputs
    return expect
