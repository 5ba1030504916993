"""`Preview`: what a run of a plan would do, before anything runs: order, predicted parameters, retries, effects, worst-case duration."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.expressions import Declarations, Prediction, Template, compile_template, has_expression
from plan_adapter.model import graph
from plan_adapter.model.inventory import ON
from plan_adapter.model.language import tr
from plan_adapter.model.options import EFFECTS, Effect, ErrorPolicy, ExecutionOptions
from plan_adapter.model.plan import ExecutionPlan, Permissions, Step
from plan_adapter.model.readable import (
    MAX_NAME_CHARACTERS,
    as_text,
    code,
    cut,
    duration,
    one_line,
    prose,
    redacted,
    without_passwords,
    words,
)
from plan_adapter.text.listing import (
    attempt_limits_text,
    error_policy_text,
    goal_facts,
    indented,
    policy_facts,
    secrets_fact,
    step_listing,
    sub_plan_facts,
    trigger_facts,
)
from plan_adapter.text.longest import LongestTimes, attempt_ms
from plan_adapter.validation import ValidatedPlan


@dataclass(frozen=True, slots=True)
class RollbackPreview:
    """The call that rolls back a step. In `parameters`, expressions that use only inputs are resolved."""

    tool_name: str
    effect: Effect
    parameters: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class StepPreview:
    """One step as it would be called. In `parameters`, expressions that use only inputs are resolved."""

    step: Step
    effect: Effect
    parameters: dict[str, JsonValue]
    depends_on: tuple[str, ...]
    implied: frozenset[str]  # the dependencies that come only from a reference
    timeout_ms: int  # per attempt, or of a whole goal; 0 means no limit
    items: int | None  # of its `for_each`, None if the inputs do not determine it; 1 without a `for_each`
    worst_case_ms: float | None  # with all its items, and the steps inside it; None means no limit
    gate: bool = False  # whether it has its own gate; with `for_each`, whether each item has one
    rollback: RollbackPreview | None = None
    lowered_from: Effect | None = None  # the effect of its tool, if the plan declares a lower one
    is_finally_step: bool = False  # whether it is a `finally` step, which always runs, after all others
    at_once: int = 1  # how many items of a group are in progress at once
    on_error: ErrorPolicy = "stop"
    facts: tuple[str, ...] = ()  # what a model may do for its goal, or what the plan that it runs may do, as text
    item_names: tuple[str, ...] = ()  # secrets masked; empty if the inputs do not determine the items, or of a very long list

    @property
    def hosts_facts(self) -> list[str]:
        """The fact that names the hosts that the step works on, if its list is one of hosts."""
        return hosts_facts(self.step, self.item_names)

    @property
    def is_repeated(self) -> bool:
        """Whether it runs once per item of a list, rather than for one item that is known."""
        return self.step.for_each is not None or (self.step.group is not None and (self.items != 1 or bool(self.item_names)))

    def as_json(self) -> dict[str, Any]:
        """Return the step for `plan preview --json`: its non-default fields, and what follows from them."""
        step = self.step
        written = step.model_dump(mode="json", exclude_defaults=True, exclude={"parameters", "input", "inputs", "pinned"})
        return {
            **written,
            "description": step.description,
            "effect": self.effect,
            **({"lowered_from": self.lowered_from} if self.lowered_from is not None else {}),
            "gate": self.gate,
            "parameters": self.parameters,
            "depends_on": list(self.depends_on),
            "implied_by_reference": sorted(self.implied),
            "max_retries": step.max_retries,
            "timeout_ms": self.timeout_ms,
            "items": self.items,
            **({"items_at_once": self.at_once} if step.is_group else {}),
            **({"group": step.group} if step.group is not None else {}),
            **({"within": step.within.id} if step.within is not None else {}),
            "worst_case_ms": None if self.worst_case_ms is None else math.ceil(self.worst_case_ms),
            "finally": self.is_finally_step,
            **({"rollback": asdict(self.rollback)} if self.rollback is not None else {}),
        }


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan as it would run with these inputs."""

    plan: ExecutionPlan
    digest: str
    approval_digest: str | None  # None while inputs are missing
    requires_approval: bool
    inputs: dict[str, JsonValue]
    permissions: Permissions  # that the plan gives
    missing: tuple[str, ...]  # required inputs that were not given; expressions that use inputs then stay unresolved
    steps: tuple[StepPreview, ...]  # in order
    waves: tuple[tuple[str, ...], ...]  # steps by depth, for display only
    worst_case_ms: float | None  # without waits for approvals; None means no limit
    gate_effects: tuple[Effect, ...] = ()  # the settings give steps with these effects their own gate, whatever the plan says
    secrets: tuple[str, ...] = ()  # the names of the secrets passed to tools
    secret_creators: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # by secret that steps create
    run_name: str | None = None  # of the flow run; None for Prefect's default. Without inputs it is as written

    @property
    def irreversible(self) -> list[StepPreview]:
        """The steps that write and have no rollback, including those that can be repeated."""
        return [step for step in self.steps if step.effect != "read" and step.step.rollback is None]

    @property
    def effects(self) -> dict[Effect, int]:
        """The number of steps by effect."""
        counts: dict[Effect, int] = dict.fromkeys(EFFECTS, 0)
        for step in self.steps:
            counts[step.effect] += not step.step.inner
        return {effect: count for effect, count in counts.items() if count}

    @property
    def policy(self) -> dict[str, JsonValue] | None:
        """The plan's gate policy with all defaults and the settings' gate effects, or None if the plan has none."""
        if self.plan.approval is None:
            return None
        written = self.plan.approval
        effects = [effect for effect in EFFECTS if effect in written.effects or effect in self.gate_effects]
        return {**written.model_dump(mode="json"), "effects": [*effects], "timeout_ms": self.plan.options.approval_timeout_ms}

    def as_json(self) -> dict[str, Any]:
        """Return the object that `plan preview --json` prints."""
        return {
            "name": self.plan.name,
            "description": self.plan.description,
            "run_name": self.run_name,
            "plan_digest": self.digest,
            "digest": self.digest,
            "approval_digest": self.approval_digest,
            "requires_approval": self.requires_approval,
            "approval": self.policy,
            "inputs": self.inputs,
            "missing_inputs": list(self.missing),
            "secrets": list(self.secrets),
            "permissions": [*self.permissions.names] if self.permissions.is_decided else self.plan.permissions,
            "order": [step.step.id for step in self.steps],
            "waves": [list(wave) for wave in self.waves],
            "max_parallel_steps": self.plan.options.parallel_limit,
            "on_error": self.plan.options.on_error,
            "total_timeout_ms": self.plan.options.total_timeout_ms,
            "worst_case_ms": None if self.worst_case_ms is None else math.ceil(self.worst_case_ms),
            "cannot_be_undone": [step.step.id for step in self.irreversible],
            "effects": {str(effect): count for effect, count in self.effects.items()},
            "steps": [step.as_json() for step in self.steps],
        }


