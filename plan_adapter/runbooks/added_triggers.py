"""The triggers that `plan deploy --trigger` adds to a plan: an event with its resource, or a file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from plan_adapter.documents import read_triggers
from plan_adapter.documents.reading import TriggersFile, TypedFile
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import Trigger
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.validation.event_triggers import CODE

FILES = (".yaml", ".yml", ".json")
"""How the name of a file of triggers ends."""

RESOURCE = "prefect.resource.id"
"""The label of an event's resource that `EVENT@RESOURCE` names."""

_AT = re.compile(r"triggers\[(\d+)\]\.?(.*)")


@dataclass(frozen=True, slots=True)
class AddedTrigger:
    """A trigger that an option of `plan deploy` adds."""

    option: str  # what was typed
    trigger: Trigger
    file: TypedFile[TriggersFile] | None = None  # where it is written
    index: int = 0  # in the file

    def of(self, plan: ExecutionPlan) -> Trigger:
        """Return the trigger for `plan`. One that is not from a file gives each required input the field of the payload with its name."""
        if self.file is not None:
            return self.trigger
        required = (name for name, declared in plan.inputs.items() if declared.is_required)
        inputs: Mapping[str, JsonValue] = {name: f"${{{{ event.payload.{name} }}}}" for name in required}
        return self.trigger.model_copy(update={"inputs": inputs})

    def locate(self, problem: Problem, path: str) -> Problem:
        """Return `problem`, which is at `path` in this trigger, with the place where the trigger is written."""
        if self.file is None:
            return replace(problem, file=f"--trigger {self.option}", at=path, line=None, column=None)
        return self.file.locate(replace(problem, at=".".join(filter(None, (f"triggers[{self.index}]", path)))))


def read_added_triggers(options: Iterable[str]) -> tuple[AddedTrigger, ...]:
    """Return the triggers that these options add. Raises InvalidPlanError with the problems of all files."""
    added, problems = list[AddedTrigger](), list[Problem]()
    for option in options:
        if not option.lower().endswith(FILES):
            event, at, resource = option.partition("@")
            added.append(AddedTrigger(option, Trigger(event=event, resource={RESOURCE: resource} if at else {})))
            continue
        file = read_triggers(Path(option))
        problems += file.all_problems([])
        if not file.value.triggers and not file.problems:
            problems.append(file.locate(Problem(CODE, at="triggers", message="the file has no trigger", hint=file.value.start_hint)))
        added += [AddedTrigger(option, trigger, file, index) for index, trigger in enumerate(file.value.triggers)]
    if problems:
        raise InvalidPlanError(problems)
    return tuple(added)


def add_triggers(plan: ExecutionPlan, added: Sequence[AddedTrigger]) -> ExecutionPlan:
    """Return `plan` with these triggers after its own. Its digest covers them."""
    return plan.model_copy(update={"triggers": [*plan.triggers, *(one.of(plan) for one in added)]}) if added else plan


def locate_added(problem: Problem, own: int, added: Sequence[AddedTrigger]) -> Problem:
    """Return a problem of a plan with `own` triggers, and then those that are `added`, at the place where it was written."""
    found = _AT.fullmatch(problem.at)
    index = int(found[1]) - own if found is not None else -1
    return problem if found is None or index < 0 else added[index].locate(problem, found[2])
