"""The gate policy of a run: what its plan, the settings and the store's policy demand, with the authors that the store knows."""

from plan_adapter.gates.approval import excludes_authors, gate_policy_of
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.approvals import FreezeOverride, GateKind, GatePolicy
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun
from plan_adapter.store.revisions import Revision
from plan_adapter.store.store import PlanStore


async def gate_policy_at(
    plan: ExecutionPlan,
    run: PlanRun,
    store: PlanStore,
    policy: EffectivePolicy,
    *,
    revised_by: str = "",
    step_id: str | None = None,
    kind: GateKind = "approval",
    overrides: tuple[FreezeOverride, ...] = (),
) -> GatePolicy:
    """Return the gate policy of `plan` for `run`, or of the gate of a step, as it is now."""
    requested_by = run.requested_by or ""
    return gate_policy_of(
        plan,
        policy,
        requested_by=requested_by,
        revised_by=revised_by,
        authors=await authors_at(plan, store, policy, step_id=step_id, requested_by=requested_by, run_id=run.id),
        step_id=step_id,
        kind=kind,
        overrides=overrides,
    )


async def authors_at(
    plan: ExecutionPlan,
    store: PlanStore,
    policy: EffectivePolicy,
    *,
    step_id: str | None = None,
    requested_by: str = "",
    run_id: str | None = None,
) -> tuple[str, ...]:
    """Return the authors of the plans at the plan gate or at a step's gate: whoever saved one of them or revised the run.

    If nobody did, it is `requested_by`, who brought the plan. Empty if these plans and `policy` let authors approve.
    """
    if not excludes_authors(plan, policy, step_id):
        return ()
    revisions: list[Revision] = [] if run_id is None else await store.revisions.of_run(run_id)
    saved = [await store.authors(plan_digest(each)) for each in plan.plans_at(plan.find_step(step_id))]
    found = dict.fromkeys([*(name for names in saved for name in names), *(revision.by for revision in revisions)])
    return tuple(found) or ((requested_by,) if requested_by else ())
