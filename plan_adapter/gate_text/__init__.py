"""What the person who decides reads at a gate, as Markdown for a form and a terminal.

The first screen says what is decided, in the lines that a form shows at once; sections with every detail follow, the digests last.
What the plan says of itself stands in a quote, in inline code or an indented fence; what stands outside of these is ours.
"""

from plan_adapter.gate_text.outcome_gate import outcome_text
from plan_adapter.gate_text.plan_gate import plan_gate_text
from plan_adapter.gate_text.sections import split_text, without_picture
from plan_adapter.gate_text.step_gate import step_gate_text

__all__ = ["outcome_text", "plan_gate_text", "split_text", "step_gate_text", "without_picture"]
