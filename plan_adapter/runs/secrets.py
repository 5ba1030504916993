"""`secrets_of`: where the secrets of a run come from; `refuse_missing`, what is seen of them before a run, and what no model sees."""

import asyncio
import logging
import os
from collections.abc import Collection
from dataclasses import dataclass, field

from plan_adapter.credentials import credential_values
from plan_adapter.engine.connection import configured_api_url, quiet_import
from plan_adapter.errors import InvalidPlanError, NoServerError
from plan_adapter.execution.secrets import Redactor, RunSecrets
from plan_adapter.readable import listed
from plan_adapter.secrets import SecretUnavailableError, Sight, secret_chain, values_at_hand
from plan_adapter.settings import Settings
from plan_adapter.validation import ValidatedPlan
from plan_adapter.validation.findings import Findings

log = logging.getLogger(__name__)


def secrets_of(settings: Settings) -> RunSecrets:
    """Return the secrets of a new run, none of which is looked up yet; the credentials of this process are hidden from the beginning."""
    secrets = RunSecrets(secret_chain(settings, blocks=KnownServer()))
    for value in credential_values(os.environ):
        secrets.redactor.add(value)
    return secrets


async def hidden_from_models(settings: Settings, names: Collection[str]) -> Redactor:
    """Return what hides every secret that is at hand, and those called `names` wherever they are kept, from a model."""
    secrets = secrets_of(settings)
    await secrets.expect(names)
    for value in await values_at_hand(settings):
        secrets.redactor.add(value)
    return secrets.redactor


async def sights(names: Collection[str], settings: Settings) -> list[Sight]:
    """Return of each secret where it comes from, or that it is missing; by name."""
    chain = secret_chain(settings, blocks=KnownServer())
    return list(await asyncio.gather(*(chain.look(name) for name in sorted(names))))


async def refuse_missing(validated: ValidatedPlan, settings: Settings, *, done: Collection[str] = ()) -> None:
    """Return if every secret is there that must be before the run begins; raises InvalidPlanError, which names all that are missing.

    `done` are steps that are not called (any more), when a run goes on.

    One that is used only after a step that writes may be what that step makes: the log warns of it. One that a place could not be asked
    for may be there later: it is left to the steps that use it.
    """
    uses = _uses(validated, done)
    missing = await _missing(uses, settings)
    findings = Findings()
    for name, problem in missing.items():
        for at in uses[name].places if uses[name].is_early else ():
            findings.add("missing-secret", at, problem, "keep it in one of these places; `plan doctor PLAN` looks again")
    if problems := findings.sorted(validated.plan):
        raise InvalidPlanError(problems)
    for name, problem in missing.items():
        log.warning("%s; %s", problem, uses[name].lateness)


async def missing_notices(validated: ValidatedPlan, settings: Settings) -> list[str]:
    """Return what a gate says of the secrets that were not found where it was opened."""
    uses = _uses(validated)
    missing = await _missing(uses, settings)
    without = {name: "without it the run does not begin" if uses[name].is_early else uses[name].lateness for name in missing}
    return [
        f"Where this was asked, there is no secret `{name}`: {without[name]}. `plan doctor PLAN` says where one is looked for."
        for name in missing
    ]


def late_uses(validated: ValidatedPlan) -> dict[str, str]:
    """Return by name what to say of a secret, where it is missing, that only steps use before which one writes."""
    return {name: use.lateness for name, use in _uses(validated).items() if not use.is_early}


async def _missing(names: Collection[str], settings: Settings) -> dict[str, str]:
    """Return by name why a secret is not there; none of which nobody knows it."""
    return {sight.name: sight.problem for sight in await sights(names, settings) if sight.problem is not None and sight.is_known}


@dataclass(slots=True)
class _Use:
    """Where a plan uses a secret: its steps, their places in the document, and whether one of them has no step before it that writes."""

    steps: list[str] = field(default_factory=list[str])
    places: list[str] = field(default_factory=list[str])
    is_early: bool = False

    @property
    def lateness(self) -> str:
        """What is to be said where the secret is missing and `is_early` is false."""
        uses, fails = ("uses", "fails") if len(self.steps) == 1 else ("use", "fail")
        steps = listed([f"`{step}`" for step in self.steps], 5)
        return f"{steps} {uses} it after steps that write, and {fails} unless one of them makes it"


def _uses(validated: ValidatedPlan, done: Collection[str] = ()) -> dict[str, _Use]:
    """Return by secret where the plan uses it, without the steps that are `done`."""
    steps = validated.steps
    after_writes, uses = set[str](), dict[str, _Use]()
    for step_id in validated.order:
        if step_id in done:  # what it may have made is there
            continue
        before = [after for after in validated.reduced[step_id] if after not in done]
        if any(after in after_writes or (steps[after].effect or validated.tools[after].effect) != "read" for after in before):
            after_writes.add(step_id)
        templates = {"parameters": validated.parameters[step_id]}
        if step_id in validated.rollbacks:
            templates["rollback.parameters"] = validated.rollbacks[step_id].parameters
        for place, template in templates.items():
            for name in template.secrets:
                use = uses.setdefault(name, _Use())
                use.places.append(f"steps[{steps[step_id].index}].{place}")
                use.steps += [] if step_id in use.steps else [step_id]
                use.is_early = use.is_early or step_id not in after_writes
    return uses


class KnownServer:
    """The blocks of the Prefect server, where one is known. Prefect is imported only to look there. Implements `secrets.SecretPlace`."""

    def place(self, name: str) -> str:
        """Return the block, in words, or why none was looked at."""
        if configured_api_url() is None:
            return "no Prefect block (no Prefect server is known)"
        from plan_adapter.engine.secret_blocks import SecretBlocks

        return SecretBlocks().place(name)

    async def secret(self, name: str) -> str | None:
        """Return the secret of the block, None where there is none or no server is known."""
        try:
            if configured_api_url() is None:
                return None
        except NoServerError as error:
            raise SecretUnavailableError(str(error)) from None
        with quiet_import():
            from plan_adapter.engine.secret_blocks import SecretBlocks

        return await SecretBlocks().secret(name)
