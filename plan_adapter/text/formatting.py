"""`format_plan`: a plan or a run as Markdown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import JsonValue

from plan_adapter.expressions import Declarations, compile_template
from plan_adapter.model.approvals import Resolution, StandingApproval
from plan_adapter.model.options import ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step, flattened
from plan_adapter.model.readable import as_text, code, counted, duration, listed, moment, prose, redacted, words
from plan_adapter.model.record import AUTHOR, Attempt, PlanRun, Receipt, StartedCommand, StepRun
from plan_adapter.model.status import Outcome, RunReason, StepStatus
from plan_adapter.text.listing import (
    attempt_limits_text,
    error_policy_text,
    goal_facts,
    indented,
    policy_facts,
    step_listing,
    sub_plan_facts,
    trigger_facts,
)

if TYPE_CHECKING:
    from plan_adapter.model.rounds import RoundRecord

SHOWN_ITEMS = 20
"""How many items of a step's `for_each` are shown."""

SHOWN_CHARACTERS = 400
"""How much of a result or an error is shown. The store keeps all of it."""

HOSTS_SHOWN = 20
"""How many hosts of a group are named."""


@dataclass(frozen=True, slots=True)
class StepCallRecord:
    """The recorded calls of a step, or of one item of its `for_each`: last parameters, number of attempts, duration, outcome."""

    item: int | None
    parameters: JsonValue  # resolved; secrets redacted
    attempts: int  # in all starts of the run
    max_attempts: int  # per start of the run
    outcome: str | None  # of the last attempt; None if its end is not recorded
    duration_ms: int | None  # of the last attempt
    label: str | None = None  # the item's label, None if it is known by number
    resolution: Resolution | None = None  # the resolution of the last attempt by a person or the tool's probe
    by: str | None = None  # who resolved it
    known_by: str | None = None  # how their identity was proved
    note: str | None = None
    command: str | None = None  # whether the command that its last attempt started still runs, if nobody recorded how that attempt ended

    def __str__(self) -> str:
        """Return a short summary of the calls."""
        tries = f"attempt {self.attempts} of {self.max_attempts}"
        if self.attempts > self.max_attempts:
            tries = f"attempt {self.attempts} (at most {self.max_attempts} each time the run starts)"
        took = f", {duration(self.duration_ms)}" if self.duration_ms is not None and self.by is None else ""
        return f"{tries}{took}, {self.outcome or 'not ended'}"


def calls_of(
    run: PlanRun, attempts: Sequence[Attempt], receipts: Sequence[Receipt], commands: Sequence[StartedCommand] = ()
) -> dict[str, list[StepCallRecord]]:
    """Return the recorded calls of each step of `run`, by step id, with items in order. Steps that were not called are left out.

    `commands` are those that attempts without a recorded end have started.
    """
    last, counts = dict[tuple[str, int | None], Attempt](), Counter[tuple[str, int | None]]()
    for attempt in (attempt for attempt in attempts if attempt.kind == "step"):
        unit = (attempt.step_id, attempt.item)
        counts[unit] += 1
        if unit not in last or attempt.number > last[unit].number:
            last[unit] = attempt
    ends = {receipt.attempt_id: receipt for receipt in receipts}
    started = {command.attempt.id: command.in_words for command in commands}
    max_attempts = {step.id: step.max_retries + 1 for step in run.steps}
    found = dict[str, list[StepCallRecord]]()
    for (step_id, item), attempt in sorted(last.items(), key=lambda pair: (pair[0][0], -1 if pair[0][1] is None else pair[0][1])):
        if step_id in max_attempts:
            end, parameters = ends.get(attempt.id), redacted(attempt.parameters, expressions=False)
            outcome, took = (end.outcome.value, end.duration_ms) if end is not None else (None, None)
            call = StepCallRecord(item, parameters, counts[step_id, item], max_attempts[step_id], outcome, took, attempt.label)
            if end is not None and end.by is not None:
                call = replace(call, resolution=end.resolution, by=end.by, known_by=end.known_by, note=end.note)
            call = replace(call, command=started.get(attempt.id))
            found.setdefault(step_id, []).append(call)
    return found


