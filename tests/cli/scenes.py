"""What the examples of the verbs need: a plan, its test cases, stored versions, and a run in the state in which the verb is typed."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from tests.cli.conftest import CommandResult, Plan
from tests.cli.drafting import done, step
from tests.cli.test_run import TOOLS

Scene = Callable[[Plan], Mapping[str, str]]
"""Prepares a scene, and returns the values of the words in capitals."""

RESTART: dict[str, Any] = {
    "name": "restart-web",
    "description": "Restart a web node",
    "inputs": {"host": {"default": "web-1"}, "email": {"default": "ana@example.org"}},
    "options": {"require_approval": False, "step_timeout_ms": 60000},
    "steps": [
        {
            "id": "drain",
            "tool_name": "run_command",
            "description": "Take it out of the pool",
            "parameters": {"argv": ["touch", "drained"]},
            "rollback": {"tool_name": "run_command", "parameters": {"argv": ["rm", "-f", "drained"]}},
        },
        {
            "id": "restart",
            "tool_name": "run_command",
            "description": "Restart it",
            "parameters": {"argv": ["echo", "${{ inputs.host }}", "for", "${{ inputs.email }}"]},
            "depends_on": ["drain"],
        },
        {
            "id": "notify",
            "tool_name": "run_command",
            "description": "Tell the team",
            "parameters": {"argv": ["echo", "done"]},
            "depends_on": ["restart"],
        },
    ],
}

CASES = """\
cases:
  the node is restarted:
    expect: {status: completed}
  the node is busy:
    steps: {drain: {failure: busy}}
    expect: {status: failed}
"""

WORKFLOW = "name: ci\non: push\njobs:\n  test:\n    runs-on: ubuntu-latest\n    steps:\n      - run: make test\n"

DRAFT = done(step("bash", {"command": "echo web-1"}, id="restart", timeout_ms=60000))

REVISED = done(step("run_command", {"argv": ["echo", "web-1"]}, id="restart_again", timeout_ms=60000))

SHOP = """\
from plan_adapter import ToolRegistry, tool


@tool(effect="read")
def stock(item: str) -> int:
    \"\"\"Count what is in stock.\"\"\"
    return 7


