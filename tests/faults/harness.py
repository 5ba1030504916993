"""The trial loop: start a run, kill its process at a crash point, check its record, let people answer, and resume it until it is over."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from plan_adapter import PlanRun, PlanStore, ToolRegistry
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.rollback_units import is_rolled_back, rolled_back_items, units_to_roll_back
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.coverage import new_standing_approval
from plan_adapter.local.crash_points import CrashPoint
from plan_adapter.model.approvals import ApprovalRequest, Decision, StandingApproval
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.options import Effect
from plan_adapter.model.plan import ExecutionPlan, Step, new_id
from plan_adapter.model.record import RunContext
from plan_adapter.model.status import RunReason
from plan_adapter.runner import arevise_run
from plan_adapter.runs.resolve import end_command
from plan_adapter.store import PlanStatus
from plan_adapter.validation import validate
from tests.faults.check import units_of, violations
from tests.faults.check_goals import goal_violations
from tests.faults.child import BY, CANARY, REACHED, Fault, Order, Report, Verb, Workspace, answer_to_fields, is_unwanted
from tests.faults.evidence import Evidence, Violation
from tests.faults.goals import ALWAYS, ModelCall, effects_of, may_fail, model_calls
from tests.faults.plans import SCHEDULE, TOOL_NAMES, Scenario, has_goals, scenario_of
from tests.faults.processes import start
from tests.faults.world import COMMAND_TOOL, FINALLY, ROLLBACK, TOOLS, Line, Unit, World, lines_of

CALL_POINTS: tuple[CrashPoint, ...] = ("before-intent", "after-intent", "mid-effect", "after-effect")
Target = tuple[CrashPoint, str | None]


def _call_targets(*details: str) -> tuple[Target, ...]:
    return tuple((point, detail) for detail in details for point in CALL_POINTS)


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
    *_call_targets("read", "idempotent_write", "write"),
    ("after-receipt", None),
    ("in-transaction", "run_changed"),
    *_call_targets("rollback write", "rollback idempotent_write"),
    *_call_targets("finally read", "finally idempotent_write", "finally write"),
    ("before-end", None),
    ("in-transaction", "run_ended"),
    ("after-end", None),
)
"""Every target of a run without a server and without goals, in the order in which a run reaches them."""

GOAL_TARGETS = _call_targets("decision read", "check read")
"""The targets of goals only: in their decisions and checks."""

COMMAND_TARGETS: tuple[Target, ...] = (("command-started", None), ("command-recorded", None))
"""The targets of commands only: one that no row names yet, and one that the record names."""

ALL_TARGETS = (*TARGETS, *GOAL_TARGETS, *COMMAND_TARGETS)

MAX_PROCESSES = 60
"""A run that is not over after this many processes makes no progress."""
MAX_REVISIONS = 2

Choice = Callable[["Trial"], Fault | None]


@dataclass
class Trial:
    """One run of one seed, from its first process to its end."""

    seed: int
    workspace: Workspace
    store: PlanStore
    choose: Choice  # the fault of the next process
    variant: str | None = None
    server: str | None = None
    lease: tuple[float, float] | None = None
    tools: ToolRegistry = TOOLS
    chance: random.Random = field(init=False)
    scenario: Scenario = field(init=False)
    run_id: str | None = None
    processes: int = 0
    kills: Counter[Target] = field(default_factory=Counter[Target])
    violations: list[Violation] = field(default_factory=list[Violation])
    events: list[str] = field(default_factory=list[str])  # what happened, for people
    has_resumed_first: bool = False
    done: Collection[Unit] = ()  # the units with succeeded receipts
    standing: StandingApproval | None = None
    has_left_command: bool = False  # people have let a command run until after the next process

    @property
    def has_goals(self) -> bool:
        """Whether the plan has goals."""
        return has_goals(self.scenario.plan)

    def __post_init__(self) -> None:
        self.chance, self.scenario = random.Random(~self.seed), scenario_of(self.seed)

    async def prepare(self) -> None:
        """Add the standing approval that the run needs, if any."""
        if self.scenario.approved_by == "standing":
            validated = validate(self.scenario.plan, self.tools)
            now = await self.store.now()
            self.standing = new_standing_approval(validated, by=BY, known_by="os_user", at=now, schedules=[SCHEDULE], max_runs=9)
            await self.store.standing.add(self.standing)

    async def run_to_end(self) -> None:
        """Start processes until the run is over or a violation is found."""
        while not self.violations and (order := await self.next_order()) is not None:
            if self.processes == MAX_PROCESSES:
                self.violations.append(Violation("stuck", f"the run is not over after {self.processes} processes: {self.events[-3:]}"))
                break
            await self.run_once(order)
        if not self.violations:
            self.violations += await self.check(is_over=True)

    async def run_once(self, order: Order) -> str | None:
        """Execute `order` in a process, check the run, and let people answer. Return the name of the error that the process raised."""
        report = await self.run_process(order)
        self.violations += await self.check()
        if not self.violations:
            await self._answer()
        return report and report.error

    async def run_process(self, order: Order) -> Report | None:
        """Execute `order` in a process and return its report, or None if it was killed."""
        self.processes += 1
        report = await start(order).final_report()
        is_killed, report = report == REACHED, None if report == REACHED else report
        self.events.append(f"{order.verb} until {order.fault}: {report or 'killed'}")
        if is_killed and order.fault is not None:
            self.kills[order.fault.point, order.fault.detail] += 1
        elif report is not None and report.error is not None and not self.is_expected(report):
            self.violations.append(Violation("broken", f"the process: {report.error}: {report.message}"))
        await self.find_run()
        return report

    async def find_run(self) -> None:
        """Note the id of the run, once a process has recorded it."""
        if self.run_id is None:
            runs = await self.store.runs(limit=1, context=RunContext(task_id=self.workspace.task_id))
            self.run_id = runs[0].id if runs else None

    def is_expected(self, report: Report) -> bool:
        """Return whether the product may raise this error between two processes of one run."""
        revoked = report.error == NotApprovedError.__name__ and "revoked" in report.message
        refusals = ("waits", "is not rolled back while", "still runs here")
        waits = report.error == RunConflictError.__name__ and any(refusal in report.message for refusal in refusals)
        return revoked or waits

    def order(self, verb: Verb, *, fault: Fault | None) -> Order:
        """Return the order for the next process of this run."""
        return Order(verb, self.workspace, self.run_id, fault, self.variant, self.lease, self.server)

    async def next_order(self) -> Order | None:
        """Return the next order, or None if the run is over."""
        if self.run_id is None:
            return self.order("start", fault=self.choose(self))
        run = await self.store.run(self.run_id)
        unknown = await self.store.outcomes.unknown(run.id)
        history = await self.store.ledger.history(run.id)
        if unknown and (self.has_resumed_first or not self.scenario.resumes_first):
            self.has_resumed_first = False
            return self.order("resolve", fault=self._fault_of_resolve())
        if run.status is PlanStatus.COMPLETED or run.reason in (RunReason.REJECTED, RunReason.EXPIRED):
            return None
        self.has_resumed_first = bool(unknown)
        plan = await self.store.get(run.digest)
        if run.completed_at is not None and is_rolled_back(plan, history, run.rollback):
            remaining = units_to_roll_back(plan, history)
            is_refused = self._was_revoked(run)
            if remaining and not is_refused:
                return self.order("undo", fault=self.choose(self))
            return self.order("resolve", fault=self._fault_of_resolve()) if unknown else None  # also where no rollback can follow
        is_finished = not item_rollbacks_left(plan, history)  # that of an item that was resolved waits for a resume
        if run.reason in (RunReason.STEP_FAILED, RunReason.EXHAUSTED) and not unknown and (is_finished or self._was_revoked(run)):
            return None
        return self.order("resume", fault=self.choose(self))

    def _was_revoked(self, run: PlanRun) -> bool:
        return run.message is not None and "was revoked by" in run.message

    def _fault_of_resolve(self) -> Fault | None:
        return Fault("in-transaction") if self.chance.random() < 0.1 else None

    async def check(self, *, is_over: bool = False) -> list[Violation]:
        """Return the violations of the run as it is now, while no process executes it."""
        if self.run_id is None:
            return []
        run = await self.store.run(self.run_id)
        evidence = Evidence(
            document=await self.store.export(run.id),
            run=run,
            plan=await self.store.get(run.digest),
            tools=self.tools,
            lines=self.lines(),
            standing=await self.store.standing.find(include_ended=True) if self.scenario.approved_by == "standing" else (),
            secret=CANARY,
            is_over=is_over,
            leaks=await self.leaks(),
            model_calls=self.model_calls(),
        )
        self.done = evidence.done.keys()
        overlaps = self.workspace.folder / "commands" / "overlaps"
        twice = [Violation("overlap", f"commands ran at the same time: {overlaps.read_text()}")] if overlaps.exists() else []
        return [*violations(evidence), *goal_violations(evidence), *twice]

    def lines(self) -> list[Line]:
        """Return the effects of this run in its world."""
        return [line for line in lines_of(self.workspace.world) if line.run == self.run_id]

    async def leaks(self) -> list[str]:
        """Return the files of the run that contain the secret."""
        return await leaks(self.workspace.home)

    def model_calls(self) -> list[ModelCall]:
        """Return the calls of the model."""
        return model_calls(self.workspace.model)

    # People's actions between two processes.

    async def _answer(self) -> None:
        if self.run_id is None:
            return
        await self._settle_commands(self.run_id)
        run = await self.store.run(self.run_id)
        if self.standing is not None and self.scenario.revokes and run.started_at is not None:
            await self.store.standing.revoke(self.standing.id, by=BY)
        if self.scenario.revises != "nothing":
            await self._revise(run)
        await self.answer_gates(run.id)

    async def answer_gates(self, run_id: str) -> None:
        """Answer some of the run's open gates."""
        for gate in await self.store.gates.find(run_id=run_id):
            if self.chance.random() < self.scenario.answers:
                request = ApprovalRequest(gate.approval_digest, gate.name, "", "", run_id, gate.step_id, gate.item, gate.id)
                decision: Decision = "reject" if is_unwanted(gate) else "approve"
                result = answer_to_fields(gate.fields or ()) if gate.kind == "question" else None
                await self.store.gates.answer(gate.id, answer_to(request, decision=decision, by=BY, known_by="unverified", result=result))

    async def _settle_commands(self, run_id: str) -> None:
        """End each command that outlived its process, or let it end. At times, leave all of them until after the next process."""
        running = [command for command in await self.store.outcomes.commands(run_id) if command.state == "running"]
        self.has_left_command = bool(running) and not self.has_left_command and self.chance.random() < 0.5
        for command in running:
            attempt = command.attempt
            if self.has_left_command:
                self.events.append(f"people leave the command of {command.call}, {command.in_words}")
            elif self.chance.random() < 0.5:
                run = await self.store.run(run_id)
                await end_command(run, attempt.step_id, self.store, item=attempt.item, kind=attempt.kind)
            else:
                World(self.workspace.world).release(attempt.id)
                while command.state == "running":
                    await asyncio.sleep(0.005)

    async def _revise(self, run: PlanRun) -> None:
        """Revise the parameters of a step that has not started."""
        answers = [row for row in await self.store.approvals(run.id) if row.step_id is not None and row.used_at is None]
        attempts = await self.store.attempts(run.id)
        started = {attempt.step_id for attempt in attempts}
        plan: ExecutionPlan = await self.store.get(run.digest)
        all_steps = [step.id for step in plan.all_steps if not step.inner]
        candidates = all_steps if self.scenario.revises == "anything" else [row.step_id for row in answers]
        fresh = next((step_id for step_id in candidates if step_id in all_steps and step_id not in started), None)
        is_enough = len(await self.store.revisions.of_run(run.id)) >= MAX_REVISIONS
        if fresh is None or is_enough or run.status is PlanStatus.COMPLETED or any(attempt.kind == "rollback" for attempt in attempts):
            return
        step = _step_in_its_document(plan, plan.step(fresh))
        if step.ask is not None:
            step.ask.question = f"{fresh}-{new_id()} {step.ask.question.partition(' ')[2]}".rstrip()
        elif step.goal is not None:
            step.description = f"{fresh}-{new_id()}"
        else:
            step.parameters = {**step.parameters, "body": f"{fresh}-{new_id()} {str(step.parameters['body']).partition(' ')[2]}".rstrip()}
        await arevise_run(run.id, plan, tools=self.tools, by=BY, note="say it otherwise", store=self.store)


