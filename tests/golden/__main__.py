"""`python -m tests.golden`: write the golden records. It replaces what earlier commits wrote: see `tests/golden/__init__.py`."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from plan_adapter.loading import load_plan
from plan_adapter.model.plan import ExecutionPlan
from tests.gates.test_every_field import EXAMPLES, plan_with
from tests.golden import FOLDER, digests, session, words

RUNBOOKS = FOLDER.parents[1] / "deployments" / "runbooks"
DO: dict[str, Any] = {"id": "a", "tool_name": "do", "description": "做"}

PLAN_FIELDS: list[dict[str, Any]] = [
    {"version": 1, "id": "another"},
    {"name": "发布", "description": "First line\nand a second"},
    {"inputs": {"who": {"type": "string", "description": "谁", "pattern": ".*"}}, "outputs": {"who": "${{ inputs.who }}"}},
    {"inputs": {"region": {"type": "string", "variable": "deploy_region", "default": "eu"}}},
    {"finally": [{"id": "end", "tool_name": "look"}, {"id": "last", "tool_name": "do", "depends_on": ["end"]}]},
    {"concurrency": {"key": "restart", "when_busy": "queue"}},
    {"approval": {"approvers": ["ana", "@oncall"], "operators": ["bob"], "self_approval": False, "known_by": ["totp", "ssh_signature"]}},
    {"name": "两个人", "approval": {"approvers": ["ana", "ben", "小明"], "quorum": 2}},
    {"approval": {"approvers": ["ana"], "author_approval": False, "escalate": {"after_ms": 60_000, "to": ["值班"]}, "delegate": True}},
    {"approval": {"effects": ["write"], "expires": "skip", "remind_after_ms": 60_000, "release": True}},
    {"approval": {"always_execute": ["do"]}, "steps": [{"id": "g", "goal": "Find it", "tools": ["look", "do"]}]},
    {"permissions": ["allow_reorder"], "steps": [{"id": "p", "tool_name": "put"}]},
    {"on_failure": "replan", "isolation": "process", "tags": ["web", "生产"]},
    {"outputs": {"text": "${{ steps.a.result.text }}", "n": [1, 2.5, None, True, {"深": "x"}]}},
    {"run_name": "restart 一", "metadata": {"owner": "ana", "since": 2026}},
    {"language": "zh"},
    {"hosts": {"web": {"hosts": {"web-1": {"host": "10.0.0.1"}, "主机": {}}, "vars": {"role": "web"}}, "prod": {"children": ["web"]}}},
    {"options": {"require_approval": False, "step_timeout_ms": 1000, "total_timeout_ms": 60_000, "finally_timeout_ms": 5000}},
    {"options": {"auto_approve": True, "allow_parallel": True, "max_parallel_steps": 7, "approval_timeout_ms": 9000}},
    {"options": {"continue_on_error": True}},
    {"options": {"stop_on_error": True, "continue_on_error": False}},
    {
        "triggers": [
            {
                **{"event": "alert.*", "resource": {"k": "v"}, "when": "${{ true }}"},
                **{"fingerprint": "${{ event.id }}", "cooldown_ms": 60_000},
            }
        ]
    },
    {"options": {"run_window": {"cron": "0 9 * * 1-5", "duration_ms": 3_600_000, "time_zone": "Europe/Berlin"}}},
]


def plans() -> Iterator[tuple[str, ExecutionPlan]]:
    """Yield the runbooks, a plan for each field of a step, and plans with every field of a plan."""
    for path in sorted(RUNBOOKS.glob("*.yaml")):
        if not path.name.endswith(".test.yaml"):
            yield path.name, load_plan(path)
    for field, (step, other) in EXAMPLES.items():
        yield f"step with {field}", plan_with({**step, field: other})
    for fields in PLAN_FIELDS:
        document = {"description": "d", "id": "p", "steps": [DO], **fields}
        yield f"plan with {', '.join(fields)}", ExecutionPlan.model_validate(document)


def plan_line(name: str, plan: ExecutionPlan) -> str:
    """Return the golden record of a plan."""
    document = plan.to_document()
    try:
        made = digests.digests_of(document)
    except Exception as error:
        raise RuntimeError(name) from error
    return json.dumps({"name": name, "given": document, **made}, ensure_ascii=False) + "\n"


def add_new() -> None:
    """Add the records of plans that have none, as after a new field, and of new stored words. The others stay."""
    known = {plan["name"] for plan in digests.golden_plans()}
    with digests.FILE.open("a", encoding="utf-8") as file:
        file.writelines(plan_line(name, plan) for name, plan in plans() if name not in known)
    frozen = json.loads(words.FILE.read_text(encoding="utf-8"))
    write_words(words.merged(frozen, words.stored_words()))


def write_words(found: dict[str, Any]) -> None:
    """Write the record of the stored words."""
    words.FILE.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Write all records."""
    digests.FILE.write_text("".join(plan_line(name, plan) for name, plan in plans()), encoding="utf-8")
    write_words(words.stored_words())
    session.write()


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--new"]):
        sys.exit("usage: python -m tests.golden [--new]")
    add_new() if sys.argv[1:] else main()
