"""Public names for running plans: `Plans`, async twins, hooks, and what changes a run."""

from plan_adapter.model.hooks import Hooks as Hooks
from plan_adapter.plan_defaults import Plans as Plans
from plan_adapter.runner import acancel_run as acancel_run
from plan_adapter.runner import aresolve_step as aresolve_step
from plan_adapter.runner import aresume_run as aresume_run
from plan_adapter.runner import arevise_run as arevise_run
from plan_adapter.runner import arun_plan as arun_plan
from plan_adapter.runner import cancel_run as cancel_run
from plan_adapter.runner import resolve_step as resolve_step
from plan_adapter.runner import revise_run as revise_run
from plan_adapter.waiting_runs import aanswer_gate as aanswer_gate
from plan_adapter.waiting_runs import acontinue_run as acontinue_run
from plan_adapter.waiting_runs import aget_run as aget_run
from plan_adapter.waiting_runs import alist_runs as alist_runs
from plan_adapter.waiting_runs import answer_gate as answer_gate
from plan_adapter.waiting_runs import aopen_gates as aopen_gates
from plan_adapter.waiting_runs import arollback_run as arollback_run
from plan_adapter.waiting_runs import astart_run as astart_run
from plan_adapter.waiting_runs import continue_run as continue_run
from plan_adapter.waiting_runs import get_run as get_run
from plan_adapter.waiting_runs import list_runs as list_runs
from plan_adapter.waiting_runs import open_gates as open_gates
from plan_adapter.waiting_runs import rollback_run as rollback_run
from plan_adapter.waiting_runs import start_run as start_run
