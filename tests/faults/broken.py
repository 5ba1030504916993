"""Variants of the product, each with one rule taken out: what must be caught, and as what. They act in the processes of a run only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import update

from plan_adapter.crash_points import CrashPoint
from plan_adapter.execution import call_arguments as handing
from plan_adapter.execution import goal_calls, rollback
from plan_adapter.execution import history as carry
from plan_adapter.execution.secrets import Redactor
from plan_adapter.execution.status import Ending
from plan_adapter.record import Attempt, Receipt
from plan_adapter.runs import ending
from plan_adapter.runs import step_gates as call_gates
from plan_adapter.status import Outcome, PlanStatus
from plan_adapter.store import audit, leases, outcomes, permission, recorder
from plan_adapter.store.tables import leases as lease_table
from tests.faults.plans import Scenario

Place = tuple[CrashPoint, str | None]


@dataclass(frozen=True)
class Variant:
    """How a rule is taken out of this process, and as which kinds of violations that must be found."""

    breaks: Callable[[], None]
    found_as: frozenset[str]
    at: tuple[Place, ...] = ()  # where processes end, or sleep, when it matters; anywhere
    where: Callable[[Scenario], bool] = lambda _: True  # the runs in which it matters
    race: str | None = None  # the one that it loses


def _intents_are_not_awaited() -> None:
    async def intent(self: Any, attempt: Attempt) -> None:
        row = {**self._whose, **recorder.attempt_row(attempt)}
        written = recorder.asyncio.get_running_loop().create_future()
        written.add_done_callback(lambda future: future.exception())
        self._batch.intents.append(recorder._Intent(attempt, row, written))
        self._start_writer()

    recorder.StoreRecorder.intent = intent


def _the_past_is(change: Callable[[carry.RunHistory], carry.RunHistory]) -> Callable[[], None]:
    def breaks() -> None:
        whole = carry.RunHistory.of
        carry.RunHistory.of = lambda attempts, receipts: change(whole(attempts, receipts))

    return breaks


def _keys_tell_the_attempt() -> None:
    whole = handing.CallArguments.context

    def context(self: Any, *given: Any, **named: Any) -> Any:
        found = whole(self, *given, **named)
        return replace(found, idempotency_key=f"{found.idempotency_key}-{found.attempt}")

    handing.CallArguments.context = context


def _epochs_are_not_compared() -> None:
    leases.require = lambda *_: None


def _leases_are_free() -> None:
    leases.is_free = lambda *_: True


def _epochs_are_not_counted() -> None:
    whole = leases.take

    def take(connection: Any, run_id: str, *given: Any, **named: Any) -> leases.Claim:
        claim = whole(connection, run_id, *given, **named)
        connection.execute(update(lease_table).where(lease_table.c.run_id == run_id).values(epoch=1))
        return claim._replace(epoch=1)

    leases.take = take


def _approvals_are_not_required() -> None:
    permission.refusals = lambda *_: {}


def _calls_are_not_compared() -> None:
    call_gates.is_of_call = lambda row, run, call: (row.run_id, row.step_id, row.item) == (run.id, call.step.id, call.item)
    permission.is_same_content = lambda *_: True


def _uses_are_not_counted() -> None:
    permission.count_use = lambda *_: None
    permission.is_use_left = lambda _: True


def _steps_have_no_gates() -> None:
    call_gates.needs_gate = lambda *_: False


def _receipts_come_first() -> None:
    begin, end = recorder.StoreRecorder.intent, recorder.StoreRecorder.receipt

    async def intent(self: Any, attempt: Attempt) -> None:
        await begin(self, attempt)
        early = Receipt(
            attempt.id,
            attempt.run_id,
            attempt.step_id,
            attempt.item,
            attempt.number,
            Outcome.SUCCEEDED,
            None,
            None,
            self.now(),
            0,
            kind=attempt.kind,
        )
        end(self, early)
        await self.flush()

    recorder.StoreRecorder.intent = intent
    recorder.StoreRecorder.receipt = lambda *_: None


def _entries_are_left_out() -> None:
    whole = audit.append

    def append(connection: Any, run_id: str, entries: Sequence[Any]) -> None:
        whole(connection, run_id, [entry for entry in entries if entry.kind != "attempt_succeeded"])

    audit.append = append


def _nothing_is_scrubbed() -> None:
    Redactor.text = lambda _, text: text
    Redactor.value = lambda _, value: value


def _every_run_completes() -> None:
    whole = ending.with_finals

    def with_finals(*given: Any) -> Ending:
        return whole(*given)._replace(status=PlanStatus.COMPLETED, reason=None)

    ending.with_finals = with_finals


def _done_counts_as_again() -> None:
    whole = outcomes.UnknownOutcomes.resolve

    async def resolve(self: Any, run_id: str, step_id: str, record: outcomes.ResolutionRecord, **named: Any) -> Receipt:
        return await whole(self, run_id, step_id, replace(record, resolution="again"), **named)

    outcomes.UnknownOutcomes.resolve = resolve


def _what_is_undone_is_forgotten() -> None:
    whole = rollback.Rollback.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        whole(self, *given, **named)
        self._undone = set()

    rollback.Rollback.__init__ = init


def _the_first_is_undone_first() -> None:
    whole = rollback.Rollback.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        whole(self, *given, **named)
        self._missing = dict.fromkeys(self._missing, 0)  # nothing waits for what stands on it
        self._urgency = {step_id: -urgency for step_id, urgency in self._urgency.items()}

    end_steps = rollback.Rollback._end_steps
    rollback.Rollback.__init__ = init
    rollback.Rollback._end_steps = lambda self, ready: end_steps(self, ready[::-1])


def _decisions_are_forgotten(history: carry.RunHistory) -> carry.RunHistory:
    return replace(history, decisions=replace(history.decisions, succeeded={}))


def _writes_of_goals_ask_nobody() -> None:
    whole = goal_calls.GoalCalls.call

    async def call(self: Any, *given: Any, **named: Any) -> Any:
        return await whole(self, *given, **{**named, "asks": False})

    goal_calls.GoalCalls.call = call


def _has_goals(scenario: Scenario) -> bool:
    return any(step.goal is not None for step in scenario.plan.all_steps)


def _is_gated(scenario: Scenario) -> bool:
    return any(step.requires_approval for step in scenario.plan.steps)


DONE: Place = ("after-effect", "write")

VARIANTS: dict[str, Variant] = {
    "intents are not durable before the effect": Variant(
        _intents_are_not_awaited, frozenset({"unrecorded"}), at=(("mid-effect", "read"), ("after-effect", None))
    ),
    "receipts are ignored on resume": Variant(
        _the_past_is(lambda history: replace(history, succeeded={}, unknown={})),
        frozenset({"twice", "repeated"}),
        at=(("after-receipt", None),),
    ),
    "an unknown write counts as not begun": Variant(
        _the_past_is(lambda history: replace(history, unknown={})),
        frozenset({"twice"}),
        at=(DONE,),
        where=lambda scenario: scenario.looks_first,
    ),
    "idempotency keys depend on the attempt": Variant(
        _keys_tell_the_attempt, frozenset({"key"}), at=(("after-effect", "idempotent_write"),)
    ),
    "epochs are not counted up": Variant(_epochs_are_not_counted, frozenset({"epoch"}), at=(("claimed", None),)),
    "no approval is required in the transaction": Variant(
        _approvals_are_not_required, frozenset({"unapproved"}), at=(("after-intent", None),), where=lambda scenario: scenario.revokes
    ),
    "the digest of a call is not compared": Variant(
        _calls_are_not_compared,
        frozenset({"call unapproved"}),
        at=(("gate-answered", None),),
        where=lambda scenario: scenario.revises == "approved" and _is_gated(scenario),
    ),
    "the use of a call's approval is not counted": Variant(
        _uses_are_not_counted, frozenset({"reused"}), at=(("after-intent", None), ("after-effect", None)), where=_is_gated
    ),
    "no step waits at a gate": Variant(_steps_have_no_gates, frozenset({"call unapproved"}), where=_is_gated),
    "receipts of decisions are ignored on resume": Variant(
        _the_past_is(_decisions_are_forgotten),
        frozenset({"paid twice"}),
        at=(("before-intent", "check read"), ("gate-answered", None)),
        where=_has_goals,
    ),
    "the write of a goal asks nobody": Variant(_writes_of_goals_ask_nobody, frozenset({"call unapproved"}), where=_has_goals),
    "receipts are written before the effect": Variant(_receipts_come_first, frozenset({"untrue"}), at=(("mid-effect", None),)),
    "an entry of the audit is left out": Variant(_entries_are_left_out, frozenset({"altered"}), at=(("after-receipt", None),)),
    "nothing is scrubbed": Variant(_nothing_is_scrubbed, frozenset({"leaked"}), at=(("after-receipt", None),)),
    "every run completes": Variant(_every_run_completes, frozenset({"status"}), at=(("after-end", None),)),
    "a person's `done` counts as `again`": Variant(_done_counts_as_again, frozenset({"twice"}), at=(DONE,)),
    "what is undone is forgotten": Variant(
        _what_is_undone_is_forgotten, frozenset({"twice", "repeated"}), at=(("before-intent", "rollback idempotent_write"),)
    ),
    "what was done first is undone first": Variant(
        _the_first_is_undone_first, frozenset({"order"}), at=(("after-effect", "rollback idempotent_write"),)
    ),
    "epochs are not compared": Variant(_epochs_are_not_compared, frozenset({"fence"}), at=(("before-end", None),), race="one_takes_over"),
    "a lease is always granted": Variant(_leases_are_free, frozenset({"two runners"}), at=(("claimed", None),), race="one_is_held"),
}
