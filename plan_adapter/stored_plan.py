"""`StoredPlan`: a plan as the store keeps it, whose steps are made when they are asked for."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from pydantic import PrivateAttr

from plan_adapter.plan import ExecutionPlan, Step

StepDocument: TypeAlias = Mapping[str, Any]
"""A step as the canonical document of its plan writes it: without defaults."""

Implied: TypeAlias = Mapping[str, Sequence[str]]
"""Of the steps that wait for more than what they write, because they refer to it: by their ids all that they wait for, in order."""


def dependencies_in(documents: Iterable[StepDocument], implied: Implied) -> dict[str, tuple[str, ...]]:
    """Return by id all that the steps of a plan wait for, in the order of the plan."""
    return {step["id"]: tuple(implied.get(step["id"]) or step.get("depends_on", ())) for step in documents}


class Shape(NamedTuple):
    """What was found out about the steps of a plan when a run of it was made."""

    implied: Implied
    is_in_order: bool  # whether each stands after those that it waits for
    is_reduced: bool  # whether none waits for one for which another one waits that it waits for, too


_FIELDS = frozenset(Step.model_fields)


class StoredPlan(ExecutionPlan):
    """A plan read from its canonical document, for a run that goes on: most of the steps of a long one were done before.

    A step is made when `step` is asked for it, all of them when `steps` is; nobody adds or removes one before that.
    """

    _documents: list[StepDocument] = PrivateAttr(default_factory=list[StepDocument])
    _places: dict[str, int] = PrivateAttr(default_factory=dict[str, int])
    _made: dict[int, Step] = PrivateAttr(default_factory=dict[int, Step])
    _shape: Shape | None = PrivateAttr(default=None)
    _may_have_secrets: bool = PrivateAttr(default=True)

    @classmethod
    def read(cls, document: str, shape: Shape | None) -> Self:
        """Return the plan of a canonical document; `shape` is None where it is not known. Raises ValidationError, ValueError."""
        head: dict[str, Any] = json.loads(document)
        documents: list[StepDocument] = head.pop("steps", [])
        if not all(map(_FIELDS.issuperset, documents)):
            raise ValueError("a step has fields that are not known here")
        plan = cls.model_validate(head)
        plan._documents, plan._shape = documents, shape
        plan._places = {step["id"]: place for place, step in enumerate(documents)}
        plan._may_have_secrets = "secrets" in document
        del vars(plan)["steps"]
        plan.model_fields_set.add("steps")
        return plan

    @property
    def ids(self) -> Iterable[str]:
        """The ids of the steps, in their order."""
        return self._places

    @property
    def documents(self) -> Sequence[StepDocument]:
        """The steps as the document writes them."""
        return self._documents

    @property
    def shape(self) -> Shape | None:
        """What is known of the steps; None where nobody looked, or under other rules than today's."""
        return self._shape

    @property
    def may_have_secrets(self) -> bool:
        """False where no expression of the plan can refer to a secret."""
        return self._may_have_secrets

    def __getattr__(self, name: str) -> Any:
        """Make all steps when they are asked for the first time."""
        if name != "steps":
            return super().__getattr__(name)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportAttributeAccessIssue]  # pydantic's, for private attributes
        vars(self)["steps"] = steps = [self._step_at(place) for place in range(len(self._documents))]
        return steps

    def step(self, step_id: str) -> Step:
        """Return the step called `step_id`; raises KeyError, which names the steps that exist."""
        if "steps" in vars(self) or step_id not in self._places:
            return super().step(step_id)
        return self._step_at(self._places[step_id])

    def _step_at(self, place: int) -> Step:
        if (made := self._made.get(place)) is None:
            made = self._made[place] = Step.model_validate(self._documents[place])
            made.put_at(place)
        return made
