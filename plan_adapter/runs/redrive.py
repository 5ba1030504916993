"""`fates_of`: what becomes of each step of a recorded run when it goes on as a person asks."""

from dataclasses import replace

from plan_adapter.execution.carry import Past
from plan_adapter.execution.redrive import Fate, Record, Redrive, fates
from plan_adapter.plan import StepStatus
from plan_adapter.record import PlanRun
from plan_adapter.validation import ValidatedPlan


def fates_of(run: PlanRun, validated: ValidatedPlan, past: Past, asked: Redrive) -> dict[str, Fate]:
    """Return by step what becomes of it: what was left out before stays so, unless the run is to go on from there.

    Raises RunConflictError, which names everything that cannot be done as it is asked.
    """
    by_status = {status: {step.id for step in run.steps if step.status is status} for status in StepStatus}
    succeeded = by_status[StepStatus.COMPLETED] | {step_id for step_id, item in past.succeeded if item is None}
    record = Record(
        succeeded=succeeded,
        failed=(by_status[StepStatus.FAILED] | by_status[StepStatus.RUNNING]) - succeeded,
        skipped=by_status[StepStatus.SKIPPED],
    )
    before = {step_id: why for step_id, why in past.left_out.items() if step_id not in succeeded}
    return fates(validated.dependencies, record, replace(asked, skipped=asked.left_out(before)))
