"""`Changes`: what differs between two versions of a plan, in the same words at a gate, in `plan diff` and where a plan is edited."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from plan_adapter.model.canonical import Change, diff_plans
from plan_adapter.model.language import tr
from plan_adapter.model.options import EFFECTS, Effect
from plan_adapter.model.plan import ExecutionPlan, Step, flattened
from plan_adapter.model.readable import code, is_secret_name, words
from plan_adapter.text.gate_text import MAX_LISTED, effect_shown
from plan_adapter.text.listing import list_names

FINALLY = "finally."


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between two versions of a plan, as lines of Markdown."""

    old: ExecutionPlan
    new: ExecutionPlan
    effects: Mapping[str, Effect] | None = None  # of the steps of `new`, by name in a `PlanDiff`; None: as far as they are written
    secret_parameters: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])  # by tool, as its schema says

    def raised(self) -> list[str]:
        """Return a line for each step that may do more than before."""
        before, now, lines = steps_by_name(self.old), steps_by_name(self.new), list[str]()
        for name in diff_plans(self.old, self.new).raised:
            was, becomes = before[name].effect, now[name].effect
            if self.effects is not None:  # a step without `effect` has its tool's, which may be no more than what was written before
                becomes = self.effects[name]
                if was is None or EFFECTS.index(becomes) <= EFFECTS.index(was):
                    continue
            more = f"{code(name)}, {was} → {becomes or tr('what its tool does')}"
            lines.append(tr("MAY DO MORE THAN BEFORE: {what}", what=more))
        return lines

    def lines(self, *, most: int | None = None) -> list[str]:
        """Return a line for each difference: steps that are new, steps that are gone, then values. Of values, at most `most`."""
        diff, before, now = diff_plans(self.old, self.new), steps_by_name(self.old), steps_by_name(self.new)
        lines = [tr("**added** {step}: {call}", step=code(name), call=self._call(name, now[name])) for name in diff.added]
        gone = [name for name in diff.removed if name in before]
        lines += [tr("**removed** {step}: {call}", step=code(name), call=code(before[name].called)) for name in gone]
        for change in diff.changed[:most]:
            name = changed_step_name(change, now)
            secret = self.secret_parameters.get(now[name].tool_name or "", ()) if name in now else ()
            lines.append(_change_line(change, name, secret, gives_name=self._gives_name(change)))
        more = len(diff.changed) - len(diff.changed[:most])
        lines += [tr("… {count} more changes", count=more)] if more else []
        return [*lines, *([tr("**moved**: {steps}", steps=list_names(diff.reordered, MAX_LISTED))] if diff.reordered else [])]

    def untouched(self) -> list[str]:
        """Return the names of the steps in which, and inside which, nothing differs."""
        diff, before, now = diff_plans(self.old, self.new), steps_by_name(self.old), steps_by_name(self.new)
        touched = {*diff.added, *diff.reordered, *(changed_step_name(change, now) for change in diff.changed)}
        touched |= _steps_around(touched, now) | _steps_around(diff.removed, before)
        return [name for name in now if name not in touched]

    def _gives_name(self, change: Change) -> bool:
        """Return whether the change is of an input that gives the name of a secret, in both versions."""
        field, _, rest = change.at.partition(".")
        name = rest.partition(".")[0]
        found = [plan.inputs[name] for plan in (self.old, self.new) if field == "inputs" and name in plan.inputs]
        return bool(found) and all(definition.type == "secret" for definition in found)

    def _call(self, name: str, step: Step) -> str:
        effect = step.effect if self.effects is None else self.effects[name]
        about = f" ({words(step.description)})" if step.description else ""
        return code(step.called) + (f", {effect_shown(effect)}" if effect is not None else "") + about


def steps_by_name(plan: ExecutionPlan) -> dict[str, Step]:
    """Return all steps by their names in a `PlanDiff`: the id, with `finally.` before that of a `finally` step."""
    found = {step.id: step for step in flattened(plan.steps)}
    return found | {f"{FINALLY}{step.id}": step for step in flattened(plan.finally_)}


def changed_step_name(change: Change, steps: Collection[str]) -> str:
    """Return the name of the changed step, or of the changed field of the plan."""
    parts = change.at.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in steps), parts[0])


def _steps_around(names: Collection[str], steps: Mapping[str, Step]) -> set[str]:
    """Return the groups and the steps with sub-plans around the steps `names`, at every depth."""
    found, queue = set[str](), [*names]
    while queue:
        step = steps.get(queue.pop())
        if step is not None and step.outer is not None:
            found.add(step.outer)
            queue.append(step.outer)
    return found


def _change_line(change: Change, step: str, secret: Collection[str], *, gives_name: bool) -> str:
    # A value is secret if any name in its path is, or if the parameter's schema says so.
    names, own = change.at.removeprefix(FINALLY).split("."), change.at.removeprefix(f"{step}.").split(".")
    is_secret = (any(map(is_secret_name, names)) and not gives_name) or (own[0] == "parameters" and len(own) > 1 and own[1] in secret)
    old, new = change.shown(is_secret=is_secret)
    return f"{code(change.at)}: {tr('nothing') if old is None else code(old)} → {tr('nothing') if new is None else code(new)}"


def difference_lines(old: ExecutionPlan, new: ExecutionPlan) -> Sequence[str]:
    """Return the differences from `old` to `new` as Markdown, what may do more than before first; empty if there are none."""
    changes = Changes(old, new)
    return [*(f"**{text}**" for text in changes.raised()), *changes.lines()]
