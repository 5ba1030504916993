"""Variants of the product, each with one rule removed, and the violations that must detect it. Only the processes of a run apply them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import update

from plan_adapter.execution import call_arguments, goal_calls, rollback
from plan_adapter.execution import history as run_history
from plan_adapter.execution.redactor import Redactor
from plan_adapter.execution.run_status import Ending
from plan_adapter.local.crash_points import CrashPoint
from plan_adapter.model.record import Attempt, Receipt
from plan_adapter.model.status import Outcome, PlanStatus
from plan_adapter.runs import ending, resume, step_gates
from plan_adapter.store import leases, outcomes, permission, recorder
from plan_adapter.store.database.tables import leases as lease_table
from plan_adapter.store.proof import audit
from plan_adapter.tools import remote_calls, remote_programs
from tests.faults.plans import Scenario, has_commands

Target = tuple[CrashPoint, str | None]


@dataclass(frozen=True)
class Variant:
    """How to remove a rule in this process, and the kinds of violations that detect it."""

    breaks: Callable[[], None]
    detected_as: frozenset[str]
    at: tuple[Target, ...] = ()  # where processes end or sleep; empty for anywhere
    where: Callable[[Scenario], bool] = lambda _: True  # the runs that depend on the rule
    race: str | None = None  # the race that fails without the rule


def _intents_are_not_awaited() -> None:
    async def intent(self: Any, attempt: Attempt) -> None:
        row = {**self._context_columns, **recorder.attempt_row(attempt)}
        written = recorder.asyncio.get_running_loop().create_future()
        written.add_done_callback(lambda future: future.exception())
        self._batch.intents.append(recorder._Intent(attempt, row, written))
        self._start_writer()

    recorder.StoreRecorder.intent = intent


def _history_is_changed(change: Callable[[run_history.RunHistory], run_history.RunHistory]) -> Callable[[], None]:
    def breaks() -> None:
        original = run_history.RunHistory.of
        run_history.RunHistory.of = lambda attempts, receipts: change(original(attempts, receipts))

    return breaks


def _running_commands_are_not_refused() -> None:
    resume.refuse_running_commands = outcomes.refuse_running = lambda *_, **__: None


def _keys_depend_on_the_attempt() -> None:
    original = call_arguments.CallArguments.context

    def context(self: Any, *given: Any, **named: Any) -> Any:
        found = original(self, *given, **named)
        return replace(found, idempotency_key=f"{found.idempotency_key}-{found.attempt}")

    call_arguments.CallArguments.context = context


def _epochs_are_not_compared() -> None:
    leases.require = lambda *_: None


def _leases_are_granted() -> None:
    leases.is_free = lambda *_: True


def _epochs_are_not_incremented() -> None:
    original = leases.take

    def take(connection: Any, run_id: str, *given: Any, **named: Any) -> leases.Claim:
        claim = original(connection, run_id, *given, **named)
        connection.execute(update(lease_table).where(lease_table.c.run_id == run_id).values(epoch=1))
        return claim._replace(epoch=1)

    leases.take = take


def _approvals_are_not_required() -> None:
    permission.refusals = lambda *_: {}


def _calls_are_not_compared() -> None:
    step_gates.is_call_answer = lambda row, run, call: (row.run_id, row.step_id, row.item) == (run.id, call.step.id, call.item)
    permission.is_same_content = lambda *_: True


def _uses_are_not_counted() -> None:
    permission.count_use = lambda *_: None
    permission.is_use_left = lambda _: True


def _steps_have_no_gates() -> None:
    step_gates.needs_gate = lambda *_: False


def _receipts_precede_effects() -> None:
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
    recorder.StoreRecorder.receipt = lambda self, receipt: None


def _audit_entries_are_omitted() -> None:
    original = audit.append

    def append(connection: Any, run_id: str, entries: Sequence[Any]) -> None:
        original(connection, run_id, [entry for entry in entries if entry.kind != "attempt_succeeded"])

    audit.append = append


def _nothing_is_redacted() -> None:
    Redactor.text = lambda self, text: text
    Redactor.value = lambda self, value: value


def _every_run_completes() -> None:
    original = ending.with_finally_steps

    def with_finally_steps(*given: Any) -> Ending:
        return original(*given)._replace(status=PlanStatus.COMPLETED, reason=None)

    ending.with_finally_steps = with_finally_steps


def _done_counts_as_again() -> None:
    original = outcomes.UnknownOutcomes.resolve

    async def resolve(self: Any, run_id: str, step_id: str, record: outcomes.ResolutionRecord, **named: Any) -> Receipt:
        return await original(self, run_id, step_id, replace(record, resolution="again"), **named)

    outcomes.UnknownOutcomes.resolve = resolve


def _undone_steps_are_forgotten() -> None:
    original = rollback.Rollback.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        self._undone = set()

    rollback.Rollback.__init__ = init


def _the_first_step_is_undone_first() -> None:
    original = rollback.Rollback.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        self._waits_for = dict.fromkeys(self._waits_for, 0)  # nothing waits for the steps that depend on it
        self._urgency = {step_id: -urgency for step_id, urgency in self._urgency.items()}

    start_ready = rollback.Rollback._start_ready
    rollback.Rollback.__init__ = init
    rollback.Rollback._start_ready = lambda self, ready: start_ready(self, ready[::-1])


def _decisions_are_forgotten(history: run_history.RunHistory) -> run_history.RunHistory:
    return replace(history, decisions=replace(history.decisions, succeeded={}))


def _writes_of_goals_need_no_approval() -> None:
    original = goal_calls.GoalCalls.call

    async def call(self: Any, *given: Any, **named: Any) -> Any:
        return await original(self, *given, **{**named, "needs_approval": False})

    goal_calls.GoalCalls.call = call


def _hosts_are_not_asked() -> None:
    async def follow(*_: Any, **__: Any) -> None:
        """Say that the command has not begun."""

    remote_calls.RemoteCall.follow = follow


def _asking_prevents_nothing() -> None:
    says_never = """
    [ -e "$pa_call/pid" ] || {
        mkdir -p "$pa_call" && echo never >"$pa_call/asked.$$" && ln "$pa_call/asked.$$" "$pa_call/asked"
        echo "@PREFIX@never"
        exit
    }
