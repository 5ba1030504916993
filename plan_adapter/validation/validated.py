"""`validate`, `find_problems`, `lint` and `bind_inputs`, and the plans they return: `ValidatedPlan` and `BoundPlan`."""

import re
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue

from plan_adapter.expressions import INPUT_NAME, Declarations, Expected, Template, compile_template, has_expression
from plan_adapter.local.settings import Settings
from plan_adapter.model.canonical import approval_digest, plan_digest
from plan_adapter.model.errors import ExpressionError, InvalidPlanError
from plan_adapter.model.graph import topological_order, transitive_reduction
from plan_adapter.model.inventory import ON
from plan_adapter.model.options import Effect, Runner, is_lower, strongest
from plan_adapter.model.plan import GOAL, ExecutionPlan, Permissions, Step
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import listed
from plan_adapter.model.record import RunFolder
from plan_adapter.model.run_window import find_window_problem
from plan_adapter.model.values import join
from plan_adapter.tools.placeholders import goal_tool, question_tool
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool
from plan_adapter.validation.calls import Call, RollbackCall, check_calls, check_tags
from plan_adapter.validation.created_secrets import CreatedSecrets, check_created_secrets, find_early_uses
from plan_adapter.validation.dependencies import Dependencies, check_dependencies
from plan_adapter.validation.event_triggers import CompiledTrigger, compile_triggers
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.fresh import fresh_copy
from plan_adapter.validation.hosts import check_hosts, find_bad_limit
from plan_adapter.validation.inputs import check_definitions, read_values
from plan_adapter.validation.named_secrets import name_secrets, secret_inputs, secrets_in
from plan_adapter.validation.permissions import (
    BadInputsError,
    KnownInputs,
    check_answerable,
    check_early_inputs,
    check_expression,
    check_gates,
    check_permissions,
    decide_permissions,
)
from plan_adapter.validation.pinned_plans import SubPlan, check_as_sub_plan, move_to_step
from plan_adapter.validation.step_results import StepResults
from plan_adapter.validation.unordered import check_order