def format_plan(
    plan_or_run: ExecutionPlan | PlanRun,
    *,
    standing: StandingApproval | None = None,
    calls: Mapping[str, Sequence[StepCallRecord]] | None = None,
    rounds: "Mapping[str, Sequence[RoundRecord]] | None" = None,
) -> str:
    """Return a plan with its dependencies, implied ones marked, or a run with the results of its steps, as Markdown.

    `standing` is the standing approval that the run used, because the run's record does not contain it. `calls` are the run's calls by
    step, and `rounds` those of its goals.
    """
    is_plan = isinstance(plan_or_run, ExecutionPlan)
    lines = _plan_lines(plan_or_run) if is_plan else _run_lines(plan_or_run, standing, calls or {}, rounds or {})
    return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies of a step: `named` under `depends_on`, or only `implied` by a reference."""

    named: tuple[str, ...]
    implied: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Both, named ones first."""
        return (*self.named, *self.implied)

    def inside(self, outer: str) -> "Dependencies":
        """Return these dependencies for a step of the sub-plan that the step `outer` runs."""
        return Dependencies(tuple(f"{outer}.{step_id}" for step_id in self.named), tuple(f"{outer}.{step_id}" for step_id in self.implied))


def dependencies_of(plan: ExecutionPlan) -> dict[str, Dependencies]:
    """Return the dependencies of each step. The plan need not be valid. Implied dependencies are in plan order."""
    declarations = Declarations(
        {step.id: step for step in plan.all_steps if step.within is None}, plan.inputs, item=True, result=True, run=True
    )
    outer_steps = [step for step in flattened(plan.steps) if step.within is None]
    step_lists = (outer_steps, plan.finally_)  # `finally` steps wait only for each other
    found = {step.id: _dependencies(step, declarations, [sibling.id for sibling in steps]) for steps in step_lists for step in steps}
    for step in outer_steps:
        if step.pinned is not None:
            found |= {f"{step.id}.{inner}": after.inside(step.id) for inner, after in dependencies_of(step.pinned).items()}
    return found


def _dependencies(step: Step, declarations: Declarations, possible: Sequence[str]) -> Dependencies:
    texts = [*step.parameters.values(), *step.inputs.values(), step.input, step.when, step.for_each, step.label, step.done_when, step.goal]
    if step.rollback is not None:
        texts += step.rollback.parameters.values()
    template, _ = compile_template([text for text in texts if text is not None], declarations, at="")
    used = template.steps - {step.id, *step.depends_on}
    implied = tuple(other for other in possible if other in used) if used else ()
    return Dependencies(tuple(dict.fromkeys(step.depends_on)), implied)


def _hosts_facts(plan: ExecutionPlan | None) -> list[str]:
    """Return a fact with the hosts of `plan` by group, if it has some."""
    if plan is None or (inventory := plan.inventory) is None:
        return []
    hosts = {name: [words(host) for host in inventory.hosts if host in inventory.members[name]] for name in inventory.groups}
    return [f"hosts: {', '.join(f'{code(name)} ({listed(found, HOSTS_SHOWN)})' for name, found in hosts.items())}"]


def _plan_lines(plan: ExecutionPlan) -> list[str]:
    lines = [f"# {prose(plan.name)}", "", prose(plan.description), ""]
    lines += [_input_line(name, spec) for name, spec in plan.inputs.items()]
    lines += [f"- {fact}" for fact in _hosts_facts(plan)]
    lines += [f"- name of a run: {code(plan.run_name)}"] if plan.run_name else []
    lines += [f"- language of its gates and forms: {code(plan.language)}"] if plan.language else []
    lines += [f"- tags: {', '.join(map(code, plan.tags))}"] if plan.tags else []
    lines += [f"- {fact}" for fact in trigger_facts(plan)]
    lines += [f"- {fact}" for fact in _option_facts(plan)]
    asks = (
        _requires_approval(plan.options)
        or any(_has_gate(plan, step) for step in plan.all_steps)
        or bool(plan.approval and plan.approval.effects)
    )
    lines += [f"- {fact}" for fact in policy_facts(plan, plan.permissions_at(None), asks=asks)]
    lines += [f"- output {code(name)}: {code(as_text(value))}" for name, value in plan.outputs.items()]
    lines += ["", "## Steps", ""]
    dependencies, count = dependencies_of(plan), len(flattened(plan.steps))
    for number, step in enumerate(plan.all_steps, start=1):
        after = dependencies[step.id]
        timeout = plan.timeout_ms_of(step) if step.goal is None else 0
        listed = step_listing(
            step,
            number=number,
            effect=step.effect,
            depends_on=after.all,
            implied=after.implied,
            parameters=_given_values(step),
            attempt_limits=attempt_limits_text(step, timeout) if timeout or step.max_retries else "",
            gate=_has_gate(plan, step),
            rollback=None if step.rollback is None else (None, step.rollback.parameters),
            is_finally_step=number > count,
            at_once=plan.items_at_once(step),
            on_error=plan.on_error_of(step),
            facts=[*sub_plan_facts(plan, step, plan.permissions_at(step)), *_hosts_facts(step.pinned)]
            if step.goal is None
            else goal_facts(plan, step, dict.fromkeys(step.tools)),
        )
        lines += indented(listed, step.depth)
    return lines


