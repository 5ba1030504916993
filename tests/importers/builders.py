"""Converts documents of other programs, and checks that the plan can run."""

from pathlib import Path
from typing import Any

from plan_adapter.documents import dump_plan, load_plan, read_mapping_text
from plan_adapter.importers.importing import convert_document
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems

Converted = tuple[ExecutionPlan, tuple[str, ...]]


def convert(text: str, source: str = "deploy.yml") -> Converted:
    """Return the valid plan that a document becomes, as read back from its own text, and the notes."""
    document, problems = read_mapping_text(text, file=source, aliases=True)
    assert document is not None, problems
    imported = convert_document(document, source=source)
    plan = load_plan(dump_plan(imported.plan))
    assert find_problems(plan, ToolRegistry.with_builtins()) == []
    return plan, imported.notes


def workflow(jobs: str, head: str = "on: workflow_dispatch") -> Converted:
    """Convert a workflow with these jobs, which are indented by two spaces."""
    return convert(f"name: w\n{head}\njobs:\n{jobs}")


def job(steps: str, fields: str = "") -> Converted:
    """Convert a workflow of one job with these steps, each on a line or indented by six spaces."""
    own = "".join(f"    {line}\n" for line in fields.splitlines())
    return workflow(f"  build:\n    runs-on: ubuntu-latest\n{own}    steps:\n{steps}")


def automation(steps: str, parameters: str = "{}") -> Converted:
    """Convert an Automation document with these steps, which are not indented."""
    return convert(f"schemaVersion: '0.3'\ndescription: d\nparameters: {parameters}\nmainSteps:\n{steps}", "runbook.yaml")


def noted(notes: tuple[str, ...], *parts: str) -> bool:
    """Return whether one note has all of `parts`."""
    return any(all(part in note for part in parts) for note in notes)


def calls(plan: ExecutionPlan) -> dict[str, Any]:
    """Return the script or command of each step."""
    return {step.id: step.parameters.get("command") or step.parameters.get("argv") for step in plan.steps}


def only(plan: ExecutionPlan) -> Step:
    """Return the only step."""
    (step,) = plan.steps
    return step


FIXTURES = Path(__file__).parent / "documents"