@dataclass(frozen=True, slots=True)
class ValidatedPlan:
    """A plan whose tools, references and dependencies are known to exist and fit. Mappings by step id are read-only."""

    plan: ExecutionPlan  # a copy, so changes of the original have no effect here
    digest: str
    order: tuple[str, ...]  # topological; otherwise in the order of the plan; without the `finally` steps
    finally_order: tuple[str, ...]  # of the `finally` steps
    dependencies: Mapping[str, tuple[str, ...]]  # all, including those that references imply; a group also waits for its own steps
    reduced: Mapping[str, tuple[str, ...]]  # transitive reduction
    outer: Mapping[str, tuple[str, ...]]  # what the scheduler waits for: without the steps of groups; in a sub-plan, only its own steps
    groups: Mapping[str, Mapping[str, tuple[str, ...]]]  # by group: its steps in order, with the siblings they wait for
    sub_plans: Mapping[str, SubPlan]  # by the step that runs it
    tools: Mapping[str, Tool[..., Any]]
    goal_tools: Mapping[str, Mapping[str, Tool[..., Any]]]  # only of goals: the tools that their models may use, by name
    parameters: Mapping[str, Template]  # or the inputs that a step gives the plan that it runs
    when: Mapping[str, Template]  # only of steps that have one; likewise the next three
    for_each: Mapping[str, Template]
    labels: Mapping[str, Template]  # of the items of a for_each
    done_when: Mapping[str, Template]
    rollbacks: Mapping[str, RollbackCall]  # only of steps that have one
    outputs: Mapping[str, Template]  # by name
    run_name: Template | None
    concurrency_key: Template | None
    triggers: tuple[CompiledTrigger, ...]
    permissions: Mapping[str, Template]  # only of plans whose inputs decide, by the step that runs the plan; the whole plan has the id ""
    definitions: tuple[dict[str, JsonValue], ...]  # of all tools in use, including rollback tools, by name; an approval covers them
    secrets: frozenset[str]  # the names of the secrets that the plan uses, with those that inputs name; before a run, by their defaults
    created_secrets: CreatedSecrets  # those that its steps create
    steps: Mapping[str, Step]  # by id
    decided_permissions: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # of a bound plan, as above
    named_secrets: Mapping[str, Mapping[str, str]] = field(  # of a bound plan, as above: the secrets that inputs name, by input
        default_factory=dict[str, Mapping[str, str]]
    )

    def permissions_at(self, step: Step | None) -> Permissions:
        """Return the permissions of the tools at `step`, or with None, those that the whole plan gives."""
        return self.plan.permissions_at(step, self.decided_permissions)

    def lists_of(self, runner: Step | None) -> list[Template]:
        """Return the lists that the own steps of a plan go through: of the plan that `runner` runs, or of the whole plan if it is None."""
        wanted = None if runner is None else runner.id
        within = {step_id: None if (step := self.steps[step_id].within) is None else step.id for step_id in self.for_each}
        return [template for step_id, template in self.for_each.items() if within[step_id] == wanted]

    def uses_result_of(self, step_id: str) -> bool:
        """Return whether something may use the result of a step: an expression that names it, its own rollback, or the model of a goal."""
        step = self.steps[step_id]
        mappings = (self.parameters, self.when, self.for_each, self.labels, self.done_when, self.outputs)
        templates = [template for mapping in mappings for template in mapping.values()]
        templates += [rollback.parameters for rollback in self.rollbacks.values()]
        is_named = any(not template.steps.isdisjoint((step.id, step.local_id)) for template in templates)
        return is_named or step.goal is not None or step_id in self.rollbacks

    def effect_of(self, step_id: str) -> Effect:
        """Return the effect of a step's call: for a goal, the strongest effect of its tools. A step with inner steps calls nothing."""
        step = self.steps[step_id]
        if step_id in self.goal_tools:
            return strongest({tool.effect for tool in self.goal_tools[step_id].values()})
        return "read" if step.inner else step.effect or self.tools[step_id].effect

    def lowered_from(self, step_id: str) -> Effect | None:
        """Return the effect of a step's tool if the plan declares a lower one for the step, else None."""
        step, tool = self.steps[step_id], self.tools.get(step_id)
        return tool.effect if step.effect is not None and tool is not None and is_lower(step.effect, tool.effect) else None

    def runner_of(self, step_id: str) -> Runner | None:
        """Return where the tool and the rollback of a step run: as the step or its group says. None: in the process of the run."""
        step = self.steps[step_id]
        return step.runner or (None if step.group is None else self.steps[step.group].runner)

    @property
    def steps_on_dask(self) -> list[str]:
        """The ids of the steps whose calls run on Dask."""
        return [step_id for step_id in self.tools if self.runner_of(step_id) == "dask" and self.steps[step_id].ask is None]

    def goal_effects(self, step_id: str, *, gated_only: bool = True) -> dict[str, Effect]:
        """Return the effects of the tools of a goal, by name. With `gated_only`, tools that the plan always executes are left out."""
        allowed = self.plan.always_executed_at(self.steps[step_id]) if gated_only else ()
        return {name: tool.effect for name, tool in self.goal_tools.get(step_id, {}).items() if name not in allowed}

    def tools_of(self, step_id: str) -> list[Tool[..., Any]]:
        """Return the tool of a step, or the tools that the model of a goal may use as well."""
        return [self.tools[step_id], *self.goal_tools.get(step_id, {}).values()]

    @property
    def used_tools(self) -> dict[str, Tool[..., Any]]:
        """All tools that calls of the plan may use, by name, with those of rollbacks and goals."""
        undo = (rollback.tool for rollback in self.rollbacks.values())
        return _used_tools([*self.tools.values(), *undo, *(tool for tools in self.goal_tools.values() for tool in tools.values())])

    def with_tools(self, replace_tool: Callable[[Tool[..., Any]], Tool[..., Any]]) -> "ValidatedPlan":
        """Return the plan with other tools, made by `replace_tool` of its own. A goal is one call of the tool for goals.

        The tool of a question stays: its result is the answer at its gate.
        """
        made = dict[str, Tool[..., Any]]()

        def replaced(tool: Tool[..., Any]) -> Tool[..., Any]:
            if tool.name not in made:
                made[tool.name] = replace_tool(tool)
            return made[tool.name]

        tools = {step_id: tool if self.steps[step_id].ask is not None else replaced(tool) for step_id, tool in self.tools.items()}
        rollbacks = {step_id: replace(rollback, tool=replaced(rollback.tool)) for step_id, rollback in self.rollbacks.items()}
        goals = {step_id: self.steps[step_id].model_copy(update={"goal": None, "tool_name": GOAL}) for step_id in self.goal_tools}
        return replace(
            self,
            tools=MappingProxyType(tools),
            goal_tools=MappingProxyType({}),
            rollbacks=MappingProxyType(rollbacks),
            steps=MappingProxyType({**self.steps, **goals}),
        )

    @property
    def edges(self) -> Mapping[str, tuple[str, ...]]:
        """The steps that each step starts after, for pictures: `reduced`, with the first `finally` steps after the last other steps."""
        if not self.finally_order:
            return self.reduced
        before = {first for step_id in self.order for first in self.reduced[step_id]}
        last = tuple(step_id for step_id in self.order if step_id not in before)
        return {**self.reduced, **{step_id: self.reduced[step_id] or last for step_id in self.finally_order}}

    def has_gate(self, step: Step, *, gate_effects: Collection[Effect] = ()) -> bool:
        """Return whether `step` has its own gate, given the effects of its tools and its rollback's tool. See `ExecutionPlan`."""
        if step.goal is not None and any(effect != "read" for effect in self.goal_effects(step.id).values()):
            return True
        rollback = self.rollbacks.get(step.id)
        undoes = None if rollback is None else rollback.tool.effect
        tool = self.tools.get(step.id)  # a step with steps inside it has none
        return self.plan.has_gate(step, "read" if tool is None else tool.effect, rollback=undoes, gate_effects=gate_effects)


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """A validated plan with the complete, typed inputs of a run, which decide its permissions. `approval_digest` covers all of it."""

    validated: ValidatedPlan
    inputs: dict[str, JsonValue]
    approval_digest: str
    folder: RunFolder | None = None  # the folder that the run was moved to; also covered by the digest
    variables: Mapping[str, str] = field(default_factory=dict[str, str])  # the Prefect variables that gave values, by input

    @property
    def hosts(self) -> Mapping[str, JsonValue]:
        """The hosts of the run, by the pattern of `hosts('web')`."""
        return self.validated.plan.host_lists(self.inputs)


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A plan with its compiled calls, valid or not."""

    plan: ExecutionPlan
    calls: list[Call]
    dependencies: Dependencies
    outputs: dict[str, Template]
    run_name: Template | None
    concurrency_key: Template | None
    triggers: tuple[CompiledTrigger, ...]
    permissions: Template | None  # only if the inputs decide
    early_inputs: frozenset[str]  # those that decide the permissions of the plan, or of a plan inside it
    sub_plans: dict[str, "CompiledPlan"]  # by the step that runs it
    has_gates: bool  # whether a step of the plan, or of a plan inside it, has a gate

    @property
    def own_and_inner_calls(self) -> list[Call]:
        """The calls of the plan's own steps and of all plans inside it, each as in its own document."""
        return [*self.calls, *(call for nested in self.sub_plans.values() for call in nested.own_and_inner_calls)]

    def calls_of_whole_plan(self) -> list[Call]:
        """Return the calls of all steps, with the steps of the whole plan. This plan must not be inside another."""
        return self.all_calls({step.id: step for step in self.plan.all_steps}) if self.sub_plans else self.calls

    def all_calls(self, steps: Mapping[str, Step], prefix: str = "") -> list[Call]:
        """Return the calls of all steps. `steps` are those of the whole plan, where the ids of this plan's steps begin with `prefix`."""
        found = list[Call]()
        for call in self.calls:
            if prefix and call.is_finally_step:  # refused inside another plan
                continue
            found.append(replace(call, step=steps[f"{prefix}{call.step.id}"]) if prefix else call)
            if (nested := self.sub_plans.get(call.step.id)) is not None:
                found += nested.all_calls(steps, f"{prefix}{call.step.id}.")
        return found

    def all_dependencies(self, prefix: str = "") -> Dependencies:
        """Return the dependencies of all steps, with the ids of the whole plan, where the ids of this plan's steps begin with `prefix`."""
        nested = {f"{prefix}{step_id}": sub_plan.all_dependencies(f"{prefix}{step_id}.") for step_id, sub_plan in self.sub_plans.items()}
        return self.dependencies.with_prefix(prefix, nested) if prefix or nested else self.dependencies

    def all_outputs(self, prefix: str = "") -> dict[str, Mapping[str, Template]]:
        """Return the outputs of each sub-plan, by the step that runs it."""
        found = dict[str, Mapping[str, Template]]()
        for step_id, nested in self.sub_plans.items():
            found |= {f"{prefix}{step_id}": nested.outputs, **nested.all_outputs(f"{prefix}{step_id}.")}
        return found

    def all_permissions(self, runner: str = "") -> dict[str, Template]:
        """Return the expressions that give permissions, by the id of the step that runs the plan, here `runner`."""
        found = {} if self.permissions is None else {runner: self.permissions}
        for step_id, nested in self.sub_plans.items():
            found |= nested.all_permissions(f"{runner}.{step_id}" if runner else step_id)
        return found


