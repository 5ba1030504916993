"""`dry_run_plan`: executes a plan in a store of its own, with no tool that writes behind it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, Protocol

from pydantic import JsonValue

from plan_adapter.engine.connection import configured_api_url
from plan_adapter.engine.local_server import configured_server
from plan_adapter.execution.calling import CallTimedOutError, complete, prepare_call
from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.ports import AttemptEnd, GatedCall, GateRefusal, StepCall
from plan_adapter.execution.printing import prints_of_call
from plan_adapter.gates.approval import needs_gate, os_user, requires_approval
from plan_adapter.gates.policy import EffectivePolicy, effective_policy
from plan_adapter.loading import PlanSource, aplan_of
from plan_adapter.local import telemetry
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval
from plan_adapter.model.dry_run import DryRun, DryRunCall, DryRunGate, How
from plan_adapter.model.errors import ExpressionError, InvalidPlanError, ToolError, error_text
from plan_adapter.model.language import spoken, tr
from plan_adapter.model.options import CallKind
from plan_adapter.model.plan import GOAL, ExecutionPlan, Step, new_id
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.record import PlanRun, Receipt
from plan_adapter.model.status import Outcome, RunReason
from plan_adapter.model.values import Unknown, has_unknown, join
from plan_adapter.runs.run_session import Backend, RunRequest, RunSession, opened_store
from plan_adapter.runs.start import create_run, execute_session
from plan_adapter.runs.variables import with_variables
from plan_adapter.store.store import PlanStore
from plan_adapter.text.preview import preview_plan
from plan_adapter.tools.probing import Simulation
from plan_adapter.tools.registry import ToolRegistry, Tools, as_registry
from plan_adapter.tools.tool import Tool, ToolContext
from plan_adapter.twins import sync_twin
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate
from plan_adapter.validation.inputs import read_values

PLAN = "plan"
"""The name of the plan's own gate."""

OTHERS_SECONDS = 0.5
"""How long a call that failed in a replay waits for the next of the calls that began before that."""

SIMULATION_SECONDS = 30.0
"""How long a simulation may take."""


async def adry_run_plan(
    plan: PlanSource,
    *,
    tools: Tools,
    inputs: Mapping[str, object] | None = None,
    answers: Mapping[str, Mapping[str, object]] | None = None,
    store: PlanStore | None = None,
    reads: bool = True,
) -> DryRun:
    """Run `plan` with these inputs without any effect, and return each call it would make.

    `plan` and `tools` are what `run_plan` takes. Tools that read are called, unless `reads` is False. In place of a tool that writes, its
    `simulate` is called; without one, its result is unknown, and so is what depends on it. `answers` are answers to questions: by step, the
    values of the fields. The run is not recorded in the store, which only gives the policy and stored plans.

    Raises InvalidPlanError for a plan, inputs or answers that are not valid.
    """
    settings = Settings()
    loaded = await aplan_of(plan, store=store)
    if store is None and not settings.has_store:
        policy = effective_policy(settings)
    else:
        async with opened_store(store, settings) as opened:
            policy = await opened.policy.effective(settings)
    given = inputs or {}
    if loaded.unread_variables(given):
        server = None if configured_api_url() is None else await asyncio.to_thread(configured_server, settings)
        given = await with_variables(loaded, given, server=server)
    return await rehearse(loaded, as_registry(tools), given, policy=policy, settings=settings, answers=answers, reads=reads)


dry_run_plan = sync_twin(adry_run_plan)


async def rehearse(
    plan: ExecutionPlan,
    tools: ToolRegistry,
    inputs: Mapping[str, object] | None = None,
    *,
    policy: EffectivePolicy,
    settings: Settings,
    answers: Mapping[str, Mapping[str, object]] | None = None,
    reads: bool = True,
    from_text: bool = False,
) -> DryRun:
    """Run `plan` as `adry_run_plan` does. Nothing is written outside a temporary folder.

    `from_text`: the inputs and answers are texts, as typed.
    """
    known = bind_inputs(validate(plan, tools), inputs, from_text=from_text)
    given = _read_answers(known.validated, answers or {}, from_text=from_text)
    async with rehearsals(known.validated, tools, policy=policy, settings=settings) as rehearsal:
        return await rehearsal.run(known.inputs, answers=given, reads=reads)


