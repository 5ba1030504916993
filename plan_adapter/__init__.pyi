"""The first page of public names: where each lives, for type checkers and for `public_names`, which imports it when it is first used."""

from plan_adapter.checks import approve as approve
from plan_adapter.gates.approval import Approver as Approver
from plan_adapter.model.errors import PlanAdapterError as PlanAdapterError
from plan_adapter.model.plan import ExecutionPlan as ExecutionPlan
from plan_adapter.model.plan import Step as Step
from plan_adapter.model.record import PlanRun as PlanRun
from plan_adapter.runner import compile_plan as compile_plan
from plan_adapter.runner import resume_run as resume_run
from plan_adapter.runner import run_plan as run_plan
from plan_adapter.store.store import PlanStore as PlanStore
from plan_adapter.tools.registry import ToolRegistry as ToolRegistry
from plan_adapter.tools.tool import tool as tool

# isort: split
# Names that were here before, for one more minor version. Their use warns.
from plan_adapter.agent import *
from plan_adapter.errors import *
from plan_adapter.gates import *
from plan_adapter.plans import *
from plan_adapter.runs import *
from plan_adapter.store import *
from plan_adapter.tools import *
