"""`Items`: the calls of one step, one or one per item of its `for_each`, and how they add up to the step's end. Also the item labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.ports import WORST_FIRST, AttemptEnd
from plan_adapter.execution.rollback_units import is_complete, rolled_back_items, units_to_roll_back
from plan_adapter.execution.scope import RunScope, as_value
from plan_adapter.expressions import Declarations, Template, Variables, compile_template
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.readable import counted, one_line
from plan_adapter.model.record import GroupItem, PlanRun
from plan_adapter.model.status import StepStatus
from plan_adapter.validation.pinned_plans import fill_inputs

MAX_LABEL_CHARACTERS = 40
"""The longest text that is used as a label by itself. A longer label from the plan is cut to this length."""


def item_labels(scope: RunScope, step: Step, values: Sequence[JsonValue]) -> list[str | None]:
    """Return a label for each item of `step`, given the items' `values`. None means that the label is the item's number.

    A label is one line without secrets, control characters and backticks. No two are the same.
    """
    template = scope.approved.bound.validated.labels.get(step.id)
    return _labels(values, template, lambda item: scope.variables(item=item), scope.secrets.redactor.text)


def not_started_items(labels: Sequence[str | None], status: StepStatus) -> list[GroupItem]:
    """Return the items of a group that has not begun, by label or number."""
    return [GroupItem(label or str(number), status, is_started=False) for number, label in enumerate(labels, start=1)]


def recorded_items(plan: ExecutionPlan, run: PlanRun, step_id: str) -> list[str | None]:
    """Return the labels of all items of a step of `run`, including items that never started. Empty if the record cannot determine them."""
    steps = {step.id: step for step in plan.all_steps}
    step = steps.get(step_id)
    step = steps.get(step.group or step_id) if step is not None else None
    if step is None or step.for_each is None:
        return []
    declarations = _declarations(plan, step.within)
    for_each, _ = compile_template(step.for_each, declarations, at="for_each", expect="list")
    label = None if step.label is None else compile_template(step.label, declarations, at="label")[0]
    try:
        variables = _recorded_variables(steps, plan, run, step.within)
        values = for_each.resolve(variables)
    except ExpressionError:
        return []
    return _labels(values, label, lambda item: replace(variables, item=item), str) if isinstance(values, list) else []


def recorded_group_items(plan: ExecutionPlan, run: PlanRun, group: Step, history: RunHistory) -> list[GroupItem]:
    """Return how far each item is of a group whose end is not recorded, from its calls. Empty if nothing of it is known."""
    begun = {item for step in group.steps for step_id, item in history.attempts if step_id == step.id and item is not None}
    labels = dict(enumerate(recorded_items(plan, run, group.id)))
    failed, undone = set(history.failed), rolled_back_items(group, plan, history)
    left = {unit for unit in units_to_roll_back(plan, history) if unit[1] in undone}
    found = list[GroupItem]()
    for item in range(1 + max([*begun, *labels], default=-1)):
        units = {(step.id, item) for step in group.steps}
        name = next((label for unit in units if (label := history.labels.get(unit))), None) or labels.get(item) or str(item + 1)
        status = StepStatus.RUNNING if item in begun else StepStatus.SKIPPED if run.step(group.id).status.has_ended else StepStatus.PENDING
        if item in begun and is_complete(group, item, history):
            status = StepStatus.COMPLETED
        elif not units.isdisjoint(failed):
            status = StepStatus.FAILED
        found.append(GroupItem(name, status, item in undone and units.isdisjoint(left), is_started=item in begun))
    return found


def _declarations(plan: ExecutionPlan, within: Step | None) -> Declarations:
    """Return what expressions of the plan that `within` runs may use, or those of `plan` itself if it is None."""
    own = plan if within is None or within.pinned is None else within.pinned
    steps = {step.local_id for step in plan.all_steps if step.within is within}
    return Declarations(steps=steps, inputs=own.inputs, hosts=own.inventory, item=True)


def _recorded_variables(steps: Mapping[str, Step], plan: ExecutionPlan, run: PlanRun, within: Step | None) -> Variables:
    """Return what expressions of the plan that `within` runs, or of the whole plan, see by the record. Raises ExpressionError."""
    kept = [
        step for step in run.steps if step.status in (StepStatus.COMPLETED, StepStatus.SKIPPED)
    ]  # other steps may still end differently
    own = [step for step in kept if step.id in steps and steps[step.id].within is within]
    ends = {steps[step.id].local_id: as_value(step.status, step.result, step.error) for step in own}
    if within is None or within.pinned is None:
        return Variables(steps=ends, inputs=run.inputs, hosts=plan.host_lists(run.inputs))
    given, _ = compile_template({**within.inputs}, _declarations(plan, within.within), at="inputs")
    values = given.resolve(_recorded_variables(steps, plan, run, within.within))
    inputs, _ = fill_inputs(within.pinned.inputs, values if isinstance(values, dict) else {})
    return Variables(steps=ends, inputs=inputs, hosts=within.pinned.host_lists(inputs))


def _labels(
    values: Sequence[JsonValue], template: Template | None, variables: Callable[[JsonValue], Variables], mask: Callable[[str], str]
) -> list[str | None]:
    taken, labels = set[str](), list[str | None]()
    for number, value in enumerate(values, start=1):
        text = _default_label(value)
        if template is not None:
            try:
                text = _short(template.resolve(variables(value)), cut=True)
            except ExpressionError:  # the item lacks a field of the label; it gets its number as label and still runs
                text = None
        label = shown_label(text, mask) or str(number)
        unique, count = label, 2
        while unique in taken:
            unique, count = f"{label} ({count})", count + 1
        taken.add(unique)
        labels.append(None if unique == str(number) else unique)
    return labels


def _default_label(value: JsonValue) -> str | None:
    if isinstance(value, dict):
        return next((text for name in ("name", "id") if (text := _short(value.get(name)))), None)
    return _short(value)


def _short(value: JsonValue, *, cut: bool = False) -> str | None:
    """Return a number or a short one-line text as text, else None. With `cut`, return any text; the caller shortens it."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value)
    return text if cut or (len(text) <= MAX_LABEL_CHARACTERS and len(text.splitlines()) <= 1) else None


