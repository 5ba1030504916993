"""Public names of the parts of a plan, and of the functions that check and format it."""

from plan_adapter.checks import find_problems as find_problems
from plan_adapter.checks import format_plan as format_plan
from plan_adapter.checks import lint as lint
from plan_adapter.checks import validate as validate
from plan_adapter.model.options import Concurrency as Concurrency
from plan_adapter.model.options import ExecutionOptions as ExecutionOptions
from plan_adapter.model.options import Input as Input
from plan_adapter.model.options import Question as Question
from plan_adapter.model.options import RunWindow as RunWindow
from plan_adapter.model.options import Trigger as Trigger
from plan_adapter.model.plan import Rollback as Rollback
from plan_adapter.model.problems import Problem as Problem
from plan_adapter.validation import ValidatedPlan as ValidatedPlan
