"""Public names for running plans: async twins, hooks, and what changes a run."""

from plan_adapter.model.hooks import Hooks as Hooks
from plan_adapter.runner import acancel_run as acancel_run
from plan_adapter.runner import aresolve_step as aresolve_step
from plan_adapter.runner import aresume_run as aresume_run
from plan_adapter.runner import arevise_run as arevise_run
from plan_adapter.runner import arun_plan as arun_plan
from plan_adapter.runner import cancel_run as cancel_run
from plan_adapter.runner import resolve_step as resolve_step
from plan_adapter.runner import revise_run as revise_run
