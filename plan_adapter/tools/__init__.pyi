"""Public names for defining tools."""

from plan_adapter.tools.order import OrderGuard as OrderGuard
from plan_adapter.tools.probing import Done as Done
from plan_adapter.tools.probing import Failed as Failed
from plan_adapter.tools.probing import NotDone as NotDone
from plan_adapter.tools.probing import Simulation as Simulation
from plan_adapter.tools.shell import command_tool as command_tool
from plan_adapter.tools.tool import Tool as Tool
from plan_adapter.tools.tool import ToolContext as ToolContext
from plan_adapter.tools.tool import as_tool as as_tool
from plan_adapter.tools.working_copy import WorkingCopy as WorkingCopy
