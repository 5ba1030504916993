"""The loop: a run is started, its process ends somewhere, what is left is looked at, people answer, and it goes on, until it is over."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from plan_adapter import PlanRun, PlanStatus, PlanStore
from plan_adapter.approvals import ApprovalRequest, Decision, StandingApproval
from plan_adapter.crash_points import CrashPoint
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.execution.rollback import units_to_roll_back
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.standing import summary_of
from plan_adapter.options import Effect
from plan_adapter.plan import ExecutionPlan, Step, new_id
from plan_adapter.record import RunContext
from plan_adapter.runner import arevise_run
from plan_adapter.status import RunReason
from plan_adapter.validation import validate
from tests.faults.check import units_of, violations
from tests.faults.check_goals import goal_violations
from tests.faults.child import BY, CANARY, REACHED, Fault, Order, Place, Told, Verb, answer_to_fields, is_unwanted
from tests.faults.evidence import Evidence, Violation
from tests.faults.goals import FOR_GOOD, effects_of, may_fail, model_calls
from tests.faults.plans import SCHEDULE, TOOL_NAMES, Scenario, has_goals, scenario_of
from tests.faults.processes import start
from tests.faults.world import ROLLBACK, TOOLS, Line, Unit, lines_of

OF_A_CALL: tuple[CrashPoint, ...] = ("before-intent", "after-intent", "mid-effect", "after-effect")
Target = tuple[CrashPoint, str | None]


def _of_calls(*places: str) -> tuple[Target, ...]:
    return tuple((point, place) for place in places for point in OF_A_CALL)


TARGETS: tuple[Target, ...] = (
    ("in-transaction", "run_created"),
    ("in-transaction", "gate_opened"),
    ("gate-opened", None),
    ("in-transaction", "gate_answered"),
    ("gate-answered", None),
    ("in-transaction", "approval_used"),
    ("in-transaction", "run_started"),
    ("claimed", None),
    ("in-transaction", "attempt_started"),
    *_of_calls("read", "idempotent_write", "write"),
    ("after-receipt", None),
    ("in-transaction", "run_changed"),
    *_of_calls("rollback write", "rollback idempotent_write"),
    ("before-end", None),
    ("in-transaction", "run_ended"),
    ("after-end", None),
)
"""Every place at which a run without a server and without goals can end, in the order in which one comes to them."""

GOAL_TARGETS = _of_calls("decision read", "check read")
"""The places that only a goal has: in its decisions, and in what they are checked for."""

MOST_PROCESSES = 60
"""After so many processes a run that is not over goes in circles."""
MOST_REVISIONS = 2

Choice = Callable[["Trial"], Fault | None]


@dataclass
class Trial:
    """One run of one seed, from its first process to its end."""

    seed: int
    place: Place
    store: PlanStore
    choose: Choice  # where the next process ends
    variant: str | None = None
    server: str | None = None
    lease: tuple[float, float] | None = None
    chance: random.Random = field(init=False)
    scenario: Scenario = field(init=False)
    run_id: str | None = None
    processes: int = 0
    kills: Counter[Target] = field(default_factory=Counter[Target])
    found: list[Violation] = field(default_factory=list[Violation])
    told: list[str] = field(default_factory=list[str])  # what happened, in words
    has_looked: bool = False
    done: Collection[Unit] = ()  # what has succeeded receipts
    standing: StandingApproval | None = None

    @property
    def has_goals(self) -> bool:
        """Whether its plan has goals."""
        return has_goals(self.scenario.plan)

    def __post_init__(self) -> None:
        self.chance, self.scenario = random.Random(~self.seed), scenario_of(self.seed)

    async def prepare(self) -> None:
        """Give the standing approval by which the run will go."""
        if self.scenario.approved_by == "standing":
            validated = validate(self.scenario.plan, TOOLS)
            now = await self.store.now()
            self.standing = summary_of(validated, by=BY, known_by="os_user", at=now, schedules=[SCHEDULE], max_runs=9)
            await self.store.standing.add(self.standing)

    async def execute_resume(self) -> None:
        """Start processes until the run is over, or something is found."""
        while not self.found and (order := await self.next()) is not None:
            if self.processes == MOST_PROCESSES:
                self.found.append(Violation("stuck", f"the run is not over after {self.processes} processes: {self.told[-3:]}"))
                break
            await self.go_on_once(order)
        if not self.found:
            self.found += await self.look(is_over=True)

    async def go_on_once(self, order: Order) -> str | None:
        """Have `order` done, look at what is left, and let people answer; return the name of the error that the process raised."""
        told = await self.perform(order)
        self.found += await self.look()
        if not self.found:
            await self._answer()
        return told and told.error

    async def perform(self, order: Order) -> Told | None:
        """Have `order` done by a process, and return what it told; None for one that was killed."""
        self.processes += 1
        told = await start(order).ended()
        is_killed, told = told == REACHED, None if told == REACHED else told
        self.told.append(f"{order.verb} until {order.fault}: {told or 'killed'}")
        if is_killed and order.fault is not None:
            self.kills[order.fault.point, order.fault.detail] += 1
        elif told is not None and told.error is not None and not _is_expected(told):
            self.found.append(Violation("broken", f"the process: {told.error}: {told.words}"))
        if self.run_id is None:
            runs = await self.store.runs(limit=1, context=RunContext(task_id=self.place.task_id))
            self.run_id = runs[0].id if runs else None
        return told

    def order(self, verb: Verb, *, fault: Fault | None) -> Order:
        """Return what the next process of this run is to do."""
        return Order(verb, self.place, self.run_id, fault, self.variant, self.lease, self.server)

    async def next(self) -> Order | None:
        """Return what is to be done now, None where the run is over."""
        if self.run_id is None:
            return self.order("start", fault=self.choose(self))
        run = await self.store.run(self.run_id)
        unknown = await self.store.outcomes.unknown(run.id)
        history = await self.store.ledger.history(run.id)
        if unknown and (self.has_looked or not self.scenario.looks_first):
            self.has_looked = False
            return self.order("resolve", fault=self._fault_of_resolve())
        if run.status is PlanStatus.COMPLETED or run.reason in (RunReason.REJECTED, RunReason.EXPIRED):
            return None
        self.has_looked = bool(unknown)
        if run.completed_at is not None and history.has_rollbacks:
            left = units_to_roll_back(await self.store.get(run.digest), history)
            is_refused = self._was_revoked(run)
            return self.order("undo", fault=self.choose(self)) if left and not is_refused else None
        if run.reason in (RunReason.STEP_FAILED, RunReason.EXHAUSTED) and not unknown:
            return None
        return self.order("resume", fault=self.choose(self))

    def _was_revoked(self, run: PlanRun) -> bool:
        return run.message is not None and "was revoked by" in run.message

    def _fault_of_resolve(self) -> Fault | None:
        return Fault("in-transaction") if self.chance.random() < 0.1 else None

    async def look(self, *, is_over: bool = False) -> list[Violation]:
        """Return what does not hold of the run as it is now, while no process executes it."""
        if self.run_id is None:
            return []
        run = await self.store.run(self.run_id)
        evidence = Evidence(
            document=await self.store.export(run.id),
            run=run,
            plan=await self.store.get(run.digest),
            tools=TOOLS,
            lines=self.lines(),
            standing=await self.store.standing.find(include_ended=True) if self.scenario.approved_by == "standing" else (),
            secret=CANARY,
            is_over=is_over,
            leaks=await leaks(self.place.home),
            model_calls=model_calls(self.place.model),
        )
        self.done = evidence.done.keys()
        return [*violations(evidence), *goal_violations(evidence)]

    def lines(self) -> list[Line]:
        """Return what this run has done in its world."""
        return [line for line in lines_of(self.place.world) if line.run == self.run_id]

    # What people do between two processes.

    async def _answer(self) -> None:
        if self.run_id is None:
            return
        run = await self.store.run(self.run_id)
        if self.standing is not None and self.scenario.revokes and run.started_at is not None:
            await self.store.standing.revoke(self.standing.id, by=BY)
        if self.scenario.revises != "nothing":
            await self._revise(run)
        for gate in await self.store.gates.find(run_id=run.id):
            if self.chance.random() < self.scenario.answers:
                asked = ApprovalRequest(gate.approval_digest, gate.name, "", "", run.id, gate.step_id, gate.item, gate.id)
                decision: Decision = "reject" if is_unwanted(gate) else "approve"
                result = answer_to_fields(gate.fields or ()) if gate.kind == "question" else None
                await self.store.gates.answer(gate.id, answer_to(asked, decision=decision, by=BY, known_by="unverified", result=result))

    async def _revise(self, run: PlanRun) -> None:
        """Let a step that has not begun say something else."""
        answers = [row for row in await self.store.approvals(run.id) if row.step_id is not None and row.used_at is None]
        attempts = await self.store.attempts(run.id)
        begun = {attempt.step_id for attempt in attempts}
        plan: ExecutionPlan = await self.store.get(run.digest)
        anything = [step.id for step in plan.all_steps if not step.inner]
        candidates = anything if self.scenario.revises == "anything" else [row.step_id for row in answers]
        fresh = next((step_id for step_id in candidates if step_id in anything and step_id not in begun), None)
        is_enough = len(await self.store.revisions.of_run(run.id)) >= MOST_REVISIONS
        if fresh is None or is_enough or run.status is PlanStatus.COMPLETED or any(attempt.kind == "rollback" for attempt in attempts):
            return
        step = _written(plan, plan.step(fresh))
        if step.ask is not None:
            step.ask.question = f"{fresh}-{new_id()} {step.ask.question.partition(' ')[2]}".rstrip()
        elif step.goal is not None:
            step.description = f"{fresh}-{new_id()}"
        else:
            step.parameters = {**step.parameters, "body": f"{fresh}-{new_id()} {str(step.parameters['body']).partition(' ')[2]}".rstrip()}
        await arevise_run(run.id, plan, tools=TOOLS, by=BY, note="say it otherwise", store=self.store)


def _written(plan: ExecutionPlan, step: Step) -> Step:
    """Return the step of a sub-plan as its own document has it, or any other step itself."""
    if step.within is None:
        return step
    inner = _written(plan, step.within).pinned
    assert inner is not None
    return inner.step(step.local_id)


def _is_expected(told: Told) -> bool:
    """Return whether the product may refuse with this error between two processes of one run."""
    revoked = told.error == NotApprovedError.__name__ and "revoked" in told.words
    asks_first = told.error == RunConflictError.__name__ and ("waits" in told.words or "while it is unknown" in told.words)
    return revoked or asks_first


async def leaks(folder: Path) -> list[str]:
    """Return the files under `folder` in which the secret stands.

    Another process reads them: SQLite's locks on a file are gone once any descriptor of it is closed in the process that holds them.
    """
    searching = await asyncio.create_subprocess_exec("grep", "-rlaF", "-e", CANARY, folder, stdout=asyncio.subprocess.PIPE)
    found, _ = await searching.communicate()
    assert searching.returncode in (0, 1)
    return found.decode().split("\n")[:-1]


def at_random(trial: Trial) -> Fault | None:
    """Let the next process end anywhere, or not; seldom near the end, after which there is nothing more to come."""
    if trial.chance.random() < 0.04:
        return None
    places = [target for target in (*TARGETS, *GOAL_TARGETS) if may_reach(trial, *target)]
    weights = [4 if point in OF_A_CALL else 1 if "end" in f"{point} {detail}" else 2 for point, detail in places]
    return Fault(*trial.chance.choices(places, weights)[0], trial.chance.choices((1, 2, 3), (8, 1, 1))[0])


class Each:
    """Lets one process after the other end at the next of `targets`."""

    def __init__(self, targets: Iterable[Target] = TARGETS) -> None:
        self.left = list(targets)

    def __call__(self, _trial: Trial) -> Fault | None:
        return Fault(*self.left.pop(0)) if self.left else None


def only_at(*targets: Target) -> Choice:
    """Return a choice of nothing but these places; not for ever, because a run that ends at the same one each time is never over."""

    def choose(trial: Trial) -> Fault | None:
        return None if trial.kills.total() > 5 else Fault(*trial.chance.choice(targets), trial.chance.choices((1, 2, 3), (6, 1, 1))[0])

    return choose


def may_reach(trial: Trial, point: CrashPoint, detail: str | None) -> bool:
    """Return whether the next process of a trial may come to a place; it may also end before."""
    effects: dict[str, Effect] = {"": "read"} | {name: effect for effect, name in TOOL_NAMES.items()}  # a question has no tool name
    plan = trial.scenario.plan
    calls = [step for step in plan.all_steps if not step.inner and step not in plan.finally_]
    left = [step for step in calls if any(unit not in trial.done for unit in units_of(step, plan))]
    goals = [step for step in left if step.goal is not None]
    if (point, detail) in GOAL_TARGETS:
        return bool(goals)
    if point in OF_A_CALL and detail is not None and not detail.startswith(ROLLBACK):
        if any(detail in effects_of(step) for step in goals):
            return True
        others = [step for step in left if step.goal is None and (step.ask is None or point != "mid-effect")]
        return any(effects[step.tool_name or ""] == detail for step in others)
    if point in OF_A_CALL or detail == "run_changed":
        undone = [step for step in calls if (ROLLBACK + step.id, units_of(step, plan)[0][1]) not in trial.done]
        undo = {ROLLBACK + effects[step.rollback.tool_name] for step in undone if step.rollback is not None}
        fails = any((step.parameters.get("fails") == FOR_GOOD or may_fail(step)) and step.on_error is None for step in left)
        return fails and (detail in undo or (detail == "run_changed" and bool(undo)))
    is_gated = any(step.requires_approval or step.ask is not None or step.goal is not None for step in left)
    if point in ("gate-opened", "gate-answered") or detail in ("gate_opened", "gate_answered"):
        return is_gated or (trial.scenario.approved_by == "approver" and not trial.done)
    return trial.run_id is None or detail != "run_created"


@asynccontextmanager
async def opened(
    seed: int, folder: Path, store_url: str | None, choose: Choice, *, variant: str | None = None, keeps: bool = False
) -> AsyncGenerator[Trial]:
    """Yield the trial of `seed`, ready to begin, with a folder of its own; it is removed where nothing is found, unless one `keeps` it."""
    own = folder / f"seed-{seed}-{uuid4()}"
    place = Place(own, store_url or f"sqlite:///{own}/home/plans.db?timeout=5", seed, own.name)
    place.home.mkdir(parents=True)
    async with PlanStore(place.store_url) as store:
        trial = Trial(seed, place, store, choose, variant=variant)
        await trial.prepare()
        yield trial
    if not trial.found and not keeps:
        shutil.rmtree(own)


async def trial(
    seed: int,
    folder: Path,
    store_url: str | None = None,
    *,
    choose: Choice = at_random,
    variant: str | None = None,
    keeps: bool = False,
) -> Trial:
    """Bring the run of `seed` to its end, and return what happened."""
    async with opened(seed, folder, store_url, choose, variant=variant, keeps=keeps) as trial:
        await trial.execute_resume()
    return trial