def preview_plan(
    validated: ValidatedPlan,
    *,
    inputs: Mapping[str, JsonValue] | None,
    approval_digest: str | None,
    requires_approval: bool,
    missing: tuple[str, ...] = (),
    gate_effects: Collection[Effect] = (),
) -> Preview:
    """Return the preview of a run of `validated`. With `inputs` None, expressions that use inputs stay unresolved.

    `gate_effects` come from the settings: steps whose tools have these effects get their own gate, in addition to those that the plan
    names.
    """
    plan = validated.plan
    written = validated.steps
    predictions = Predictions(validated, inputs)
    order, times = _outer_first(validated), LongestTimes(validated, predictions.count_items)
    steps = [_preview_step(written[step_id], validated, predictions, times, gate_effects) for step_id in order]
    return Preview(
        plan=plan,
        digest=validated.digest,
        approval_digest=approval_digest,
        requires_approval=requires_approval,
        inputs=dict(inputs or {}),
        permissions=validated.permissions_at(None),
        missing=missing,
        steps=tuple(steps),
        waves=tuple(tuple(wave) for wave in graph.waves(validated.edges, order)),
        worst_case_ms=times.of_run(),
        gate_effects=tuple(gate_effects),
        secrets=tuple(sorted(validated.secrets)),
        secret_creators=validated.created_secrets.creators,
        run_name=run_name(validated, inputs) or plan.run_name,
    )


def preview_inside(outer: Step, validated: ValidatedPlan, inputs: Mapping[str, JsonValue], *, item: JsonValue = None) -> Preview:
    """Return the preview of the steps inside `outer`, a group or a step that runs a plan, in a run of `validated` with these inputs.

    `item` is that of a group, or None for all its items.
    """
    predictions = Predictions(validated, inputs)
    inner = [validated.steps[step_id] for step_id in _with_inner(outer.id, validated)[1:]]
    items = {step.id: item if step.group == outer.id else None for step in inner}
    times = LongestTimes(
        validated, lambda step: predictions.count_items(step) if item is None or outer.id not in (step.id, step.group) else 1
    )
    return Preview(
        plan=validated.plan,
        digest=validated.digest,
        approval_digest=None,
        requires_approval=True,
        inputs=dict(inputs),
        permissions=validated.permissions_at(outer),
        missing=(),
        steps=tuple(_preview_step(step, validated, predictions, times, (), item=items[step.id]) for step in inner),
        waves=(),
        worst_case_ms=times.of_step(outer),
    )


