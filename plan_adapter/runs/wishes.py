"""What a person asks for of a run beside its gates: their word is proved, allowed and kept before anything follows from it."""

from collections.abc import Sequence
from dataclasses import replace

from plan_adapter.approval import refusal, rules_of
from plan_adapter.errors import NotApprovedError
from plan_adapter.execution.carry import Past
from plan_adapter.execution.redrive import Redrive, left_out_by
from plan_adapter.execution.standing import resume_command, rollback_command
from plan_adapter.plan import ExecutionPlan
from plan_adapter.record import ApprovalRequest, GateRules, PlanRun, Wish
from plan_adapter.runs.occasion import Occasion, Speaker
from plan_adapter.runs.permitting import ways_to_prove
from plan_adapter.runs.redrive import fates_of
from plan_adapter.store.columns import readable_words
from plan_adapter.store.store import PlanStore
from plan_adapter.store.wishes import Wished
from plan_adapter.validation import ValidatedPlan

_NOT_DONE: dict[Wish, str] = {
    "leave_out": "a step may not be left out",
    "take_back": "a step that was left out is not wanted again",
    "undo": "a run whose calls wait at gates of their own is not rolled back",
}


async def as_asked(run: PlanRun, validated: ValidatedPlan, past: Past, asked: Redrive, store: PlanStore, occasion: Occasion) -> Past:
    """Return `past` with what becomes of each step as a person asks; that steps are left out, or one no more, is kept as their word.

    Raises RunConflictError for what cannot be done, and NotApprovedError for who may not ask for it, before any of it is kept.
    """
    fates = fates_of(run, validated, past, asked)
    by = _speaker(occasion).by
    new = [step_id for step_id, because in asked.skipped.items() if past.left_out.get(step_id) != left_out_by(by, readable_words(because))]
    for because in dict.fromkeys(asked.skipped[step_id] for step_id in new):
        steps = [step_id for step_id in new if asked.skipped[step_id] == because]
        await ask_for("leave_out", steps, because, run, validated.plan, store, occasion)
    if asked.from_step in past.left_out:
        await ask_for("take_back", [asked.from_step], "", run, validated.plan, store, occasion)
    elif not new:
        return replace(past, fates=fates)
    past = past.leaving_out(await store.left_out(run.id))
    return replace(past, fates=fates_of(run, validated, past, replace(asked, skipped={})))


async def ask_for(
    wish: Wish,
    steps: Sequence[str],
    because: str,
    run: PlanRun,
    plan: ExecutionPlan,
    store: PlanStore,
    occasion: Occasion,
    *,
    is_guarded: bool = True,
) -> None:
    """Keep what the speaker of `occasion` asks for, about `steps` or the whole run.

    Where it `is_guarded` they must be somebody who may approve `plan`, known as it wants; raises NotApprovedError, which the audit then
    tells of. Raises RunConflictError where the run has changed meanwhile.
    """
    policy = await store.policy_in_force(occasion.settings)
    rules = rules_of(plan, policy, requested_by=run.requested_by or "") if is_guarded else GateRules()
    digest = await store.digest_of_wish(run.id, wish, steps)
    request = ApprovalRequest(digest, run.name, run.description, text="", run_id=run.id, rules=rules, wish=wish)
    speaker, because = _speaker(occasion), readable_words(because)
    try:
        known_by, signature = await speaker.proved(because, request, store)
    except NotApprovedError as error:
        said = f"{_NOT_DONE[wish]}: {error}"
        await store.note_refusal(run.id, said, by=speaker.by, known_by=speaker.channel, step_id=steps[0] if len(steps) == 1 else None)
        raise NotApprovedError(said + _way_out(wish, steps, run, rules, speaker)) from error
    run.updated_at = await store.wish(run.id, Wished(wish, tuple(steps), because, speaker.by, known_by, digest, signature))


class _Named:
    """Whoever goes on with a run without a proof of who they are."""

    has_proof = False
    channel = "os_user"

    def __init__(self, by: str) -> None:
        self.by = by

    async def proved(self, _because: str, request: ApprovalRequest, _store: PlanStore) -> tuple[str, str | None]:
        if reason := refusal(request.rules, by=self.by, known_by=self.channel, decision="approve"):
            raise NotApprovedError(reason)
        return self.channel, None


def _speaker(occasion: Occasion) -> Speaker:
    return occasion.speaker or _Named(occasion.requested_by)


def _way_out(wish: Wish, steps: Sequence[str], run: PlanRun, rules: GateRules, speaker: Speaker) -> str:
    """Return with what somebody who proved nothing could ask for it."""
    if speaker.has_proof:
        return ""
    options = {"leave_out": "".join(f" --skip {step_id}" for step_id in steps) + " --because …", "take_back": f" --from {''.join(steps)}"}
    command = rollback_command(run) if wish == "undo" else resume_command(run) + options[wish]
    ways = ways_to_prove(rules, command, by=speaker.by, decision="approve")
    if ways:
        return ways
    revised = f": `plan revise {run.id} FILE` without the step is asked about at the gate of the plan" if wish == "leave_out" else ""
    return f"; no option proves that{revised}"