def validate(plan: ExecutionPlan, tools: ToolRegistry) -> ValidatedPlan:
    """Return `plan` as a ValidatedPlan. Raises InvalidPlanError with every problem."""
    compiled, problems = _examine(plan, tools)
    return _build_validated(compiled, problems)


def validate_recorded(plan: ExecutionPlan, tools: ToolRegistry, *, digest: str) -> ValidatedPlan:
    """Return what `validate` returns, for the plan of a run that the store has just read and compared with `digest`.

    Types and values are not checked again, because the stored text was written from a validated plan. The plan is not copied, because
    nobody else holds it. Everything that depends on the tools is checked.
    """
    findings = Findings()
    return _build_validated(_compile(plan, tools, findings), findings.sorted(plan), digest=digest)


def _build_validated(compiled: CompiledPlan | None, problems: list[Problem], *, digest: str | None = None) -> ValidatedPlan:
    if compiled is None:
        raise InvalidPlanError(problems)
    _raise_errors(problems)
    calls = compiled.calls_of_whole_plan()
    used = _used_tools(tool for call in calls for tool in (call.tool, call.rollback_tool, *call.goal_tools))
    finally_ids = {call.step.id for call in calls if call.is_finally_step}
    known = compiled.all_dependencies()
    dependencies = known.of_whole_plan()
    order = topological_order(dependencies)
    reduced = transitive_reduction(dependencies, order)
    outer = known.outer
    parts = [_reduce(part.outer) for nested in known.nested.values() for part in nested.parts]
    validated = ValidatedPlan(
        plan=compiled.plan,
        digest=digest or plan_digest(compiled.plan),
        order=tuple(step_id for step_id in order if step_id not in finally_ids),
        finally_order=tuple(step_id for step_id in order if step_id in finally_ids),
        dependencies=MappingProxyType(dependencies),
        reduced=MappingProxyType(reduced),
        outer=MappingProxyType(reduced) if outer is dependencies else MappingProxyType(dict(ChainMap(_reduce(outer), *parts))),
        groups=MappingProxyType({group: _reduce(after) for part in known.parts for group, after in part.inner.items()}),
        sub_plans=MappingProxyType(_build_sub_plans(compiled, known)),
        tools=MappingProxyType({call.step.id: call.tool for call in calls if call.tool is not None}),
        goal_tools=MappingProxyType({call.step.id: {tool.name: tool for tool in call.goal_tools} for call in calls if call.goal_tools}),
        parameters=MappingProxyType({call.step.id: call.parameters for call in calls}),
        when=MappingProxyType({call.step.id: call.when for call in calls if call.when is not None}),
        for_each=MappingProxyType({call.step.id: call.for_each for call in calls if call.for_each is not None}),
        labels=MappingProxyType({call.step.id: call.label for call in calls if call.label is not None}),
        done_when=MappingProxyType({call.step.id: call.done_when for call in calls if call.done_when is not None}),
        rollbacks=MappingProxyType({call.step.id: call.rollback for call in calls if call.rollback is not None}),
        outputs=MappingProxyType(compiled.outputs),
        run_name=compiled.run_name,
        concurrency_key=compiled.concurrency_key,
        triggers=compiled.triggers,
        permissions=MappingProxyType(compiled.all_permissions()),
        definitions=tuple(used[name].definition() for name in sorted(used)),
        created_secrets=CreatedSecrets.of((call.step for call in calls), dependencies, finally_ids),
        steps=MappingProxyType({call.step.id: call.step for call in calls}),
        secrets=secrets_in(template for call in calls for template in (call.parameters, call.rollback_parameters) if template),
    )
    return replace(validated, secrets=name_secrets(validated, {}).secrets)