class Predictions:
    """Predicts the values of a plan's expressions. Steps of a sub-plan see its inputs if the inputs of the run determine them."""

    def __init__(self, validated: ValidatedPlan, inputs: Mapping[str, JsonValue] | None) -> None:
        """Predict for a run with `inputs`. None means that they are not known yet."""
        self._validated = validated
        self._inputs = inputs
        self._sub_plan_inputs = dict[str, dict[str, JsonValue]]()  # by the id of the step that runs the sub-plan
        self._items = dict[str, JsonValue]()  # by the id of the step with the list
        self._hosts = dict[str, JsonValue]() if inputs is None else validated.plan.host_lists(inputs)
        self._plan_prediction = Prediction(inputs, hosts=self._hosts)

    def of(self, step: Step, *, item: JsonValue = None) -> Prediction:
        """Return a prediction for the expressions of `step`. `item` is its item, if known."""
        if step.within is None:
            return self._plan_prediction if item is None else Prediction(self._inputs, hosts=self._hosts, item=item)
        inputs, plan = self._inputs_of(step.within), step.within.pinned
        hosts = plan.host_lists(inputs) if plan is not None and ON in inputs else dict[str, JsonValue]()
        return Prediction(inputs, hosts=hosts, item=item)

    def items(self, step: Step) -> JsonValue:
        """Return the list that `step`, or its group, goes through: as written if the inputs do not determine it, None if there is none."""
        whole = step.group or step.id
        if whole not in self._items:
            for_each = self._validated.for_each.get(whole)
            self._items[whole] = None if for_each is None else self.of(step).of(for_each)
        return self._items[whole]

    def count_items(self, step: Step) -> int | None:
        """Return for how many items `step` runs: 1 without a list, None if the inputs do not determine it."""
        values = self.items(step)
        return 1 if values is None else len(values) if isinstance(values, list) else None

    def _inputs_of(self, step: Step) -> dict[str, JsonValue]:
        """Return the known inputs of the plan that `step` runs."""
        if step.id not in self._sub_plan_inputs:
            given = self.of(step).of(self._validated.parameters[step.id])
            known = {name: value for name, value in given.items() if not _is_unresolved(value)} if isinstance(given, dict) else {}
            declared = step.pinned.inputs if step.pinned is not None else {}
            defaults = {name: declaration.default for name, declaration in declared.items() if name not in step.inputs}
            self._sub_plan_inputs[step.id] = defaults | known
        return self._sub_plan_inputs[step.id]


def _is_unresolved(value: JsonValue) -> bool:
    """Return whether `value` contains an expression that was not evaluated."""
    return has_expression(json.dumps(value, ensure_ascii=False))


def _outer_first(validated: ValidatedPlan) -> list[str]:
    """Return all steps in the order of their dependencies, each followed by the steps inside it."""
    order = (*validated.order, *validated.finally_order)
    return [other_id for step_id in order if validated.steps[step_id].outer is None for other_id in _with_inner(step_id, validated)]


def _with_inner(step_id: str, validated: ValidatedPlan) -> list[str]:
    sub_plan = validated.sub_plans.get(step_id)
    inner = validated.groups.get(step_id, ()) if sub_plan is None else sub_plan.steps
    return [step_id, *(inner_id for inside in inner for inner_id in _with_inner(inside, validated))]


def run_name(validated: ValidatedPlan, inputs: Mapping[str, JsonValue] | None) -> str | None:
    """Return the name of a flow run with these inputs, with secrets redacted.

    Return None if the plan sets no `run_name`, or if the inputs do not determine it.
    """
    return None if validated.run_name is None or inputs is None else _resolved_name(validated.run_name, inputs)


def name_of_run(plan: ExecutionPlan, inputs: Mapping[str, JsonValue]) -> str | None:
    """Return the name of a flow run as `run_name` does, for a plan from the store, which was validated when it was saved."""
    if plan.run_name is None:
        return None
    template, _ = compile_template(plan.run_name, Declarations({}, plan.inputs), at="run_name")
    return _resolved_name(template, inputs)