def item_rollbacks_left(plan: ExecutionPlan, history: RunHistory) -> list[Unit]:
    """Return the calls of failed items whose rollback has begun and still has to undo them."""
    alone = {step.id: rolled_back_items(group, plan, history) for group in plan.all_steps for step in group.steps}
    return [(step_id, item) for step_id, item in units_to_roll_back(plan, history) if item in alone.get(step_id, ())]


def _step_in_its_document(plan: ExecutionPlan, step: Step) -> Step:
    """Return the step that a document contains: the inner step of a sub-plan, or `step` itself."""
    if step.within is None:
        return step
    inner = _step_in_its_document(plan, step.within).pinned
    assert inner is not None
    return inner.step(step.local_id)


async def leaks(folder: Path) -> list[str]:
    """Return the files under `folder` that contain the secret.

    Another process reads them: SQLite loses its lock on a file if the process that holds it closes any descriptor of that file.
    """
    grep = await asyncio.create_subprocess_exec("grep", "-rlaF", "-e", CANARY, folder, stdout=asyncio.subprocess.PIPE)
    found, _ = await grep.communicate()
    assert grep.returncode in (0, 1)
    return found.decode().split("\n")[:-1]


def random_fault(trial: Trial) -> Fault | None:
    """Return a random fault, or None. Targets near the end of the run are rare, because nothing follows them."""
    if trial.chance.random() < 0.04:
        return None
    targets = [target for target in ALL_TARGETS if may_reach(trial, *target)]
    weights = [
        4 if point in CALL_POINTS or (point, detail) in COMMAND_TARGETS else 1 if "end" in f"{point} {detail}" else 2
        for point, detail in targets
    ]
    return Fault(*trial.chance.choices(targets, weights)[0], trial.chance.choices((1, 2, 3), (8, 1, 1))[0])


