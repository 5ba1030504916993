"""The secrets of a run: where they come from, which are missing before it starts, and which are redacted for models."""

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
from plan_adapter.secrets import SecretChain, SecretLocation, SecretUnavailableError, add_server_place, known_values, secret_chain
from plan_adapter.settings import Settings
from plan_adapter.validation import ValidatedPlan
from plan_adapter.validation.findings import Findings

log = logging.getLogger(__name__)


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


async def refuse_missing_secrets(validated: ValidatedPlan, settings: Settings, *, done: Collection[str] = (), warn: bool = True) -> None:
    """Raise InvalidPlanError, which names all secrets that are missing and must exist before the run starts.

    `done` contains the steps that a resume does not call. A step that writes may create a secret for later steps, so a secret that only
    those use gets a warning in the log, with `warn`. If a place cannot be queried, the steps that use the secret check it.
    """
    uses = _find_uses(validated, done)
    missing = await _find_missing(uses, settings)
    findings = Findings()
    for name, problem in missing.items():
        for at in uses[name].places if uses[name].is_early else ():
            findings.add("missing-secret", at, problem, "store it in one of these places; `plan doctor PLAN` checks again")
    if problems := findings.sorted(validated.plan):
        raise InvalidPlanError(problems)
    for name, problem in missing.items() if warn else ():
        log.warning("%s; %s", problem, uses[name].late_use_message)


async def missing_secret_notices(validated: ValidatedPlan, settings: Settings, chain: SecretChain | None = None) -> list[str]:
    """Return notices for a gate about secrets that were not found where the gate was opened."""
    uses = _find_uses(validated)
    missing = await _find_missing(uses, settings, chain)
    without = {name: "without it the run does not start" if uses[name].is_early else uses[name].late_use_message for name in missing}
    return [
        f"The process that opened the gate has no secret `{name}`: {without[name]}. `plan doctor PLAN` lists the places."
        for name in missing
    ]


def late_use_messages(validated: ValidatedPlan) -> dict[str, str]:
    """Return the message for each secret that is used only after a step that writes, by name. It applies if the secret is missing."""
    return {name: use.late_use_message for name, use in _find_uses(validated).items() if not use.is_early}


async def _find_missing(names: Collection[str], settings: Settings, chain: SecretChain | None = None) -> dict[str, str]:
    """Return why each missing secret is missing, by name. A secret is left out if a place could not be queried."""
    return {
        location.name: location.problem
        for location in await locate_secrets(names, settings, chain)
        if location.problem is not None and location.is_known
    }


@dataclass(slots=True)
class _SecretUse:
    """Where a plan uses a secret: the steps and their places in the document. `is_early`: one of them follows no step that writes."""

    steps: list[str] = field(default_factory=list[str])
    places: list[str] = field(default_factory=list[str])
    is_early: bool = False

    @property
    def late_use_message(self) -> str:
        """What to report if the secret is missing and `is_early` is false."""
        uses, fails = ("uses", "fails") if len(self.steps) == 1 else ("use", "fail")
        steps = listed([f"`{step}`" for step in self.steps], 5)
        return f"{steps} {uses} it after steps that write, and {fails} unless one of them creates it"


def _find_uses(validated: ValidatedPlan, done: Collection[str] = ()) -> dict[str, _SecretUse]:
    """Return where the plan uses each secret, by name. Steps in `done` are ignored."""
    places = {step.id: at for at, step in validated.plan.places.items()} if validated.secrets else {}
    after_writes, uses = set[str](), dict[str, _SecretUse]()
    for step_id in (*validated.order, *validated.finally_order):
        if step_id in done:  # whatever it creates exists already
            continue
        first = validated.order if step_id in validated.finally_order else validated.reduced[step_id]
        before = [after for after in first if after not in done]
        if any(after in after_writes or validated.effect_of(after) != "read" for after in before):
            after_writes.add(step_id)
        templates = {"parameters": validated.parameters[step_id]}
        if step_id in validated.rollbacks:
            templates["rollback.parameters"] = validated.rollbacks[step_id].parameters
        for place, template in templates.items():
            for name in template.secrets:
                use = uses.setdefault(name, _SecretUse())
                use.places.append(f"{places[step_id]}.{place}")
                use.steps += [] if step_id in use.steps else [step_id]
                use.is_early = use.is_early or step_id not in after_writes
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
