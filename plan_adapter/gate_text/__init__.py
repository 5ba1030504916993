"""What the person who decides reads at a gate, as Markdown for a form and a terminal.

Whatever the plan says of itself stands in a quote, a cell, inline code or an indented fence; what stands outside of these is ours.
"""

from plan_adapter.gate_text.outcome_gate import outcome_text
from plan_adapter.gate_text.plan_gate import plan_gate_text
from plan_adapter.gate_text.sections import for_terminal
from plan_adapter.gate_text.step_gate import step_gate_text

__all__ = ["for_terminal", "outcome_text", "plan_gate_text", "step_gate_text"]
