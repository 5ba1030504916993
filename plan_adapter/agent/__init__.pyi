"""Public names for drafting plans with a model and for handing plans and tools to an agent."""

from plan_adapter.agent.model import Model as Model
from plan_adapter.agent.openai_model import OpenAIModel as OpenAIModel
from plan_adapter.agent.plan_tools import plan_tool as plan_tool
from plan_adapter.agent.plan_tools import tool_inputs as tool_inputs
from plan_adapter.agent.planner import Planner as Planner
from plan_adapter.model.drafts import Draft as Draft
from plan_adapter.model.drafts import PlanRequest as PlanRequest
from plan_adapter.session import PlanSession as PlanSession
from plan_adapter.tool_functions import as_functions as as_functions