registry = ToolRegistry([stock])
"""


def write_plan(path: str = "restart.yaml", *, restart: Mapping[str, Any] | None = None, **fields: Any) -> Path:
    """Write the plan, with `fields` and the fields of its second step replaced, and return its path."""
    steps = [{**step, **(restart or {})} if step["id"] == "restart" else step for step in RESTART["steps"]]
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(yaml.safe_dump({**RESTART, "steps": steps, **fields}, sort_keys=False), encoding="utf-8")
    return Path(path)


def ran(plan: Plan, code: int, *arguments: str | Path) -> CommandResult:
    """Run `plan …` and return its result, which has this exit code."""
    result = plan(*arguments)
    assert result.code == code, result.out + result.err
    return result


def files(_: Plan) -> Mapping[str, str]:
    """A plan, its test cases, a folder of runbooks, a module of tools, and documents of other programs."""
    write_plan()
    Path("restart.test.yaml").write_text(CASES, encoding="utf-8")
    write_plan("runbooks/restart.yaml")
    Path("runbooks/restart.test.yaml").write_text(CASES, encoding="utf-8")
    Path("shop").mkdir()
    Path("shop/tools.py").write_text(SHOP, encoding="utf-8")
    Path(".github/workflows").mkdir(parents=True)
    Path(".github/workflows/ci.yml").write_text(WORKFLOW, encoding="utf-8")
    Path("policy.yaml").write_text("approvers: [sre]\ngroups: {sre: [ana]}\n", encoding="utf-8")
    return {}


def stored(plan: Plan) -> Mapping[str, str]:
    """Two stored versions, and two commits, of the plan."""
    files(plan)
    for description in ("Restart a node", "Restart a web node"):
        write_plan(description=description)
        ran(plan, 0, "save", "restart.yaml")
        _commit()
    return {}


def completed(plan: Plan) -> Mapping[str, str]:
    """A run that completed."""
    stored(plan)
    ran(plan, 0, "run", "restart.yaml", "--offline")
    return {}


def attested(plan: Plan) -> Mapping[str, str]:
    """A run that completed, its attestation, and the public key that verifies it."""
    completed(plan)
    ran(plan, 0, "export", "last", "--attest", "-o", "run.attestation.json")
    shutil.copy(Settings().home / "attestation_key.pub", "auditor_key.pub")
    return {}


def failed(plan: Plan, *options: str) -> Mapping[str, str]:
    """A run whose second step failed, because a file was missing that is there now."""
    stored(plan)
    check = {"argv": ["test", "-e", "node-is-up"]}
    steps = [{name: value for name, value in step.items() if name != "rollback"} for step in RESTART["steps"]]
    steps[1] = {**steps[1], "parameters": check}
    ran(plan, 1, "run", write_plan("failing.yaml", steps=steps), *options)
    Path("node-is-up").touch()
    write_plan(steps=[steps[0], {**steps[1], "description": "Restart it gently"}, steps[2]])
    return {}


def failed_offline(plan: Plan) -> Mapping[str, str]:
    return failed(plan, "--offline")


def at_its_gate(plan: Plan) -> Mapping[str, str]:
    """A run that waits for the approval of its plan."""
    files(plan)
    run = ran(plan, 6, "run", write_plan(options={"step_timeout_ms": 60000}), "--offline", "--json").run
    return {"DIGEST": run["approval_digest"][:12]}


def at_a_gate_that_lets_delegate(plan: Plan) -> Mapping[str, str]:
    """A run that waits for the approval of its plan, by me or by whom I name."""
    files(plan)
    policy = {"approvers": [os_user(), "bo"], "delegate": True}
    ran(plan, 6, "run", write_plan(options={"step_timeout_ms": 60000}, approval=policy), "--offline")
    return {}


def at_a_step(plan: Plan) -> Mapping[str, str]:
    """A run that waits for the approval of its second step."""
    files(plan)
    ran(plan, 6, "run", write_plan(restart={"requires_approval": True}), "--offline")
    return {}


def at_a_question(plan: Plan) -> Mapping[str, str]:
    """A run that waits for an answer."""
    ask = {"question": "How long may it be away?", "fields": {"minutes": {"type": "integer", "minimum": 1}}}
    ran(plan, 6, "run", write_plan(steps=[{"id": "window", "ask": ask}, *RESTART["steps"]]), "--offline")
    return {}


def unknown(plan: Plan) -> Mapping[str, str]:
    """A run whose second step has an unknown outcome."""
    lost = {"id": "restart", "tool_name": "get_lost", "depends_on": ["drain"]}
    ran(plan, 7, "run", write_plan(steps=[RESTART["steps"][0], lost]), "--offline", *TOOLS)
    return {}


def approved_in_advance(plan: Plan) -> Mapping[str, str]:
    """A standing approval."""
    files(plan)
    write_plan(options={"step_timeout_ms": 60000})
    added = ran(plan, 0, "standing", "add", "restart.yaml", "--schedule", "restart-web/restart-web", "--runs", "3", "--json").run
    return {"ID": added["id"][:8]}


def from_aster(plan: Plan) -> Mapping[str, str]:
    """A plan in the JSON of Aster."""
    files(plan)
    plain = write_plan("plain.yaml", inputs={}, restart={"parameters": {"argv": ["echo", "web-1"]}})
    ran(plan, 0, "export", plain, "--format", "aster", "-o", "aster.json")
    return {}


def _commit() -> None:
    git = ["git", "-c", "user.name=Ana", "-c", "user.email=ana@example.org"]
    for arguments in (["init", "-q"], ["add", "restart.yaml"], ["commit", "-q", "-m", "Change the plan"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)


def a_folder(_: Plan) -> Mapping[str, str]:
    """An empty folder with the answer of a chat."""
    Path("reply.txt").write_text(json.dumps(DRAFT), encoding="utf-8")
    return {}


SCENES: Mapping[str, Scene] = {
    "init": a_folder,
    "validate": files,
    "preview": failed_offline,
    "test": files,
    "draft": a_folder,
    "save": files,
    "run": stored,
    "replay": failed_offline,
    "gates": at_its_gate,
    "approve": at_its_gate,
    "approve last restart": at_a_step,
    "approve last --delegate-to": at_a_gate_that_lets_delegate,
    "answer": at_a_question,
    "reject": at_its_gate,
    "reject last restart": at_a_step,
    "resolve": unknown,
    "desk": at_its_gate,
    "runs": failed_offline,
    "show": failed_offline,
    "report": failed_offline,
    "diff": stored,
    "logs": failed_offline,
    "guide": a_folder,
    "resume": failed_offline,
    "revise": failed_offline,
    "cancel": at_its_gate,
    "rollback": at_a_step,
    "promote": completed,
    "import": from_aster,
    "pursue": a_folder,
    "graph": failed_offline,
    "schema": files,
    "tools": files,
    "explain": a_folder,
    "standing": approved_in_advance,
    "enroll": files,
    "policy": files,
    "verify": attested,
    "export": completed,
    "audit": completed,
    "prune": completed,
    "erase": completed,
    "store": stored,
    "reconcile": at_its_gate,
    "down": files,
    "mcp": stored,
}
"""The scene of each verb, or of the commands that begin so."""


def scene_of(command: str) -> Scene:
    """Return the scene of a command: that of its longest beginning."""
    begins = [name for name in SCENES if f"{command} ".startswith(f"plan {name} ")]
    return SCENES[max(begins, key=len)]
