"""Rules that every run must satisfy after each fault and at its end: the exported record is compared with the world."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from plan_adapter import ExecutionPlan
from plan_adapter.model.canonical import call_digest
from plan_adapter.model.graph import successors
from plan_adapter.model.plan import Step
from plan_adapter.model.status import RunReason, StepStatus
from plan_adapter.store import PlanStatus
from plan_adapter.store.proof.verification import verify
from plan_adapter.tools.placeholders import question_tool
from plan_adapter.validation import validate
from tests.faults.evidence import Evidence, Row, Violation, unit_of
from tests.faults.goals import NOT_EXPANDED
from tests.faults.plans import ANSWERS
from tests.faults.world import ROLLBACK, Line, Unit, digest_of_secret


def violations(evidence: Evidence) -> list[Violation]:
    """Return every violation of a rule."""
    return [violation for rule in RULES for violation in rule(evidence)]


def no_effect_is_repeated(evidence: Evidence) -> Iterator[Violation]:
    keys = dict[str, Unit]()
    by_round = defaultdict[tuple[Unit, int], list[Line]](list)
    for line in evidence.lines:
        by_round[line.unit, evidence.rounds.get((line.unit, line.attempt), 0)].append(line)
    for (unit, _), lines in by_round.items():
        if lines[0].effect == "write" and len(lines) > 1:
            yield Violation("twice", f"{unit} was written {len(lines)} times, by attempts {[line.attempt for line in lines]}")
        if lines[0].effect == "idempotent_write":
            if len({line.key for line in lines}) > 1:
                yield Violation("key", f"{unit} was put under {len({line.key for line in lines})} keys")
            if (other := keys.setdefault(lines[0].key, unit)) != unit:
                yield Violation("key", f"{unit} has the key of {other}")
        receipt = evidence.done.get(unit)
        if (
            receipt is not None
            and unit[0] not in evidence.finals
            and (later := [line.attempt for line in lines if line.attempt > receipt["number"]])
        ):
            yield Violation("repeated", f"{unit} had succeeded with attempt {receipt['number']}, and attempts {later} followed")


def receipts_are_true(evidence: Evidence) -> Iterator[Violation]:
    for unit, row in evidence.done.items():
        if evidence.is_goal_row(row):  # see `check_goals`
            continue
        result = json.loads(row["result"])
        step = evidence.steps.get(unit[0])
        if step is not None and step.ask is not None:
            answer = {name: ANSWERS[name] for name in step.ask.fields}
            if result != answer:
                yield Violation("untrue", f"the receipt of {unit} says {result}, but people answered {answer}")
            continue
        tokens = {line.token for line in evidence.by_unit.get(unit, ())}
        if not isinstance(result, dict) or result.get("token") not in tokens:
            yield Violation("untrue", f"the receipt of {unit} says {result}, the world {sorted(tokens)}")
    if not evidence.is_over:
        return
    for unit, lines in evidence.by_unit.items():
        # A failed run may leave idempotent writes unfinished, and reads have no effect.
        must = lines[0].effect == "write" or (lines[0].effect != "read" and evidence.run.status is PlanStatus.COMPLETED)
        if must and unit not in evidence.done:
            yield Violation("lost", f"{unit} was done, but has no receipt")


def every_effect_has_an_intent(evidence: Evidence) -> Iterator[Violation]:
    for line in evidence.lines:
        row = evidence.attempts.get((line.unit, line.attempt))
        if row is None:
            yield Violation("unrecorded", f"{line.unit}, attempt {line.attempt}, was done without an intent")
        elif (row["idempotency_key"], json.loads(row["parameters"])["body"]) != (line.key, line.body):
            yield Violation("unrecorded", f"{line.unit}, attempt {line.attempt}, was done with a key or body that differs from its intent")
        if line.secret != digest_of_secret(NOT_EXPANDED if line.step in evidence.goals else evidence.secret):
            yield Violation("unrecorded", f"{line.unit} received another secret")


_TOKEN_FIELDS = ("token", "choice", "answer", "summary")


def results_are_carried(evidence: Evidence) -> Iterator[Violation]:
    for line in evidence.lines:
        results = [json.loads(row["result"]) for row in evidence.document["receipts"] if row["outcome"] == "succeeded"]
        known = {token for result in results if isinstance(result, dict) for token in map(result.get, _TOKEN_FIELDS)}
        tokens = line.body.removeprefix("undo ").split()
        if stale := [token for token in tokens[1:] if token not in known]:
            yield Violation("stale", f"{line.unit} received {stale}, which is in no receipt")


def plans_are_approved(evidence: Evidence) -> Iterator[Violation]:
    revoked = {known.id: known.revoked_at for known in evidence.standing}
    began = {int(e["row_id"]): _moment(e["at"]) for e in evidence.document["audit"] if e["kind"] == "run_started"}
    rows = [row for row in evidence.document["approvals"] if row["step_id"] is None and row["decision"] == "approve" and row["used_at"]]
    for line in evidence.lines:
        digest = _digest_at(evidence.document, line.at)
        valid = [row for row in rows if row["approval_digest"] == digest and _moment(row["used_at"]).timestamp() <= line.at]
        # Runs that started before the revocation may continue.
        start = began.get(evidence.started_in.get((line.unit, line.attempt), 0))
        valid = [row for row in valid if (at := revoked.get(row["standing_id"] or "")) is None or (start is not None and start < at)]
        if not valid:
            yield Violation("unapproved", f"{line.unit}, attempt {line.attempt}, was done without an approval of the plan")


def calls_are_approved(evidence: Evidence) -> Iterator[Violation]:
    approvals = {row["id"]: row for row in evidence.document["approvals"]}
    starts = defaultdict[str, set[int]](set)
    for (unit, number), row in evidence.attempts.items():
        step = evidence.step_of(unit)
        if step is None or not (step.requires_approval or step.ask is not None):  # rollbacks are approved with the plan
            continue
        approval = approvals.get(row["approval_id"])
        parameters = json.loads(row["parameters"])
        tool = evidence.tools.get(step.tool_name or "") if step.ask is None else question_tool()
        assert tool is not None
        digest = call_digest(step, unit[1], parameters, tool.definition())
        if approval is None:
            yield Violation("call unapproved", f"{unit}, attempt {number}, has no approval")
            continue
        approved = (approval["decision"], approval["run_id"], *unit_of(approval), approval["approval_digest"])
        if approved != ("approve", evidence.run.id, *unit, digest):
            yield Violation("call unapproved", f"{unit}, attempt {number}, has the approval of another call: {approved}")
        if step.ask is None:  # a question has no effect, so a start that died before its receipt does not consume the answer
            starts[row["approval_id"]].add(evidence.started_in.get((unit, number), 0))
    for approval_id, epochs in starts.items():
        if len(epochs) > 1:
            yield Violation("reused", f"the approval {approval_id} of a call was used in the starts {sorted(epochs)}")


def groups_are_approved(evidence: Evidence) -> Iterator[Violation]:
    rows = [row for row in evidence.document["approvals"] if row["decision"] == "approve"]
    approved = {(row["step_id"], None if row["item"] == -1 else row["item"]) for row in rows}
    for (unit, number), row in evidence.attempts.items():
        group = evidence.steps[unit[0]].group if unit[0] in evidence.steps else None
        asks = evidence.steps[group].requires_approval if group is not None else False
        within = evidence.steps[unit[0]].within if unit[0] in evidence.steps else None
        while within is not None:
            if within.requires_approval and (within.id, None) not in approved:
                yield Violation("plan unapproved", f"{unit}, attempt {number} ({row['id']}), started before its sub-plan was approved")
            within = within.within
        if asks and (group, unit[1] if asks == "each" else None) not in approved:
            yield Violation("group unapproved", f"{unit}, attempt {number} ({row['id']}), started before its group was approved")


def one_process_at_a_time(evidence: Evidence) -> Iterator[Violation]:
    epoch, ended = 0, False
    for entry in evidence.document["audit"]:
        if entry["kind"] == "run_started":
            if int(entry["row_id"]) != epoch + 1:
                yield Violation("epoch", f"start {epoch} is followed by start {entry['row_id']}")
            epoch, ended = int(entry["row_id"]), False
        if entry["kind"] in ("attempt_succeeded", "attempt_failed") and entry["by"] is None:
            began = evidence.started_in.get((unit_of(entry), entry["attempt"]))
            if began != epoch:
                yield Violation("fence", f"{unit_of(entry)}, attempt {entry['attempt']} of start {began}, has its receipt in start {epoch}")
        if entry["kind"] == "run_ended":
            if ended and entry["message"] and " recorded `" not in entry["message"]:
                yield Violation("fence", f"start {epoch} ended more than once: {entry['message']}")
            ended = True
    for line in evidence.lines:
        began = evidence.started_in.get((line.unit, line.attempt))
        if None not in (began, line.epoch) and line.epoch != began:
            yield Violation("fence", f"{line.unit}, attempt {line.attempt} of start {began}, was done under lease {line.epoch}")


def the_record_is_unaltered(evidence: Evidence) -> Iterator[Violation]:
    found = verify(dict(evidence.document))
    if not found.ok:
        yield Violation("altered", str(found.problem))


def no_secret_is_written(evidence: Evidence) -> Iterator[Violation]:
    in_record = ["the record"] if evidence.secret in json.dumps(evidence.document) else []
    for name in (*evidence.leaks, *in_record):
        yield Violation("leaked", f"{name} contains the secret")


def the_status_matches_the_receipts(evidence: Evidence) -> Iterator[Violation]:
    run = evidence.run
    done = {step.id: all(unit in evidence.complete for unit in units_of(step, evidence.plan)) for step in evidence.plan.all_steps}
    if run.status is PlanStatus.EXECUTING and run.reason is not RunReason.INTERRUPTED:
        yield Violation("status", f"the run is shown as executing ({run.reason}), but no process executes it")
    for step in run.steps:
        if step.status is StepStatus.COMPLETED and not done[step.id]:
            yield Violation("status", f"{step.id} is shown as completed without its receipts")
    if run.status not in (PlanStatus.COMPLETED, PlanStatus.PARTIAL, PlanStatus.FAILED) or run.reason is RunReason.INTERRUPTED:
        return
    steps = [is_done for step_id, is_done in done.items() if step_id not in evidence.finals]
    steps += [item in complete_items(group, evidence.done) for group in evidence.plan.steps if group.is_group for item in items_of(group)]
    derived = PlanStatus.COMPLETED if all(done.values()) else PlanStatus.PARTIAL if any(steps) else PlanStatus.FAILED
    if run.status is not derived:
        yield Violation("status", f"the run is shown as {run.status}, but its receipts say {derived}")


def final_steps_run_last(evidence: Evidence) -> Iterator[Violation]:
    if evidence.run.status not in (PlanStatus.COMPLETED, PlanStatus.PARTIAL, PlanStatus.FAILED) or evidence.run.completed_at is None:
        return
    # Ignore effects of an earlier start whose process had lost its lease: they come too late for the final steps.
    current = max(evidence.started_in.values(), default=0)
    others = [index for index, line in enumerate(evidence.lines) if line.step not in evidence.finals]
    last = max((index for index in others if _start_of(evidence.lines[index], evidence) == current), default=-1)
    after = {line.step for line in evidence.lines[last + 1 :]}
    ended = {step.id for step in evidence.run.steps if step.status is StepStatus.COMPLETED}
    for step_id in sorted(evidence.finals & ended - after):
        yield Violation("order", f"{step_id} is shown as completed, but did not run after the last other step")


def _start_of(line: Line, evidence: Evidence) -> int | None:
    return evidence.started_in.get((line.unit, line.attempt))


def _undone_in_order(step_id: str, later: str, evidence: Evidence) -> Iterator[Violation]:
    """Check two steps of a group item by item."""
    first = dict[tuple[str, int | None], int]()
    for index, line in enumerate(evidence.lines):
        first.setdefault((line.step, line.item), index)
    for unit in evidence.done:
        undone = first.get((ROLLBACK + step_id, unit[1]))
        if unit[0] != later or undone is None or evidence.steps[later].rollback is None or not _is_undone(unit, evidence):
            continue
        if first.get((ROLLBACK + later, unit[1]), len(evidence.lines)) > undone:
            yield Violation("order", f"item {unit[1]} of {step_id} was undone before item {unit[1]} of {later}, which depends on it")


def rollbacks_run_in_reverse_order(evidence: Evidence) -> Iterator[Violation]:
    if not any(line.step.startswith(ROLLBACK) for line in evidence.lines):
        return
    after = successors(validate(evidence.plan, evidence.tools).reduced)
    first = dict[str, int]()
    for index, line in enumerate(evidence.lines):
        first.setdefault(line.step, index)
        if line.step.startswith(ROLLBACK) and (line.step.removeprefix(ROLLBACK), line.item) not in evidence.done:
            yield Violation("order", f"{line.unit} was undone, but has no receipt")
    undone = {step_id for step_id in evidence.steps if ROLLBACK + step_id in first}
    for step_id in undone:
        for later in _all_successors(step_id, after):
            group = evidence.steps[later].group
            if group is not None and group == evidence.steps[step_id].group:  # each item is undone by itself
                yield from _undone_in_order(step_id, later, evidence)
                continue
            if evidence.steps[later].rollback is None or not any(unit[0] == later and _is_undone(unit, evidence) for unit in evidence.done):
                continue
            if first.get(ROLLBACK + later, len(evidence.lines)) > first[ROLLBACK + step_id]:
                yield Violation("order", f"{step_id} was undone before {later}, which depends on it")


def only_failed_items_are_rolled_back(evidence: Evidence) -> Iterator[Violation]:
    run, plan = evidence.run, evidence.plan
    alone = {group.id: group for group in plan.all_steps if plan.rolls_back_failed_items(group)}
    undone = [(line.step.removeprefix(ROLLBACK), line.item) for line in evidence.lines if line.step.startswith(ROLLBACK)]
    failed = [step for step in plan.steps if run.step(step.id).status is StepStatus.FAILED]
    if run.completed_at is None or run.reason is not RunReason.STEP_FAILED or any(plan.on_error_of(step) == "stop" for step in failed):
        return  # the run may be rolled back
    for step_id, item in undone:
        group = alone.get(evidence.steps[step_id].group or "")
        if group is None or item in complete_items(group, evidence.done):
            yield Violation("undone", f"item {item} of {step_id} was rolled back, although no failure of it or of the run asks for that")
    for group in alone.values() if evidence.is_over else ():
        begun = {item for step_id, item in undone if evidence.steps[step_id].group == group.id}
        units = [(step.id, item) for step in group.steps if step.rollback is not None for item in begun]
        if left := [unit for unit in units if unit in evidence.done and (ROLLBACK + unit[0], unit[1]) not in evidence.done]:
            yield Violation("undone", f"the rollback of the items of {group.id} is not finished: {left}")


RULES = (
    no_effect_is_repeated,
    receipts_are_true,
    every_effect_has_an_intent,
    results_are_carried,
    plans_are_approved,
    calls_are_approved,
    groups_are_approved,
    one_process_at_a_time,
    the_record_is_unaltered,
    no_secret_is_written,
    the_status_matches_the_receipts,
    final_steps_run_last,
    rollbacks_run_in_reverse_order,
    only_failed_items_are_rolled_back,
)


def items_of(step: Step) -> list[int | None]:
    """Return the items of a step of `plans.plan_of`."""
    return [None] if step.for_each is None else list(range(len(json.loads(step.for_each.removeprefix("${{").removesuffix("}}")))))


def units_of(step: Step, plan: ExecutionPlan) -> list[Unit]:
    """Return the calls of a step of `plan`, or those of its inner steps."""
    if step.inner:
        return [unit for inner in step.inner for unit in units_of(inner, plan)]
    return [(step.id, item) for item in items_of(step if step.group is None else plan.step(step.group))]


def complete_items(group: Step, done: Collection[Unit]) -> list[int | None]:
    """Return the items for which every step of the group is done."""
    return [item for item in items_of(group) if all((step.id, item) in done for step in group.steps)]


def _is_undone(unit: Unit, evidence: Evidence) -> bool:
    """Return whether a rollback undoes a completed call. Some groups keep the calls of items that did not complete."""
    group = evidence.steps[unit[0]].group
    step = None if group is None else evidence.steps[group]
    return step is None or step.rollback_failed or unit[1] in complete_items(step, evidence.done)


def _all_successors(step_id: str, after: Mapping[str, Sequence[str]]) -> set[str]:
    found, left = set[str](), list(after[step_id])
    while left:
        if (next_id := left.pop()) not in found:
            found.add(next_id)
            left += after[next_id]
    return found


def _digest_at(document: Row, at: float) -> str:
    """Return the approval digest of the plan that the run executed at time `at`."""
    replaced = sorted((row for row in document["revisions"]), key=lambda row: row["number"])
    return next((row["approval_digest"] for row in replaced if _moment(row["at"]).timestamp() > at), document["run"]["approval_digest"])


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
