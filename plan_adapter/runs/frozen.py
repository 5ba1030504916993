"""Change freezes of the store's policy that keep a run from starting, and the approvals that override them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from plan_adapter.gates.freezes import ActiveFreeze, active_freezes, freeze_notices, not_overridden, overrides_of, why_refused
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.approvals import Approval, FreezeOverride
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import resume_command


@dataclass(frozen=True, slots=True)
class Frozen:
    """The change freezes that are in force for a plan, and whether somebody asks to override them."""

    active: Sequence[ActiveFreeze] = ()
    asked: str | None = None  # who asks to override them, and why; None: nobody

    @property
    def overrides(self) -> tuple[FreezeOverride, ...]:
        """The overrides that an approval of the plan has to contain. Empty if nobody asks, or no freeze in force can be overridden."""
        return overrides_of(self.overridable)

    @property
    def overridable(self) -> list[ActiveFreeze]:
        """The freezes in force that are to be overridden. The run waits for the end of the others."""
        return [] if self.asked is None else [each for each in self.active if each.freeze.override is not None]

    def notices(self, *, started: bool = False) -> list[str]:
        """Return the notices for a gate of the plan, or of a step of a run that has started."""
        return freeze_notices(self.active, () if started else self.overrides, started=started, asked=self.asked or "")


async def frozen_now(
    plan: ExecutionPlan, store: PlanStore, policy: EffectivePolicy, *, run: PlanRun | None = None, asked: str | None = None
) -> Frozen:
    """Return the freezes of `policy` that are in force for `plan`. `asked` says who asks to override them before there is a run.

    Raises NotApprovedError if one of them is a calendar, and nothing here reads calendars.
    """
    if not policy.stored.freezes:
        return Frozen()
    active = await asyncio.to_thread(active_freezes, plan, policy.stored.freezes, await store.now())
    if active and run is not None:
        asked = asked or await store.operator_requests.override(run.id)
    return Frozen(active, asked)


async def still_frozen(active: Sequence[ActiveFreeze], approval: Approval | None, store: PlanStore) -> list[ActiveFreeze]:
    """Return the freezes among `active` that `approval`, of the plan, does not override."""
    if not active:
        return []
    return not_overridden(active, await overridden_by(approval, store), await store.now())


async def overridden_by(approval: Approval | None, store: PlanStore) -> tuple[FreezeOverride, ...]:
    """Return the freezes that an approval overrides: those of the gate where people gave it."""
    if approval is None or approval.gate_id is None or approval.decision != "approve":
        return ()
    return (await store.gates.get(approval.gate_id)).gate_policy.overrides


def refuse_frozen(frozen: Frozen, left: Sequence[ActiveFreeze], *, run: PlanRun | None = None) -> None:
    """Raise NotApprovedError if a run is refused because of the freezes that are `left`, also if nobody can override them as asked."""
    if frozen.asked is not None:
        rigid = [each for each in left if each.freeze.override is None]
        if refusing := [each for each in rigid if each.freeze.when == "refuse"] or ([] if frozen.overridable else rigid):
            waits = "" if refusing[0].freeze.when == "refuse" else "; without --override-freeze it waits"
            raise NotApprovedError(f"the run does not start: the policy lets nobody override the {refusing[0].text}{waits}")
        return
    command = "plan run … --override-freeze REASON" if run is None else f"{resume_command(run)} --override-freeze REASON"
    if (why := why_refused(left, command=command)) is not None:
        raise NotApprovedError(f"the run does not start: {why}")