"""
    remote_programs._ASK = says_never + remote_programs._ASK.replace("pa_claim never", ":")


def _has_goals(scenario: Scenario) -> bool:
    return any(step.goal is not None for step in scenario.plan.all_steps)


def _is_gated(scenario: Scenario) -> bool:
    return any(step.requires_approval for step in scenario.plan.steps)


AFTER_WRITE: Target = ("after-effect", "write")

VARIANTS: dict[str, Variant] = {
    "intents are not durable before the effect": Variant(
        _intents_are_not_awaited, frozenset({"unrecorded"}), at=(("mid-effect", "read"), ("after-effect", None))
    ),
    "receipts are ignored on resume": Variant(
        _history_is_changed(lambda history: replace(history, succeeded={}, unknown={})),
        frozenset({"twice", "repeated"}),
        at=(("after-receipt", None),),
    ),
    "a write with an unknown outcome counts as not started": Variant(
        _history_is_changed(lambda history: replace(history, unknown={})),
        frozenset({"twice"}),
        at=(AFTER_WRITE,),
        where=lambda scenario: scenario.resumes_first,
    ),
    "a `finally` write that succeeded once is never unknown": Variant(
        _history_is_changed(
            lambda history: replace(history, unknown={u: a for u, a in history.unknown.items() if u not in history.outdated})
        ),
        frozenset({"twice"}),
        at=(AFTER_WRITE, ("after-effect", "finally write")),
        where=lambda scenario: scenario.resumes_first and any(step.tool_name == "write" for step in scenario.plan.finally_),
    ),
    "a command that still runs is repeated": Variant(
        _running_commands_are_not_refused,
        frozenset({"overlap"}),
        at=(("command-started", None), ("command-recorded", None)),
        where=lambda scenario: has_commands(scenario.plan),
    ),
    "idempotency keys depend on the attempt": Variant(
        _keys_depend_on_the_attempt, frozenset({"key"}), at=(("after-effect", "idempotent_write"),)
    ),
    "epochs are not incremented": Variant(_epochs_are_not_incremented, frozenset({"epoch"}), at=(("claimed", None),)),
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
        _history_is_changed(_decisions_are_forgotten),
        frozenset({"paid twice"}),
        at=(("before-intent", "check read"), ("gate-answered", None)),
        where=_has_goals,
    ),
    "the write of a goal needs no approval": Variant(_writes_of_goals_need_no_approval, frozenset({"call unapproved"}), where=_has_goals),
    "receipts are written before the effect": Variant(_receipts_precede_effects, frozenset({"untrue"}), at=(("mid-effect", None),)),
    "an audit entry is omitted": Variant(_audit_entries_are_omitted, frozenset({"altered"}), at=(("after-receipt", None),)),
    "nothing is redacted": Variant(_nothing_is_redacted, frozenset({"leaked"}), at=(("after-receipt", None),)),
    "every run completes": Variant(_every_run_completes, frozenset({"status"}), at=(("after-end", None),)),
    "a person's `done` counts as `again`": Variant(_done_counts_as_again, frozenset({"twice"}), at=(AFTER_WRITE,)),
    "undone steps are forgotten": Variant(
        _undone_steps_are_forgotten, frozenset({"twice", "repeated"}), at=(("before-intent", "rollback idempotent_write"),)
    ),
    "the first step is undone first": Variant(
        _the_first_step_is_undone_first, frozenset({"order"}), at=(("after-effect", "rollback idempotent_write"),)
    ),
    "epochs are not compared": Variant(_epochs_are_not_compared, frozenset({"fence"}), at=(("before-end", None),), race="one_takes_over"),
    "a lease is always granted": Variant(_leases_are_granted, frozenset({"two runners"}), at=(("claimed", None),), race="one_is_held"),
}

HOST_VARIANTS: dict[str, Variant] = {
    "a host is not asked how a command ended": Variant(_hosts_are_not_asked, frozenset({"twice"})),
    "a command may begin after its probe": Variant(_asking_prevents_nothing, frozenset({"twice"})),
}
"""Variants that only restarts of a fleet detect."""