def _given_values(step: Step) -> Mapping[str, JsonValue]:
    """Return the values of a step as written: its question, parameters, raw input, or the inputs of its plan."""
    if step.ask is not None:
        return {"question": step.ask.question}
    return step.parameters or ({"input": step.input} if step.input else step.inputs)


def _has_gate(plan: ExecutionPlan, step: Step) -> bool:
    return plan.has_gate(step, None)


def _requires_approval(options: ExecutionOptions) -> bool:
    return options.require_approval and not options.auto_approve


def _input_line(name: str, spec: Input) -> str:
    return f"- input {code(name)} ({spec.type}, {_default_of(spec)})" + (f": {prose(spec.description)}" if spec.description else "")


def _default_of(spec: Input) -> str:
    default = None if spec.default is None else f"default {code(as_text(spec.default))}"
    variable = None if spec.variable is None else f"Prefect variable {code(spec.variable)}"
    return ", ".join(text for text in (variable, default) if text is not None) or "required"


def _option_facts(plan: ExecutionPlan) -> list[str]:
    options = plan.options
    facts = [
        f"approval: {'required' if _requires_approval(options) else 'not required'}",
        f"steps at once: {options.parallel_limit}",
        f"when a step fails: {error_policy_text(plan)}",
    ]
    if options.total_timeout_ms:
        facts.append(f"total timeout: {duration(options.total_timeout_ms)}")
    return facts


def _run_lines(
    run: PlanRun,
    standing: StandingApproval | None,
    calls: Mapping[str, Sequence[StepCallRecord]],
    rounds: "Mapping[str, Sequence[RoundRecord]]",
) -> list[str]:
    summary = run.summary()
    lines = [f"# {prose(run.name)}: {run.outcome_text}", "", prose(run.description), "", f"- run: `{run.id}`"]
    if run.message:
        lines.append(f"- {prose(run.message)}")
    lines.append(f"- progress: {summary.text} ({summary.progress:g} %)")
    lines.append(f"- plan digest: `{run.digest}`")
    if run.folder is not None:
        files = "" if run.folder.files_root == run.folder.path else f", files in {code(run.folder.files_root)}"
        lines.append(f"- folder: {code(run.folder.path)}{files}")
    if run.flow_run_id:
        lines.append(f"- flow run: `{run.flow_run_id}`")
    if run.approved_by:
        by_author = " (its author asks for no approval)" if run.approved_by == AUTHOR else ""
        given = "" if standing is None else f", with the standing approval `{standing.id}`, given at {moment(standing.at)} and used"
        lines.append(f"- approved by {prose(run.approved_by)}{by_author}{given} at {moment(run.approved_at)}")
    if run.rejection_note:
        lines.append(f"- rejected: {prose(run.rejection_note)}")
    took = (
        f", took {duration(run.total_duration_ms)}, waits included" if run.started_at is not None and run.completed_at is not None else ""
    )
    lines.append(f"- started {moment(run.started_at)}, ended {moment(run.completed_at)}{took}")
    lines += [f"- input {code(name)}: {code(_cut(as_text(value)))}" for name, value in run.inputs.items()]
    lines += [f"- output {code(name)}: {code(_cut(as_text(value)))}" for name, value in run.outputs.items()]
    lines += ["", "## Steps", ""]
    depths = dict[str, int]()  # an outer step comes before the steps inside it
    for step in run.steps:
        depths[step.id] = depths.get(step.group or "", 0)
        step_calls, goal_rounds = calls.get(step.id, ()), rounds.get(step.id, ())
        shown = _step_run_lines(step, is_interrupted=run.reason is RunReason.INTERRUPTED, is_goal=bool(goal_rounds))
        shown += _call_lines(step_calls, run.id) if not goal_rounds else _round_lines(step_calls, goal_rounds)
        lines += indented(shown, depths[step.id])
        depths[step.id] += bool(step.plan)
    return lines