class Recorded(Protocol):
    """What a recorded run knows about the calls and gates of its replay."""

    @property
    def run(self) -> PlanRun:
        """The recorded run."""
        ...

    def end_of(self, call: StepCall, parameters: Mapping[str, JsonValue]) -> Receipt | None:
        """Return how the same call ended. None if the run did not make it."""
        ...

    def begun_before(self, step_id: str, item: int | None) -> set[tuple[str, int | None]]:
        """Return the step and item of each call that begins before this one fails or is refused. Afterwards, none may begin."""
        ...

    def refusal_at(self, step_id: str, item: int | None) -> RunReason | None:
        """Return why the call was not made after its gate: a person rejected it, or nobody answered in time. None if it was approved."""
        ...


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A plan that can be executed several times without any effect, in one store that is then thrown away."""

    known: ValidatedPlan
    policy: EffectivePolicy
    _quiet: ValidatedPlan  # the same plan, without any function that writes
    _store: PlanStore
    _settings: Settings

    async def run(
        self,
        inputs: Mapping[str, JsonValue],
        *,
        answers: Mapping[str, dict[str, JsonValue]] | None = None,
        reads: bool = False,
        recorded: Recorded | None = None,
    ) -> DryRun:
        """Execute the plan once. With `recorded`, calls that it knows end as they did then. Raises InvalidPlanError for wrong inputs."""
        known = bind_inputs(self.known, inputs)
        bound = bind_inputs(self._quiet, known.inputs)
        begun = _BegunCalls(recorded)
        gates = _ListedGates(self.known, self.policy, answers or {}, recorded, begun)
        steps = _RehearsingStepRunner(known, gates, begun, reads=reads, recorded=recorded)
        run_id = None if recorded is None else recorded.run.id
        request = RunRequest(requested_by=os_user(), settings=self._settings, run_id=run_id)
        run = await create_run(bound, self._store, request)
        backend = Backend(run_step=steps, gates=gates, assume=steps.assume)
        with telemetry.nothing_counted():
            run = await execute_session(RunSession(bound, run, self._store, request, backend=backend), server=None)
        written = [attempt for attempt in await self._store.attempts(run.id) if attempt.effect != "read"]
        asks_first = [DryRunGate(PLAN, "approval")] if requires_approval(self.known.plan, self.policy) else []
        return DryRun(
            run=run,
            calls=tuple(steps.calls),
            gates=(*asks_first, *gates.opened),
            worst_case_ms=_worst_case(known, self.policy),
            effects=len(written),
            problems=tuple(steps.problems),
        )


@asynccontextmanager
async def rehearsals(
    known: ValidatedPlan, tools: ToolRegistry, *, policy: EffectivePolicy, settings: Settings
) -> AsyncGenerator[Rehearsal]:
    """Yield rehearsals of a plan. Nothing is written outside a temporary folder."""
    quiet = _without_writes(validate(_for_rehearsal(known.plan), tools))
    with TemporaryDirectory(prefix="plan-dry-run-") as folder:
        own = _settings_in(Path(folder), settings)
        async with PlanStore(own.store_url) as store:
            yield Rehearsal(known, policy, quiet, store, own)


def _settings_in(folder: Path, settings: Settings) -> Settings:
    """Return `settings` with a store and results in `folder`, and with the policy of no plan."""
    changed: dict[str, Any] = {"home": folder, "database_url": None, "store_host": "", "allow_unapproved": True}
    return Settings.model_construct(**{**dict(settings), **changed})  # a copy would keep the URL of the store, which is cached


def _worst_case(bound: BoundPlan, policy: EffectivePolicy) -> float | None:
    shown = preview_plan(
        bound.validated,
        inputs=bound.inputs,
        approval_digest=bound.approval_digest,
        requires_approval=requires_approval(bound.validated.plan, policy),
        gate_effects=policy.gate_effects,
    )
    return shown.worst_case_ms


def _for_rehearsal(plan: ExecutionPlan) -> ExecutionPlan:
    """Return `plan` without what only a real run needs: approvals, triggers, its turn and a window to start in, and a model that replans.

    It speaks to its caller, not to approvers.
    """
    changed = plan.model_copy(deep=True)
    changed.on_failure, changed.concurrency, changed.language = None, None, spoken()
    changed.options.require_approval, changed.options.run_window, changed.triggers = False, None, []
    for each in changed.plans.values():
        each.approval = None
    return changed


def _without_writes(validated: ValidatedPlan) -> ValidatedPlan:
    """Return `validated` without any function that writes: nothing of it can be called by mistake."""
    return validated.with_tools(lambda tool: tool if tool.effect == "read" and tool.name != GOAL else tool.with_function(_refuse))


async def _refuse(**_arguments: object) -> NoReturn:
    raise ToolError("a dry run calls no tool that writes")


def _read_answers(
    validated: ValidatedPlan, answers: Mapping[str, Mapping[str, object]], *, from_text: bool
) -> dict[str, dict[str, JsonValue]]:
    """Return the answers by question, typed. Raises InvalidPlanError with all that do not fit."""
    questions = {step.id: step.ask for step in validated.plan.all_steps if step.ask is not None}
    problems, typed = list[Problem](), dict[str, dict[str, JsonValue]]()
    for step_id, values in answers.items():
        question = questions.get(step_id)
        if question is None:
            hint = did_you_mean(step_id, questions) if questions else "the plan asks no question"
            problems.append(Problem("unknown-step", at=join("answers", step_id), message=f"`{step_id}` asks no question", hint=hint))
            continue
        typed[step_id], wrong = read_values(question.fields, values, from_text=from_text, what="field")
        problems += [
            Problem(found.code, at=join(join("answers", step_id), found.at.removeprefix("fields.")), message=found.message, hint=found.hint)
            for found in wrong
        ]
    if problems:
        raise InvalidPlanError(problems)
    return typed


class _SimulationSaysNoError(ToolError):
    """A simulation works, and could not tell: what earlier writes would have made is not there."""


class _BegunCalls:
    """The calls that have begun. A call that ends a run waits for those that begin before it does: between its attempts, or beside it."""

    def __init__(self, recorded: Recorded | None) -> None:
        self._recorded = recorded
        self._begun = set[tuple[str, int | None]]()
        self._another_began = asyncio.Event()

    def add(self, call: StepCall) -> None:
        """Note that `call` has begun."""
        self._begun.add((call.step.id, call.item))
        self._another_began.set()

    async def wait_before(self, step_id: str, item: int | None) -> None:
        """Wait for those that begin before this call fails or is refused, as long as another one begins every now and then."""
        before = set[tuple[str, int | None]]() if self._recorded is None else self._recorded.begun_before(step_id, item)
        with suppress(TimeoutError):
            while not before <= self._begun:
                self._another_began.clear()
                async with asyncio.timeout(OTHERS_SECONDS):
                    await self._another_began.wait()


class _ListedGates:
    """Lists the gates that would open, and asks nobody. Implements `ports.StepGates`."""

    waits = True

    def __init__(
        self,
        validated: ValidatedPlan,
        policy: EffectivePolicy,
        answers: Mapping[str, dict[str, JsonValue]],
        recorded: Recorded | None,
        begun: _BegunCalls,
    ) -> None:
        self._recorded = recorded
        self._begun = begun
        self.opened = list[DryRunGate]()
        self._validated = validated
        self._policy = policy
        self._answers = answers

    def is_gated(self, step: Step) -> bool:
        """Return whether `step` would wait at a gate of its own."""
        return needs_gate(self._validated.steps[step.id], self._validated, self._policy)

    def answer_to(self, step: Step) -> dict[str, JsonValue]:
        """Return the answer to the question of `step`: what was given, else what a person would say."""
        fields = () if step.ask is None else step.ask.fields
        return self._answers.get(step.id) or {name: Unknown(f"${{{{ steps.{step.local_id}.result.{name} }}}}") for name in fields}

    async def ask(self, call: GatedCall) -> Approval | GateRefusal:
        """List the gate. The approval exists only here. A gate of a recorded run ends as it did."""
        step = self._validated.steps[call.step.id]
        kind = "approval" if step.ask is None else "question"
        self.opened.append(DryRunGate(call.name, kind, self._answers.get(step.id), step.id, call.item))
        if self._recorded is not None and (reason := self._recorded.refusal_at(step.id, call.item)) is not None:
            await self._begun.wait_before(step.id, call.item)
            return GateRefusal(reason, tr("as in the recorded run"))
        now = datetime.now(UTC)
        return Approval(new_id(), call.approval_digest, "approve", os_user(), "unverified", now, step_id=step.id, item=call.item)


class _RehearsingStepRunner(DirectStepRunner):
    """Makes the calls that read, and simulates the others. Implements `ports.StepRunner`."""

    def __init__(self, bound: BoundPlan, gates: _ListedGates, begun: _BegunCalls, *, reads: bool, recorded: Recorded | None) -> None:
        self._recorded = recorded
        self._begun = begun
        self.calls = list[DryRunCall]()
        self._tools = bound.validated.used_tools
        self._conditions = dict[str, str]()  # by step
        self._gates = gates
        self._reads = reads
        self.problems = list[str]()  # of simulations

    def assume(self, step: Step, condition: str) -> None:
        """Note that the condition of `step` is unknown. It is taken to be true."""
        self._conditions[step.id] = condition

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make one attempt of `call` if its tool only reads and everything is known. Otherwise simulate it."""
        self._begun.add(call)
        why = self._why_not_called(call)
        if why is None:
            return await self._read(call)
        end = await call.rehearse(partial(self._answer, call, why))
        if end.outcome != "succeeded":
            self._note(call, "failed", _parameters_of(call), why=end.in_words)
            await self._begun.wait_before(call.step.id, call.item)
        return end

    async def _read(self, call: StepCall) -> AttemptEnd:
        """Make one attempt. If it fails after a write that was not made, which it may depend on, its result is unknown."""
        end, parameters = await call.attempt(without_prefect=True), _parameters_of(call)
        if end.outcome == "succeeded":
            self._note(call, "called", parameters, result=end.result)
        elif any(made.effect != "read" or made.how != "called" for made in self.calls):
            why = tr("writes before it were not made, and now it {end}", end=end.in_words)
            self._note(call, "unknown", parameters, result=_unknown_result(call), why=why)
            return AttemptEnd("succeeded", end.number, result=_unknown_result(call))
        else:
            self._note(call, "failed", parameters, why=end.in_words)
        return end

    def _why_not_called(self, call: StepCall) -> str | None:
        """Return why the tool of a call is not called. None if it is."""
        tool = self._tools.get(call.tool_name)
        if call.step.ask is not None:
            return tr("a person answers it")
        if tool is None:
            return tr("a model decides what to call")
        if tool.effect != "read" or call.effect != "read":
            return tr("its tool can write")
        if not self._reads:
            return tr("nothing is called")
        if self._gates.is_gated(call.step):
            return tr("it waits for an approval first")
        return tr("its parameters are not known yet") if has_unknown(_parameters_of(call)) else None

    async def _answer(self, call: StepCall, why: str, parameters: dict[str, JsonValue], context: ToolContext) -> JsonValue:
        """Return the result of a call that is not made, as far as it is known."""
        unknown = _unknown_result(call)
        if self._recorded is not None and (end := self._recorded.end_of(call, parameters)) is not None:
            if end.outcome is Outcome.FAILED:
                raise ToolError(end.error or "")
            self._note(call, "recorded", parameters, result=end.result)
            return end.result
        if call.step.ask is not None:
            answer = dict[str, JsonValue](self._gates.answer_to(call.step))
            if self._recorded is not None:
                self._note(call, "recorded", parameters, result=answer)
            return answer
        tool = self._tools.get(call.tool_name)
        if tool is None or tool.simulate is None or has_unknown(parameters):
            self._note(call, "unknown", parameters, result=unknown, why=why)
            return unknown
        try:
            simulation = await _simulate(tool, tool.simulate, parameters, context)
            result = tool.result_of(simulation.result) if simulation.has_result else unknown
        except ToolError as error:
            if not isinstance(error, _SimulationSaysNoError):
                self.problems.append(
                    tr("the simulation of `{tool}` for `{call}` failed: {error}", tool=tool.name, call=call.name, error=error)
                )
            self._note(call, "unknown", parameters, result=unknown, why=tr("its simulation failed: {error}", error=error))
            return unknown
        how: How = "simulated" if simulation.has_result else "unknown"
        self._note(call, how, parameters, result=result, shows=context.redact(simulation.shows), why="" if simulation.has_result else why)
        return result

    def _note(
        self, call: StepCall, how: How, parameters: dict[str, JsonValue], *, result: JsonValue = None, shows: str = "", why: str = ""
    ) -> None:
        kind: CallKind = "step" if call.step_run.undoes is None else "rollback"
        self.calls.append(
            DryRunCall(
                name=call.name,
                step_id=call.step.id,
                kind=kind,
                item=call.item,
                tool_name=call.tool_name,
                effect=call.effect,
                how=how,
                parameters=parameters,
                result=result,
                shows=shows,
                why=why,
                condition=self._conditions.get(call.step.id, ""),
            )
        )