class InOrder:
    """Chooses the next of `targets` for each process; for None, the process has no fault."""

    def __init__(self, targets: Iterable[Target | None] = TARGETS) -> None:
        self.left = list(targets)

    def __call__(self, _trial: Trial) -> Fault | None:
        target = self.left.pop(0) if self.left else None
        return None if target is None else Fault(*target)


def only_at(*targets: Target) -> Choice:
    """Return a choice of these targets for the first processes; the later ones have no fault, so that the run can end."""

    def choose(trial: Trial) -> Fault | None:
        return None if trial.kills.total() > 5 else Fault(*trial.chance.choice(targets), trial.chance.choices((1, 2, 3), (6, 1, 1))[0])

    return choose


def may_reach(trial: Trial, point: CrashPoint, detail: str | None) -> bool:
    """Return whether the next process of a trial may reach a target. It may also end earlier."""
    effects: dict[str, Effect] = {"": "read", **{name: effect for effect, name in TOOL_NAMES.items()}}  # a question has no tool name
    plan = trial.scenario.plan
    if detail is not None and detail.startswith(FINALLY):  # they run again whenever other steps have run
        finals = [step for step in plan.finally_ if point != "mid-effect" or step.tool_name != COMMAND_TOOL]
        return any(FINALLY + (step.effect or effects[step.tool_name or ""]) == detail for step in finals)
    calls = [step for step in plan.all_steps if not step.inner and step not in plan.finally_]
    remaining = [step for step in calls if any(unit not in trial.done for unit in units_of(step, plan))]
    goals = [step for step in remaining if step.goal is not None]
    if (point, detail) in GOAL_TARGETS:
        return bool(goals)
    if (point, detail) in COMMAND_TARGETS:
        return any(step.tool_name == COMMAND_TOOL for step in remaining)
    if point in CALL_POINTS and detail is not None and not detail.startswith(ROLLBACK):
        if any(detail in effects_of(step) for step in goals):
            return True
        others = [step for step in remaining if step.goal is None]
        if point == "mid-effect":
            others = [step for step in others if step.ask is None and step.tool_name != COMMAND_TOOL]
        return any((step.effect or effects[step.tool_name or ""]) == detail for step in others)
    if point in CALL_POINTS or detail == "run_changed":
        undone = [step for step in calls if (ROLLBACK + step.id, units_of(step, plan)[0][1]) not in trial.done]
        undo = {ROLLBACK + effects[step.rollback.tool_name] for step in undone if step.rollback is not None}
        fails = any((str(ALWAYS) in str(step.parameters.get("fails")) or may_fail(step)) and step.on_error is None for step in remaining)
        return fails and (detail in undo or (detail == "run_changed" and bool(undo)))
    is_gated = any(step.requires_approval or step.ask is not None or step.goal is not None for step in remaining)
    if point in ("gate-opened", "gate-answered") or detail in ("gate_opened", "gate_answered"):
        return is_gated or (trial.scenario.approved_by == "approver" and not trial.done)
    return trial.run_id is None or detail != "run_created"


@asynccontextmanager
async def open_trial(
    seed: int, folder: Path, store_url: str | None, choose: Choice, *, variant: str | None = None, keep: bool = False
) -> AsyncGenerator[Trial]:
    """Yield the trial of `seed` with its own folder, which is removed if there are no violations, unless `keep` is true."""
    own = folder / f"seed-{seed}-{uuid4()}"
    workspace = Workspace(own, store_url or f"sqlite:///{own}/home/plans.db?timeout=5", seed, own.name)
    workspace.home.mkdir(parents=True)
    async with PlanStore(workspace.store_url) as store:
        trial = Trial(seed, workspace, store, choose, variant=variant)
        await trial.prepare()
        yield trial
    if not trial.violations and not keep:
        shutil.rmtree(own)


async def run_trial(
    seed: int,
    folder: Path,
    store_url: str | None = None,
    *,
    choose: Choice = random_fault,
    variant: str | None = None,
    keep: bool = False,
) -> Trial:
    """Run the trial of `seed` to its end and return it."""
    async with open_trial(seed, folder, store_url, choose, variant=variant, keep=keep) as trial:
        await trial.run_to_end()
    return trial
