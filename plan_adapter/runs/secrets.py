"""`secrets_of`: where the secrets of a run come from; `refuse_missing`, what is seen of them before a run, and what no model sees."""

import asyncio
import os
from collections.abc import Collection

from plan_adapter.credentials import credential_values
from plan_adapter.engine.connection import configured_api_url, quiet_import
from plan_adapter.errors import InvalidPlanError, NoServerError
from plan_adapter.execution.secrets import RunSecrets, Scrubber
from plan_adapter.secrets import SecretUnavailableError, Sight, secret_chain, values_at_hand
from plan_adapter.settings import Settings
from plan_adapter.validation import ValidatedPlan
from plan_adapter.validation.findings import Findings


def secrets_of(settings: Settings) -> RunSecrets:
    """Return the secrets of a new run, none of which is looked up yet; the credentials of this process are hidden from the beginning."""
    secrets = RunSecrets(secret_chain(settings, blocks=KnownServer()))
    for value in credential_values(os.environ):
        secrets.scrubber.add(value)
    return secrets


async def hidden_from_models(settings: Settings, names: Collection[str]) -> Scrubber:
    """Return what hides every secret that is at hand, and those called `names` wherever they are kept, from a model."""
    secrets = secrets_of(settings)
    await secrets.expect(names)
    for value in await values_at_hand(settings):
        secrets.scrubber.add(value)
    return secrets.scrubber


async def sights(names: Collection[str], settings: Settings) -> list[Sight]:
    """Return of each secret where it comes from, or that it is missing; by name."""
    chain = secret_chain(settings, blocks=KnownServer())
    return list(await asyncio.gather(*(chain.look(name) for name in sorted(names))))


async def refuse_missing(validated: ValidatedPlan, settings: Settings, *, done: Collection[str] = ()) -> None:
    """Return if every secret is there that must be before the run begins; raises InvalidPlanError, which names all that are missing.

    `done` are steps that are not called (any more), when a run goes on.

    One that is used only after a step that writes may be what that step makes, and one that a place could not be asked for may be there
    later: these are left to the steps that use them.
    """
    uses = _early_uses(validated, done)
    missing = {sight.name: sight.problem for sight in await _missing(uses, settings)}
    findings = Findings()
    for name, places in uses.items():
        for at in places if name in missing else ():
            findings.add("missing-secret", at, missing[name] or "", "keep it in one of these places; `plan doctor PLAN` looks again")
    if problems := findings.sorted(validated.plan):
        raise InvalidPlanError(problems)


async def missing_notices(validated: ValidatedPlan, settings: Settings) -> list[str]:
    """Return what a gate says of the secrets that must be there before the run begins and were not found where it was opened."""
    missing = await _missing(_early_uses(validated), settings)
    return [f"Where this was asked, {sight.problem}; without it the run does not begin." for sight in missing]


async def _missing(names: Collection[str], settings: Settings) -> list[Sight]:
    return [sight for sight in await sights(names, settings) if sight.problem is not None and sight.is_known]


def _early_uses(validated: ValidatedPlan, done: Collection[str] = ()) -> dict[str, list[str]]:
    """Return by secret the places of the plan that use it, if for one of them no step that writes comes before, and is still to be done."""
    steps = validated.steps
    after_writes, uses, early = set[str](), dict[str, list[str]](), set[str]()
    for step_id in validated.order:
        if step_id in done:  # what it may have made is there
            continue
        before = [after for after in validated.reduced[step_id] if after not in done]
        if any(after in after_writes or (steps[after].effect or validated.tools[after].effect) != "read" for after in before):
            after_writes.add(step_id)
        templates = {"parameters": validated.parameters[step_id]}
        if step_id in validated.rollbacks:
            templates["rollback.parameters"] = validated.rollbacks[step_id].parameters
        for field, template in templates.items():
            for name in template.secrets:
                uses.setdefault(name, []).append(f"steps[{steps[step_id].index}].{field}")
                early |= set() if step_id in after_writes else {name}
    return {name: places for name, places in uses.items() if name in early}


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