def _resolved_name(template: Template, inputs: Mapping[str, JsonValue]) -> str | None:
    shown = redacted(dict(inputs), expressions=False)
    value = Prediction(cast("dict[str, JsonValue]", shown)).of(template)
    if template.texts and value == template.source:  # an expression could not be evaluated
        return None
    text = one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return cut(without_passwords(text), MAX_NAME_CHARACTERS).strip() or None


def _preview_step(
    step: Step,
    validated: ValidatedPlan,
    predictions: Predictions,
    times: LongestTimes,
    gate_effects: Collection[Effect],
    *,
    item: JsonValue = None,
) -> StepPreview:
    """Return the preview of `step` for all items of its list, or for the `item` of its group."""
    prediction = predictions.of(step, item=item)
    effect = validated.effect_of(step.id)
    depends_on = tuple(
        before for before in validated.dependencies[step.id] if validated.steps[before].outer == step.outer
    )  # the outer step names the others
    parameters = prediction.of(validated.parameters[step.id])
    return StepPreview(
        step=step,
        effect=effect,
        lowered_from=validated.lowered_from(step.id),
        parameters=parameters if isinstance(parameters, dict) else {},
        depends_on=depends_on,
        implied=frozenset(depends_on) - frozenset(step.depends_on),
        timeout_ms=attempt_ms(step, validated),
        items=predictions.count_items(step) if item is None else 1,
        at_once=validated.plan.items_at_once(step),
        on_error=validated.plan.on_error_of(step),
        worst_case_ms=times.of_step(step),
        gate=validated.has_gate(step, gate_effects=gate_effects),
        rollback=preview_rollback(step.id, validated, prediction),
        is_finally_step=step.id in validated.finally_order,
        facts=facts_of(step, validated),
        item_names=item_names_of(predictions.items(step) if item is None else None),
    )


def facts_of(step: Step, validated: ValidatedPlan) -> tuple[str, ...]:
    """Return what the model of a goal may do, or what the plan that a step runs may do, one fact per line. Empty for any other step."""
    if step.goal is None:
        return tuple(sub_plan_facts(validated.plan, step, validated.permissions_at(step)))
    tools, permissions = validated.goal_tools[step.id], validated.permissions_at(step)
    refused = [name for name, tool in tools.items() if tool.why_not_permitted(permissions.names) is not None]
    effects = validated.goal_effects(step.id, gated_only=False)
    return tuple(goal_facts(validated.plan, step, effects, refused=refused, is_decided=permissions.is_decided))


def preview_rollback(step_id: str, validated: ValidatedPlan, prediction: Prediction) -> RollbackPreview | None:
    """Return the call that would roll back a step, or None if it has no rollback."""
    rollback = validated.rollbacks.get(step_id)
    if rollback is None:
        return None
    parameters = prediction.of(rollback.parameters)
    return RollbackPreview(rollback.tool.name, rollback.tool.effect, parameters if isinstance(parameters, dict) else {})


MAX_ITEM_NAMES = 1000
"""How many items a preview names."""


def hosts_facts(step: Step, names: Sequence[str]) -> list[str]:
    """Return the fact that names the hosts that `step` works on, if its list is one of hosts."""
    has_hosts = bool(names) and step.for_each is not None and "hosts(" in step.for_each
    return [tr("on {hosts}", hosts=", ".join(map(words, names)))] if has_hosts else []


def item_names_of(values: JsonValue) -> tuple[str, ...]:
    """Return how people know the items of a list: by their text, `name` or `id`. Empty if one has neither, or for a long list."""
    if not isinstance(values, list) or len(values) > MAX_ITEM_NAMES:
        return ()
    names = tuple(map(_item_name, values))
    return names if all(names) else ()


def _item_name(value: JsonValue) -> str:
    value = redacted(value, expressions=False)
    if isinstance(value, dict):
        value = next((value[name] for name in ("name", "id") if value.get(name)), None)
    return one_line(as_text(value)) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def preview_text(preview: Preview) -> str:
    """Return `preview` as Markdown for an approver, in full. Text from the plan cannot break out of its place."""
    plan = preview.plan
    lines = [f"# {prose(plan.name)}", "", prose(plan.description), "", *_facts(preview), "", f"## {tr('Steps')}", ""]
    for number, step in enumerate(preview.steps, start=1):
        lines += [*indented(_step_lines(step, number), step.step.depth), ""]
    return "\n".join(lines).rstrip() + "\n"


