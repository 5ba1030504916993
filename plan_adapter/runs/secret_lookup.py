"""The secrets of a run: where they come from, which are missing before it starts, and which are redacted for models."""

import asyncio
import os
from collections.abc import Collection, Mapping

from plan_adapter.engine.connection import configured_api_url, quiet_import
from plan_adapter.execution.history import StepChoice
from plan_adapter.execution.redactor import Redactor, RunSecrets
from plan_adapter.local.credentials import credential_values
from plan_adapter.local.secrets import SecretChain, SecretLocation, SecretUnavailableError, add_server_place, known_values, secret_chain
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError, NoServerError
from plan_adapter.model.values import join
from plan_adapter.text.listing import list_names
from plan_adapter.validation import ValidatedPlan
from plan_adapter.validation.created_secrets import ROLLBACK_PARAMETERS, secrets_by_field
from plan_adapter.validation.findings import Findings


def secrets_of(settings: Settings, chain: SecretChain | None = None) -> RunSecrets:
    """Return the secrets of a new run, from `chain` or the places in `settings`.

    Values are looked up on use; the credentials of this process are redacted from the start.
    """
    secrets = RunSecrets(chain or secret_chain(settings))
    for value in credential_values(os.environ):
        secrets.redactor.add(value)
    return secrets


async def model_redactor(settings: Settings, names: Collection[str]) -> Redactor:
    """Return a redactor for text that a model sees. It covers all secrets this process can read, and those in `names` anywhere."""
    return Redactor.of(await known_values(settings, names))


async def locate_secrets(names: Collection[str], settings: Settings, chain: SecretChain | None = None) -> list[SecretLocation]:
    """Return where each secret comes from, or that it is missing, sorted by name. Looks in `chain`, or the places in `settings`."""
    chain = chain or secret_chain(settings)
    return list(await asyncio.gather(*(chain.locate(name) for name in sorted(names))))


async def refuse_missing_secrets(validated: ValidatedPlan, settings: Settings, choices: Mapping[str, StepChoice] | None = None) -> None:
    """Raise InvalidPlanError, which names every secret that is missing and that no step creates before it is used.

    `choices` say what a resume does with each step. A secret whose creating step does not run now must be there. If a place cannot be
    queried, the steps that use the secret check it.
    """
    uses, findings = _find_uses(validated, choices or {}), Findings()
    for name, location in (await _find_missing(uses, settings)).items():
        creators = validated.created_secrets.creators.get(name, ())
        done = f"; {list_names(creators)}, which creates it, does not run now" if creators else ""
        other = "" if creators else ", or write its name under `creates_secrets` of the step that creates it"
        hint = f"store it in one of these places{other}; `plan doctor PLAN` checks again"
        named_by = [given for given, named in validated.named_secrets.get("", {}).items() if named == name]
        problem = location.problem or ""
        for given in named_by:  # a name that no secret has is not shown, because it may be the value that somebody gave instead
            problem = problem if location.exists else "there is no secret with the given name"
            places = f"give another name (--input {given}=…), or store it{other}; `plan guide secrets` lists the places"
            findings.add("missing-secret", join("inputs", given), problem + done, places)
        for at in () if named_by else uses[name]:
            findings.add("missing-secret", at, problem + done, hint)
    if problems := findings.sorted(validated.plan):
        raise InvalidPlanError(problems)


async def missing_secret_notices(validated: ValidatedPlan, settings: Settings, chain: SecretChain | None = None) -> list[str]:
    """Return notices for a gate about secrets that were not found where the gate was opened, and that no step creates."""
    return [
        f"The process that opened the gate has no secret `{name}`: without it the run does not start. `plan doctor PLAN` lists the places."
        for name in await _find_missing(_find_uses(validated, {}), settings, chain)
    ]


async def _find_missing(names: Collection[str], settings: Settings, chain: SecretChain | None = None) -> dict[str, SecretLocation]:
    """Return the secrets that are missing or cannot be used, by name. A secret is left out if a place could not be queried."""
    return {
        location.name: location
        for location in await locate_secrets(names, settings, chain)
        if location.problem is not None and location.is_known
    }


def _find_uses(validated: ValidatedPlan, choices: Mapping[str, StepChoice]) -> dict[str, list[str]]:
    """Return the places where the plan uses each secret that must exist before the start, by name.

    A completed step is not called again, but its rollback may be.
    """
    places = {step.id: at for at, step in validated.plan.places.items()} if validated.secrets else {}
    kinds, uses = {step_id: choice.kind for step_id, choice in choices.items()}, dict[str, list[str]]()
    for step_id in (*validated.order, *validated.finally_order) if places else ():
        rollback, kind = validated.rollbacks.get(step_id), kinds.get(step_id, "run")
        calls = secrets_by_field(validated.parameters[step_id], None if rollback is None else rollback.parameters)
        for field, names in calls.items():
            is_undo = field == ROLLBACK_PARAMETERS
            for name in sorted(names) if kind == "run" or (is_undo and kind == "carried") else ():
                creators = validated.created_secrets.creators_before(step_id, name, rollback=is_undo)
                if all(kinds.get(creator, "run") != "run" for creator in creators):
                    uses.setdefault(name, []).append(f"{places[step_id]}.{field}")
    return uses


class ServerBlocks:
    """The blocks of the Prefect server, if one is configured. Imports Prefect only when needed. Implements `secrets.SecretPlace`."""

    def place(self, name: str) -> str:
        """Return a description of the block, or why no block was looked up."""
        if configured_api_url() is None:
            return "no Prefect block (no Prefect server is known)"
        from plan_adapter.engine.secret_blocks import SecretBlocks  # imports Prefect

        return SecretBlocks().place(name)

    async def secret(self, name: str) -> str | None:
        """Return the secret in the block, or None if there is no such block or no server."""
        try:
            if configured_api_url() is None:
                return None
        except NoServerError as error:
            raise SecretUnavailableError(str(error)) from None
        with quiet_import():
            from plan_adapter.engine.secret_blocks import SecretBlocks  # imports Prefect

        return await SecretBlocks().secret(name)


add_server_place(ServerBlocks())
