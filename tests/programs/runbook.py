"""Run a runbook from its file with inputs, and stop with an error if it did not complete."""

from pathlib import Path

from plan_adapter import ToolRegistry, approve, run_plan

RUNBOOK = Path("touch.yaml")
RUNBOOK.write_text(
    """\
name: touch
description: Touch a file
inputs: {file: {type: string}}
steps:
  - {id: touch, run_command: [touch, "${{ inputs.file }}"]}
  - {id: look, bash: "ls *.restarted", effect: read, depends_on: [touch]}
""",
    encoding="utf-8",
)

tools, inputs = ToolRegistry.with_builtins(), {"file": "web-1.restarted"}
approval = approve(RUNBOOK, tools=tools, inputs=inputs, note="change 4711")
run = run_plan(RUNBOOK, tools=tools, inputs=inputs, approval=approval, offline=True)
run.raise_for_status()
print(run.name, run.outcome, Path("web-1.restarted").exists())