def _facts(preview: Preview) -> list[str]:
    options = preview.plan.options
    effects = ", ".join(f"{count} {effect}" for effect, count in preview.effects.items())
    parallel = tr("at most {count} at once", count=options.parallel_limit) if options.parallel_limit > 1 else tr("one at a time")
    facts = [f"- {tr('plan digest: `{digest}`', digest=preview.digest)}"]
    if preview.approval_digest is not None:
        facts.append(f"- {tr('approval digest: `{digest}`', digest=preview.approval_digest)}")
    facts.append(f"- {tr('approval: required before anything runs') if preview.requires_approval else _no_plan_gate_text(preview)}")
    asks = preview.requires_approval or any(step.gate for step in preview.steps)
    facts += [f"- {fact}" for fact in policy_facts(preview.plan, preview.permissions, asks=asks, gate_effects=preview.gate_effects)]
    facts += [f"- {fact}" for fact in trigger_facts(preview.plan)]
    facts += [f"- {tr('input {name}', name=code(name))}: {code(as_text(value))}" for name, value in preview.inputs.items()]
    facts += [f"- {tr('input {name}: not given yet', name=code(name))}" for name in preview.missing]
    facts += [f"- {tr('name of the run: {name}', name=code(preview.run_name))}"] if preview.run_name else []
    facts += [f"- {secrets_fact(preview.secrets, preview.secret_creators, len(preview.secrets))}"] if preview.secrets else []
    about = tr("steps: {count} ({effects}), {parallel}", count=len(preview.steps), effects=effects, parallel=parallel)
    facts.append(f"- {about}{tr('; when one fails: {policy}', policy=error_policy_text(preview.plan))}")
    irreversible_ids = ", ".join(code(step.step.id) for step in preview.irreversible)
    final = tr("**cannot be undone: {steps}**", steps=irreversible_ids) if irreversible_ids else tr("cannot be undone: nothing")
    facts.append(f"- {final}")
    longest = tr("worst case: {time}", time=_duration_text(preview.worst_case_ms))
    facts.append(f"- {longest}{_total_timeout_note(options)}{_no_timeout_note(preview)}")
    facts += [f"- {tr('output {name}', name=code(name))}: {code(as_text(value))}" for name, value in preview.plan.outputs.items()]
    return facts


def _duration_text(ms: float | None) -> str:
    return tr("no limit") if ms is None else duration(ms)


def _total_timeout_note(options: ExecutionOptions) -> str:
    return tr(" (total timeout {time})", time=duration(options.total_timeout_ms)) if options.total_timeout_ms else ""


def _no_timeout_note(preview: Preview) -> str:
    if preview.worst_case_ms is not None:
        return ""
    is_bounded = bool(preview.plan.options.finally_timeout_ms)
    called = [step for step in preview.steps if not step.step.inner and not (step.is_finally_step and is_bounded)]
    endless = [code(step.step.id) for step in called if step.worst_case_ms is None]
    return tr(" (no timeout: {steps})", steps=", ".join(endless[:5]) + (", …" if len(endless) > 5 else ""))


def _is_listed(step: Step, name: str, value: JsonValue) -> bool:
    """Return whether the listing already shows this parameter of a goal as a field of its step: `goal` or `done_when`."""
    return step.goal is not None and value == getattr(step, name)


def _no_plan_gate_text(preview: Preview) -> str:
    gated = [step.step.id for step in preview.steps if step.gate]
    return (
        tr("approval: not required for the plan; these steps ask: {names}", names=", ".join(map(code, gated)))
        if gated
        else tr("approval: not required")
    )


def _step_lines(preview: StepPreview, number: int) -> list[str]:
    longest = (
        tr("; worst case {time}", time=_duration_text(preview.worst_case_ms)) if preview.step.max_retries or preview.items != 1 else ""
    )
    is_called = not preview.step.inner and preview.step.goal is None
    head, *lines = step_listing(
        preview.step,
        number=number,
        effect=preview.effect,
        lowered_from=preview.lowered_from,
        depends_on=preview.depends_on,
        implied=preview.implied,
        parameters={name: value for name, value in preview.parameters.items() if not _is_listed(preview.step, name, value)},
        items=preview.items,
        attempt_limits=attempt_limits_text(preview.step, preview.timeout_ms) + longest if is_called else "",
        at_once=preview.at_once,
        on_error=preview.on_error,
        gate=preview.gate,
        rollback=None if preview.rollback is None else (preview.rollback.effect, preview.rollback.parameters),
        is_finally_step=preview.is_finally_step,
        facts=[*preview.facts, *preview.hosts_facts],
    )
    return [head, *([] if preview.depends_on or preview.is_finally_step else [f"   - {tr('waits for no other step')}"]), *lines]
