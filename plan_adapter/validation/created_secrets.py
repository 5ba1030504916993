"""Which steps create the secrets of a plan, and the check that every step that uses such a secret comes after them."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from plan_adapter.expressions import SECRET_NAME
from plan_adapter.expressions.template import Template
from plan_adapter.model.graph import Graph, reachable, successors
from plan_adapter.model.plan import Step
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import listed
from plan_adapter.validation.calls import Call
from plan_adapter.validation.findings import Findings

if TYPE_CHECKING:
    from plan_adapter.validation.validated import ValidatedPlan

CODE = "early-secret"
ROLLBACK_PARAMETERS = "rollback.parameters"


@dataclass(frozen=True, slots=True)
class CreatedSecrets:
    """The secrets that steps of a plan create."""

    creators: Mapping[str, tuple[str, ...]]  # by secret: the steps that create it, in order
    followers: Mapping[str, Collection[str]]  # by step that creates one: the steps that start after it has ended

    @classmethod
    def of(cls, steps: Iterable[Step], dependencies: Graph, finally_steps: Collection[str]) -> "CreatedSecrets":
        """Return the secrets that `steps` create. `dependencies` are those of all steps; `finally_steps` start after all others."""
        creators = dict[str, tuple[str, ...]]()
        for step in steps:
            for name in dict.fromkeys(step.creates_secrets):
                creators[name] = (*creators.get(name, ()), step.id)
        after = successors(dependencies) if creators else {}
        followers = {
            step_id: reachable(after, after.get(step_id, ())).union(() if step_id in finally_steps else finally_steps)
            for step_id in {step_id for ids in creators.values() for step_id in ids}
        }
        return cls(MappingProxyType(creators), MappingProxyType(followers))

    def creators_before(self, step_id: str, name: str, *, rollback: bool = False) -> list[str]:
        """Return the steps that have created the secret when `step_id` is called, or with `rollback`, when it is undone."""
        return [
            creator for creator in self.creators.get(name, ()) if step_id in self.followers[creator] or (rollback and step_id == creator)
        ]


def secrets_by_field(parameters: Template, rollback_parameters: Template | None) -> dict[str, Collection[str]]:
    """Return the secrets that a step uses, by the field that uses them."""
    found: dict[str, Collection[str]] = {"parameters": parameters.secrets}
    return found if rollback_parameters is None else found | {ROLLBACK_PARAMETERS: rollback_parameters.secrets}


def _add_early_uses(
    step_id: str, at: str, parameters: Template, rollback_parameters: Template | None, created: CreatedSecrets, findings: Findings
) -> None:
    """Add a problem for each secret that a step uses although the step that creates it may run later."""
    for field, names in secrets_by_field(parameters, rollback_parameters).items():
        for name in sorted({*names} & created.creators.keys()):
            if not created.creators_before(step_id, name, rollback=field == ROLLBACK_PARAMETERS):
                _add_early_use(step_id, name, created.creators[name], f"{at}.{field}", findings)


def check_created_secrets(
    calls: Iterable[Call], created: CreatedSecrets, places: Mapping[str, str], findings: Findings, *, inputs_name_secrets: bool
) -> None:
    """Add the problems of the secrets that the steps of a whole plan create. `places` are those of the steps in its document, by id.

    With `inputs_name_secrets`, a run may use any secret.
    """
    if not created.creators:
        return
    used, seen = set[str](), dict[str, str]()
    for call in calls:
        step_id, at = call.step.id, places[call.step.id]
        used.update(*secrets_by_field(call.parameters, call.rollback_parameters).values())
        _add_early_uses(step_id, at, call.parameters, call.rollback_parameters, created, findings)
    if inputs_name_secrets:
        used |= created.creators.keys()
    for call in calls:
        for index, name in enumerate(call.step.creates_secrets):
            place = f"{places[call.step.id]}.creates_secrets[{index}]"
            if name in call.step.creates_secrets[:index]:
                findings.warn("duplicate-entry", place, f"`{name}` is written twice", "remove one of them")
            else:
                _check_name(name, seen.setdefault(name, call.step.id), call.step, place, used, findings)


def find_early_uses(validated: "ValidatedPlan") -> list[Problem]:
    """Return a problem for each step that may use a secret that an input names before another step creates it."""
    if not (validated.named_secrets and validated.created_secrets.creators):
        return []
    findings = Findings()
    for at, step in validated.plan.places.items():
        rollback = validated.rollbacks.get(step.id)
        undo = None if rollback is None else rollback.parameters
        _add_early_uses(step.id, at, validated.parameters[step.id], undo, validated.created_secrets, findings)
    return findings.sorted(validated.plan)


def _add_early_use(step_id: str, name: str, creators: Collection[str], place: str, findings: Findings) -> None:
    if step_id in creators:
        message = f"`{step_id}` uses the secret `{name}` and creates it, so it must exist before"
        findings.add(CODE, place, message, "remove it from `creates_secrets`, or give the new secret another name")
        return
    names = listed([f"`{creator}`" for creator in creators], 5)
    message = f"`{step_id}` uses the secret `{name}`, and may run before {names} creates it"
    findings.add(CODE, place, message, f"let `{step_id}` depend on it, or on the group or sub-plan around it")


def _check_name(name: str, first: str, step: Step, place: str, used: Collection[str], findings: Findings) -> None:
    """Add the problems of one entry of `creates_secrets`. `first` is the first step that creates this secret."""
    if not re.fullmatch(SECRET_NAME, name):
        findings.add("bad-secret-name", place, f"{name[:80]!r} cannot be the name of a secret", "write the name as after `secrets.`")
    elif first != step.id:
        message = f"`{first}` also creates the secret `{name}`, so a later step may get either value"
        findings.warn("secret-created-twice", place, message, "give one of them another name")
    elif name not in used:
        findings.warn("unused-secret", place, f"no step uses the secret `{name}`", "correct the name, or remove it")
