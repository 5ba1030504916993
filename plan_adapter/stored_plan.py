"""`StoredPlan`: a plan as the store keeps it, whose steps are made when they are asked for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from pydantic import PrivateAttr
from pydantic_core import from_json

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


class StoredSteps(Mapping[str, Step]):
    """The steps of a stored plan by id, in their order, each made when it is asked for."""

    def __init__(self, documents: Sequence[StepDocument]) -> None:
        """Make none yet."""
        self.documents = documents
        self._places = {step["id"]: place for place, step in enumerate(documents)}
        self._made = dict[str, Step]()

    def __getitem__(self, step_id: str) -> Step:
        if (made := self._made.get(step_id)) is None:
            place = self._places[step_id]
            made = self._made[step_id] = Step.model_validate(self.documents[place])
            made.put_at(place)
        return made

    def __contains__(self, step_id: object) -> bool:
        return step_id in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def place(self, step_id: str) -> int:
        """Return the place of a step, from 0; raises KeyError."""
        return self._places[step_id]

    def document(self, step_id: str) -> StepDocument:
        """Return a step as the document of its plan writes it; raises KeyError."""
        return self.documents[self._places[step_id]]


class StoredPlan(ExecutionPlan):
    """A plan read from its canonical document, for a run that goes on: most of the steps of a long one were done before.

    A step is made when `step` is asked for it, all of them when `steps` is; nobody adds or removes one before that.
    """

    _stored: StoredSteps = PrivateAttr(default_factory=lambda: StoredSteps(()))
    _shape: Shape | None = PrivateAttr(default=None)
    _may_have_secrets: bool = PrivateAttr(default=True)

    @classmethod
    def read(cls, document: str, shape: Shape | None) -> Self:
        """Return the plan of a canonical document; `shape` is None where it is not known. Raises ValidationError, ValueError."""
        head: dict[str, Any] = from_json(document)
        documents: list[StepDocument] = head.pop("steps", [])
        if not all(map(_FIELDS.issuperset, documents)):
            raise ValueError("a step has fields that are not known here")
        plan = cls.model_validate(head)
        plan._stored, plan._shape = StoredSteps(documents), shape
        plan._may_have_secrets = "secrets" in document
        del vars(plan)["steps"]
        plan.model_fields_set.add("steps")
        return plan

    @property
    def stored(self) -> StoredSteps:
        """The steps as they were stored, by id."""
        return self._stored

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
        vars(self)["steps"] = steps = list(self._stored.values())
        return steps

    def step(self, step_id: str) -> Step:
        """Return the step called `step_id`; raises KeyError, which names the steps that exist."""
        if "steps" in vars(self) or step_id not in self._stored:
            return super().step(step_id)
        return self._stored[step_id]