def _used_tools(tools: Iterable[Tool[..., Any] | None]) -> dict[str, Tool[..., Any]]:
    """Return the `tools` that come from a registry, by name."""
    # The plan itself says what a question asks and what a goal is, and a user's tool may be called `ask` or `goal`.
    own = (None, question_tool(), goal_tool())
    return {tool.name: tool for tool in tools if tool is not None and tool not in own}


def _reduce(dependencies: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return transitive_reduction(dependencies, topological_order(dependencies))


def _build_sub_plans(compiled: CompiledPlan, known: Dependencies) -> dict[str, SubPlan]:
    outputs = compiled.all_outputs()
    return {step_id: SubPlan(_reduce(nested.outer), outputs[step_id]) for part in known.parts for step_id, nested in part.nested.items()}


def _raise_errors(problems: list[Problem]) -> None:
    """Raise InvalidPlanError if there are errors among `problems`."""
    if errors := [problem for problem in problems if problem.severity == "error"]:
        raise InvalidPlanError(errors)


def find_problems(plan: ExecutionPlan, tools: ToolRegistry) -> list[Problem]:
    """Return every problem that prevents `plan` from running with `tools`, in document order. Never raises."""
    return [problem for problem in lint(plan, tools) if problem.severity == "error"]


def lint(plan: ExecutionPlan, tools: ToolRegistry) -> list[Problem]:
    """Return what `find_problems` returns, plus warnings about things that can run but are probably wrong."""
    return _examine(plan, tools)[1]


def bind_inputs(validated: ValidatedPlan, inputs: Mapping[str, object] | None = None, *, from_text: bool = False) -> BoundPlan:
    """Return `validated` with `inputs`, defaults filled in. Raises InvalidPlanError with every input that is missing or wrong.

    If the inputs decide the permissions, it also raises InvalidPlanError for bad ones, and for each call that lacks one.

    With `from_text`, the values are command line texts, parsed by the type of their input; arrays and objects are JSON.
    """
    values, problems = read_values(validated.plan.inputs, inputs or {}, from_text=from_text)
    if problems := problems or find_bad_limit(validated.plan, validated.lists_of(None), values):
        raise InvalidPlanError(problems)
    bound, problems = decide_permissions(name_secrets(validated, values), values)
    if problems := problems or find_early_uses(bound) or _find_bad_inner_limits(bound, values):
        raise InvalidPlanError(problems)
    digest = approval_digest(validated.digest, values, validated.definitions, permissions=bound.decided_permissions)
    return BoundPlan(bound, values, digest)


def _find_bad_inner_limits(validated: ValidatedPlan, inputs: Mapping[str, JsonValue]) -> list[Problem]:
    """Return the problems of the hosts that the plans inside work on, as far as the inputs of the run say which these are."""
    known, found = KnownInputs(validated, inputs), list[Problem]()
    for at, step in validated.plan.places.items():
        if step.pinned is None or step.pinned.inventory is None or known.is_skipped(step):
            continue
        try:
            on = known.value(ON, step)
        except (ExpressionError, BadInputsError):  # checked when the step begins
            continue
        found += [move_to_step(problem, at) for problem in find_bad_limit(step.pinned, validated.lists_of(step), {ON: on})]
    return found


def _examine(plan: ExecutionPlan, tools: ToolRegistry) -> tuple[CompiledPlan | None, list[Problem]]:
    fresh, mismatches = fresh_copy(plan)
    written = plan._problems  # pyright: ignore[reportPrivateUsage]  # set by the reader of the document
    known = {problem.at for problem in written}
    findings = Findings([*written, *(mismatch for mismatch in mismatches if mismatch.at not in known)])
    if fresh is None:
        return None, findings.sorted(plan)
    compiled = _compile(fresh, tools, findings)
    return compiled, findings.sorted(plan)


def _compile(fresh: ExecutionPlan, tools: ToolRegistry, findings: Findings, around: tuple[ExecutionPlan, ...] = ()) -> CompiledPlan:
    """Return `fresh`, compiled, and add its problems. `around` are the plans around it, from the innermost."""
    _check_plan(fresh, findings)
    check_definitions(fresh.inputs, findings)
    check_hosts(fresh, findings)
    calls, plans = check_calls(fresh, tools, findings), (fresh, *around)
    sub_plans = {call.step.id: compiled for call in calls if (compiled := _compile_sub_plan(call, tools, findings, plans)) is not None}
    inner = [call for compiled in sub_plans.values() for call in compiled.own_and_inner_calls]
    has_inner_gates = any(compiled.has_gates for compiled in sub_plans.values())
    has_gates = check_gates(plans, calls, inner, findings, has_inner_gates=has_inner_gates)
    check_permissions(plans, calls, findings)
    flags = {name for name, definition in fresh.inputs.items() if definition.type == "boolean"}
    dependencies = check_dependencies(calls, flags, findings)
    check_order(fresh, calls, dependencies, findings)
    _check_time_limits(plans, calls, findings)
    _check_batches(fresh, calls, findings)
    outputs = _compile_outputs(fresh, dependencies.outer, StepResults(fresh, tools), findings)
    run_name = _compile_run_name(fresh, dependencies.outer, findings)
    key = _compile_key(fresh, dependencies.outer, findings)
    triggers = compile_triggers(fresh, findings)
    permissions = _compile_permissions(fresh, dependencies.outer, findings)
    early = set[str]() if permissions is None else {*permissions.inputs}
    for call in calls:
        if (nested := sub_plans.get(call.step.id)) is not None:
            early |= check_early_inputs(call, nested.early_inputs, findings)
    plan_templates = [template for template in (run_name, key, permissions) if template is not None]
    _check_inputs_are_used(fresh, calls, [*outputs.values(), *plan_templates], findings)
    compiled = CompiledPlan(
        fresh, calls, dependencies, outputs, run_name, key, triggers, permissions, frozenset(early), sub_plans, has_gates
    )
    if not around:  # a step may use a secret that a step of another plan creates
        _check_created_secrets(compiled, findings)
    if not around and sub_plans and has_gates:
        check_answerable(fresh, compiled.calls_of_whole_plan(), {step.id: at for at, step in fresh.places.items()}, findings)
    return compiled


def _check_created_secrets(compiled: CompiledPlan, findings: Findings) -> None:
    """Add the problems of the secrets that steps of the whole plan create."""
    if not any(step.creates_secrets for step in compiled.plan.all_steps):
        return
    calls = compiled.calls_of_whole_plan()
    finally_steps = {call.step.id for call in calls if call.is_finally_step}
    created = CreatedSecrets.of((call.step for call in calls), compiled.all_dependencies().of_whole_plan(), finally_steps)
    any_named = any(secret_inputs(plan.inputs) for plan in compiled.plan.plans.values())
    places = {step.id: at for at, step in compiled.plan.places.items()}
    check_created_secrets(calls, created, places, findings, inputs_name_secrets=any_named)


def _compile_sub_plan(call: Call, tools: ToolRegistry, findings: Findings, around: tuple[ExecutionPlan, ...]) -> CompiledPlan | None:
    """Return the compiled plan that a step runs, if it runs one, and add its problems, located in the document of that plan."""
    plan = call.step.pinned
    if plan is None or call.is_finally_step or call.step.group is not None:
        return None
    inside = Findings(plan._problems)  # pyright: ignore[reportPrivateUsage]  # set by the reader of the document
    compiled = _compile(plan, tools, inside, around)
    check_as_sub_plan(plan, inside)
    findings.add_from_sub_plan(inside.sorted(plan), f"{call.at}.pinned.")
    return compiled


def _check_plan(plan: ExecutionPlan, findings: Findings) -> None:
    if not plan.description.strip():
        findings.add("no-description", "description", "the plan has no description", "write in one sentence what the plan does")
    if not plan.steps:
        findings.add("no-steps", "steps", "the plan has no steps", "write at least one")
    check_tags(plan.tags, "tags", findings)
    options = plan.options
    if {"stop_on_error", "continue_on_error"} <= options.model_fields_set and options.stop_on_error == options.continue_on_error:
        message = f"`stop_on_error` and `continue_on_error` are both {str(options.stop_on_error).lower()}"
        findings.add("contradicting-policies", "options.continue_on_error", message, "write one of them")
    if options.says_both_of_approval:
        message = (
            "`require_approval` and `auto_approve` are both true, so the plan says both that it needs an approval and that it needs none"
        )
        findings.add("contradicting-policies", "options.auto_approve", message, "remove `require_approval` or `auto_approve`")
    if options.run_window is not None and (wrong := find_window_problem(options.run_window)) is not None:
        field, message, hint = wrong
        findings.add("bad-run-window", f"options.run_window.{field}", message, hint)
    if plan.on_failure == "replan" and not Settings().model:
        message = "no model is configured here, so a failure would not be replanned"
        findings.warn("no-model", "on_failure", message, "set PLAN_ADAPTER_MODEL where the plan runs")


def _check_time_limits(plans: Sequence[ExecutionPlan], calls: Sequence[Call], findings: Findings) -> None:
    """Warn once about the commands of a plan that nothing ends: neither a limit of their own nor that of the plan, or of one around it."""
    plan = plans[0]
    is_limited = {False: any(outer.options.total_timeout_ms for outer in plans), True: bool(plan.options.finally_timeout_ms)}
    commands = [call for call in calls if call.step.tool_name in _COMMANDS and not is_limited[call.is_finally_step]]
    inherited = next((outer.options.step_timeout_ms for outer in plans if outer.options.step_timeout_ms), 0)
    if endless := [call for call in commands if not (inherited if call.step.timeout_ms is None else call.step.timeout_ms)]:
        names = listed([f"`{call.step.id}`" for call in endless], _NAMED_CALLS)
        message = f"{names} {'has' if len(endless) == 1 else 'have'} no time limit: a command that hangs is never ended"
        findings.warn("no-timeout", endless[0].at, message, "write `step_timeout_ms` in `options`, or `timeout: 5m` in the step")


def _check_batches(plan: ExecutionPlan, calls: Sequence[Call], findings: Findings) -> None:
    """Warn about each group that asks for more items at once than its plan allows."""
    limit = plan.options.parallel_limit
    allowed = "the plan runs one step at a time" if limit == 1 else f"the plan runs only {limit} steps at once"
    for call in calls:
        if call.step.batch is not None and call.step.batch > limit:
            message = f"`{call.step.id}` would work on {call.step.batch} items at once, and {allowed}"
            hint = f"write `max_parallel: {call.step.batch}` in the plan, or a smaller `batch`"
            findings.warn("capped-batch", f"{call.at}.batch", message, hint)


_COMMANDS = ("run_command", "bash", "ssh", "copy_to", "copy_from")
"""The built-in tools that run a command, which only a time limit ends."""

_NAMED_CALLS = 3
"""How many commands without a time limit a warning names."""


def _compile_outputs(plan: ExecutionPlan, steps: Iterable[str], results: StepResults, findings: Findings) -> dict[str, Template]:
    """Return the compiled outputs of the plan, which has these `steps`, and add their problems."""
    declared = Declarations(frozenset(steps), plan.inputs, results=results, hosts=plan.inventory)
    outputs: dict[str, Template] = {}
    for name, value in plan.outputs.items():
        outputs[name], problems = compile_template(value, declared, at=join("outputs", name))
        findings.extend(problems)
    return outputs


def _compile_run_name(plan: ExecutionPlan, steps: Iterable[str], findings: Findings) -> Template | None:
    """Return the compiled name of the flow run, if the plan gives one, and add its problems."""
    if plan.run_name is None:
        return None
    if not plan.run_name.strip():
        findings.add("bad-run-name", "run_name", "the name of the run is empty", "write a text such as `restart ${{ inputs.host }}`")
    return _compile_from_inputs(plan.run_name, "run_name", ("bad-run-name", "the name of the run"), plan, steps, findings)


def _compile_key(plan: ExecutionPlan, steps: Iterable[str], findings: Findings) -> Template | None:
    """Return the compiled key of runs that exclude each other, if the plan gives one, and add its problems."""
    if plan.concurrency is None:
        return None
    if not plan.concurrency.key.strip():
        findings.add("bad-concurrency", "concurrency.key", "the key is empty", "write a text such as `restart-${{ inputs.host }}`")
    return _compile_from_inputs(plan.concurrency.key, "concurrency.key", ("bad-concurrency", "the key"), plan, steps, findings)


def _compile_permissions(plan: ExecutionPlan, steps: Iterable[str], findings: Findings) -> Template | None:
    """Return the compiled expression for the permissions of the plan, if its inputs decide, and add its problems."""
    if not isinstance(plan.permissions, str):
        return None
    if not has_expression(plan.permissions):
        message = f"`permissions` must be a list of names, or one expression that gives it, not the text {plan.permissions[:40]!r}"
        findings.add("wrong-type", "permissions", message, "write a list: [ … ]")
        return None
    words = ("bad-permission", "the expression")
    template = _compile_from_inputs(plan.permissions, "permissions", words, plan, steps, findings, expect="list")
    check_expression(plan, template, findings)
    return template


def _compile_from_inputs(
    text: str,
    at: str,
    words: tuple[str, str],
    plan: ExecutionPlan,
    steps: Iterable[str],
    findings: Findings,
    *,
    expect: Expected | None = None,
) -> Template:
    """Return a compiled text that is needed before any step, so it may use only `inputs`. `words`: the problem's code and subject."""
    template, problems = compile_template(text, Declarations(frozenset(steps), plan.inputs), at=at, expect=expect)
    findings.extend(problems)
    if template.steps:
        named = ", ".join(f"`steps.{step}`" for step in sorted(template.steps)[:5])
        findings.add(words[0], at, f"{words[1]} uses {named}, and is needed before any step", "use only `inputs`")
    return template


def _check_inputs_are_used(plan: ExecutionPlan, calls: list[Call], others: Iterable[Template], findings: Findings) -> None:
    if not plan.inputs:
        return
    templates = [*(template for call in calls for template in call.templates.values()), *others]
    used = {name for template in templates for name in template.inputs}
    if plan.hosts and ON not in used:
        findings.warn("unused-input", "hosts", "no expression uses the hosts", "use them as in `for_each: ${{ hosts('all') }}`")
        used.add(ON)
    for name in plan.inputs:
        if name not in used and re.fullmatch(INPUT_NAME, name):
            findings.warn(
                "unused-input",
                join("inputs", name),
                f"no expression uses the input `{name}`",
                f"use `${{{{ inputs.{name} }}}}`, or remove it",
            )