def shown_label(text: str | None, mask: Callable[[str], str]) -> str:
    """Return `text` as a label: one short line, with secrets redacted by `mask`. Empty for None."""
    if text is None:
        return ""
    shown = one_line(mask(text)).replace("`", "'").strip()  # redacted before it is cut, because a cut could expose part of a secret
    return shown if len(shown) <= MAX_LABEL_CHARACTERS else shown[: MAX_LABEL_CHARACTERS - 1] + "…"


def left_in_words(left: int, count: int, what: str, cause: str) -> str:
    """Return how many of `count` items were not `what` (`started`), and why. Empty if there are none."""
    if not left:
        return ""
    return f"{left} of {counted(count, 'item')} {'was' if left == 1 else 'were'} not {what}" + (f": {cause}" if cause else "")


class Items:
    """The calls of `step` and their ends. A call that never started has the end None."""

    def __init__(self, step: Step, labels: Sequence[str | None], *, is_list: bool) -> None:
        """Expect one end per label. With `is_list` (a `for_each`), the step's result is the list of its items' results."""
        self.step = step
        self.labels = labels
        self.count = self.open = count = len(labels)
        self.carried = 0
        self.started = False
        self.settled = False  # a person resolved a call after it was shown as unknown
        self.halted = False  # an item failed and the step stops on errors, so no further item starts
        self.refused = ""  # why a call was not approved
        self.cause = ""  # in a group: why a call was not made
        self.without_call = 0  # in a group: calls that were not made because a person skipped the step or their condition was false
        self.continues = False  # whether the run continues without the calls that were not approved
        self._is_list = is_list
        self._ends: list[AttemptEnd | None] = [None] * count

    @property
    def missing(self) -> int:
        """How many calls never started."""
        return self._ends.count(None) - self.open - self.without_call

    @property
    def is_refused(self) -> bool:
        """Whether the step did not succeed only because of a refusal: every call that was made succeeded."""
        return bool(self.refused) and self.is_cut_short

    @property
    def is_cut_short(self) -> bool:
        """Whether calls are missing, and every call that was made succeeded."""
        return bool(self.missing) and all(end is None or end.outcome == "succeeded" for end in self._ends)

    def end(self, item: int | None, end: AttemptEnd | None) -> None:
        """Record the end of one call."""
        self._ends[item or 0] = end
        self.open -= 1

    def summary(self, cause: str) -> AttemptEnd:
        """Return the end of the step. `cause` says why calls are missing, if any are."""
        ends = [end for end in self._ends if end is not None]
        if not self._is_list:
            return ends[0]
        bad = sorted((end for end in ends if end.outcome != "succeeded"), key=lambda end: WORST_FIRST.index(end.outcome))
        if not bad and not self.missing:
            return AttemptEnd("succeeded", max((end.number for end in ends), default=0), result=[end.result for end in ends])
        texts = [
            f"item {label or place}: {end.error}"
            for place, (end, label) in enumerate(zip(self._ends, self.labels, strict=True), start=1)
            if end is not None and end.outcome != "succeeded"
        ]
        shown = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")
        left = left_in_words(self.missing, self.count, "started", cause)
        outcome = bad[0].outcome if bad else "failed"
        was_interrupted = any(end.was_interrupted for end in bad)
        return AttemptEnd(outcome, 0, error="; ".join(text for text in (shown, left) if text), was_interrupted=was_interrupted)
