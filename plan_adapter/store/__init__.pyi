"""Public names of stored plans and of what is recorded about runs."""

from plan_adapter.documents import dump_plan as dump_plan
from plan_adapter.documents import read_document as read_document
from plan_adapter.loading import aload_plan as aload_plan
from plan_adapter.loading import load_plan as load_plan
from plan_adapter.model.record import PlanSummary as PlanSummary
from plan_adapter.model.record import RunContext as RunContext
from plan_adapter.model.record import StepRun as StepRun
from plan_adapter.model.status import PlanStatus as PlanStatus
from plan_adapter.model.status import RunOutcome as RunOutcome
from plan_adapter.model.status import RunReason as RunReason
from plan_adapter.model.status import StepStatus as StepStatus