def _unknown_result(call: StepCall) -> Unknown:
    return Unknown(f"${{{{ steps.{call.step.local_id}.result }}}}")


def _parameters_of(call: StepCall) -> dict[str, JsonValue]:
    """Return the parameters of a call, or none if they cannot be resolved: the call then fails, and says why."""
    try:
        return call.parameters()
    except ExpressionError:
        return {}


async def _simulate(tool: Tool[..., Any], part: Tool[..., Any], parameters: Mapping[str, JsonValue], context: ToolContext) -> Simulation:
    """Call the simulation of `tool`. Raises ToolError if it fails, and _SimulationSaysNoError if it raises a ToolError."""
    try:
        arguments = part.bind({name: value for name, value in parameters.items() if name in part.parameter_names}, context)
        with prints_of_call(context.logger):
            call = prepare_call(part, arguments, isolation="thread")
            found = await complete(call, part.name, timeout=SIMULATION_SECONDS, stop=Stop())
    except CallTimedOutError:
        raise ToolError(f"no answer within {SIMULATION_SECONDS:g} s") from None
    except ToolError as error:
        raise _SimulationSaysNoError(error_text(error, context.redact)) from error
    except Exception as error:
        raise ToolError(error_text(error, context.redact)) from error
    return found if isinstance(found, Simulation) else Simulation(result=found)
