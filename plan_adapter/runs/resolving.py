"""How a call ended, said from elsewhere than at its gate: what such a word binds to, and who may give it."""

from plan_adapter.approval import rules_of
from plan_adapter.errors import NotApprovedError
from plan_adapter.identity.known import Means, proved
from plan_adapter.plan import KnownBy
from plan_adapter.readable import one_line
from plan_adapter.record import Answer, ApprovalRequest, GateRules, PlanRun, Resolution
from plan_adapter.secrets import SecretSource
from plan_adapter.settings import Settings
from plan_adapter.store.outcomes import Word
from plan_adapter.store.store import PlanStore

_PROOFS: dict[KnownBy, str] = {"ssh_signature": "--sign", "totp": "--code"}


async def word_request(
    run: PlanRun, step_id: str, resolution: Resolution, store: PlanStore, settings: Settings, *, item: int | None = None
) -> ApprovalRequest:
    """Return what somebody is asked who says this of a step: what their answer binds to, and what it must fit.

    Raises RunConflictError where that cannot be said.
    """
    plan = await store.get(run.digest)
    return ApprovalRequest(
        approval_digest=await store.digest_of_word(run.id, step_id, resolution, item=item),
        name=run.name,
        description="",
        text="",
        run_id=run.id,
        step_id=step_id,
        item=item,
        rules=rules_of(plan, settings, requested_by=run.requested_by or ""),
        kind="outcome",
    )


async def word_of(answer: Answer, request: ApprovalRequest, store: PlanStore, settings: Settings, *, secrets: SecretSource | None) -> Word:
    """Return `answer` as the word that the store takes, its giver proved and allowed.

    Raises NotApprovedError with why not, which the audit of the run then tells of. `secrets` keeps those of one-time codes.
    """
    assert answer.decision in ("done", "again", "abort")
    try:
        known_by = await proved(answer, request, Means(settings, secrets, store))
    except NotApprovedError as error:
        said = f"`{one_line(request.step_id or '')}` is not resolved: {error}"
        await store.note_refusal(request.run_id or "", said, by=answer.by, known_by=answer.channel)
        raise NotApprovedError(said + _ways(answer, request.rules)) from error
    return Word(
        answer.decision, answer.by, known_by, answer.note, answer.result, digest=request.approval_digest, signature=answer.signature
    )


def _ways(answer: Answer, rules: GateRules) -> str:
    """Return with what somebody who proved nothing could answer here."""
    ways = [option for way, option in _PROOFS.items() if rules.known_by is not None and way in rules.known_by]
    return "" if answer.code or answer.signature or not ways else f"; `plan resolve` with {' or '.join(ways)} proves it"
