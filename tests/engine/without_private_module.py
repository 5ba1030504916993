"""Run a plan once per argument, without the Prefect modules that the argument names: `python -m … FOLDER A,B C…`."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import prefect.main  # noqa: F401  # imported before the forks, because it is slow


def main() -> None:
    """Print one line of JSON per argument: the argument, the run's status, its steps and its flow run."""
    for number, modules in enumerate(sys.argv[2:]):
        child = os.fork()
        if not child:
            _run_without(modules, Path(sys.argv[1], f"{number}.db"))
            return  # Prefect sends its queues when the process ends
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"the run without {modules} failed")


def _run_without(modules: str, database: Path) -> None:
    missing = {f"prefect.{module}" for module in modules.split(",")}
    import_module = importlib.import_module

    def blocked(name: str, package: str | None = None) -> ModuleType:
        if name in missing:
            raise ImportError(f"{name} is blocked")
        return import_module(name, package)

    importlib.import_module = blocked

    from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, run_plan, tool

    tries = list[int]()

    @tool(effect="read")
    def flaky() -> int:
        """Fail once."""
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError("refused")
        return len(tries)

    plan = ExecutionPlan(name="without", description=f"Run without {modules}")
    plan.options.require_approval = False
    plan.add_step("flaky", "Try", id="flaky", max_retries=2, retry_delay_ms=1)
    plan.add_step("flaky", "Skip", id="skipped", depends_on=["flaky"], when="${{ steps.flaky.result > 9 }}")
    plan.add_step("flaky", "End", id="last", depends_on=["flaky"])
    run = run_plan(plan, tools=ToolRegistry([flaky]), store=PlanStore(f"sqlite:///{database}"))
    steps = {step.id: step.status.value for step in run.steps}
    print(json.dumps({"without": modules, "status": run.status.value, "steps": steps, "flow_run_id": run.flow_run_id}))


if __name__ == "__main__":
    main()