def _step_run_lines(step: StepRun, *, is_interrupted: bool, is_goal: bool) -> list[str]:
    how = "done for some items" if step.is_partly_done else str(step.status)
    if step.carried:
        how += ", carried"
    if step.outcome is Outcome.UNKNOWN:
        how += ", outcome unknown"
    elif step.status is StepStatus.RUNNING and is_interrupted:
        how = "interrupted; it is safe to call it again, and resuming the run does so"
        if step.group is not None or not step.tool_name:
            how = "interrupted; resuming the run keeps the calls that succeeded and makes the others"
    elif step.status is StepStatus.FAILED and step.reason in ("cancelled", "timed_out"):
        how = step.reason.replace("_", " ")
    is_resolved = step.status is StepStatus.COMPLETED and step.reason is not None  # resolved: its times are those of a failed attempt
    took = f" in {duration(step.duration_ms)}" if step.started_at is not None and step.completed_at is not None and not is_resolved else ""
    tries = f", {counted(step.retry_count, 'retry', 'retries')}" if step.retry_count else ""
    what = code(step.tool_name) if step.tool_name else f"plan {code(step.plan)}" if step.plan else "group"
    lines = [f"{step.index + 1}. **{prose(step.id)}** {what}: {how}{took}{tries}{', rolled back' if step.rolled_back else ''}"]
    if step.reason and (is_resolved or step.status is StepStatus.SKIPPED):
        lines.append(f"   - {prose(step.reason)}")
    if step.error:
        lines.append(f"   - error: {code(_cut(step.error))}")
    if step.items:
        items = [f"{prose(item.label)} {item.in_words}" for item in step.items]
        more = len(items) - SHOWN_ITEMS
        lines.append(f"   - items: {', '.join(items[:SHOWN_ITEMS])}" + (f" and {more} more" if more > 0 else ""))
    elif is_goal and isinstance(step.result, dict) and "summary" in step.result:
        lines.append(f"   - summary by the model: {prose(_cut(str(step.result['summary'])))}")
    elif step.result is not None:
        lines.append(f"   - result: {code(_cut(as_text(step.result)))}")
    return lines


def _call_lines(calls: Sequence[StepCallRecord], run_id: str) -> list[str]:
    lines = list[str]()
    for call in calls[:SHOWN_ITEMS]:
        item = "" if call.item is None else f"item {prose(call.label or str(call.item + 1))}: "
        lines.append(f"   - {item}{call}")
        if call.command is not None:
            lines.append(f"   - {item}its command {prose(call.command)}")
        if call.item is not None and call.by is not None:  # for a step without items, its own line names the resolution
            note = f": {prose(call.note)}" if call.note else ""
            lines.append(f"   - {item}`{call.resolution}`, recorded by {prose(call.by)} ({call.known_by}){note}")
        lines.append(f"   - {item}parameters: {code(_cut(as_text(call.parameters)))}")
    if len(calls) > SHOWN_ITEMS:
        lines.append(f"   - … {len(calls) - SHOWN_ITEMS} more items: `plan show {run_id} --json`")
    return lines


def _round_lines(calls: Sequence[StepCallRecord], rounds: "Sequence[RoundRecord]") -> list[str]:
    """Return the lines of a goal's parameters, totals and rounds. The calls are part of the rounds."""
    lines = [f"   - parameters: {code(_cut(as_text(call.parameters)))}" for call in calls if call.item is None]
    tokens, in_calls = sum(record.tokens for record in rounds), sum(call.duration_ms or 0 for call in calls)
    lines.append(f"   - {counted(len(rounds), 'round')}, {counted(tokens, 'token')}, {duration(in_calls)} in calls of tools")
    for record in rounds:
        first, *rest = record.lines()
        lines += [f"   - {first}", *(f"      - {line}" for line in rest)]
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
