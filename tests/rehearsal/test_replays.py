"""Tests of replays: recorded runs against another version of their plan."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from _pytest.mark.structures import ParameterSet

from plan_adapter import run_plan, tool
from plan_adapter.errors import RunNotFoundError
from plan_adapter.gates import CallbackApprover, PolicyApprover, Rule
from plan_adapter.replay import replay
from plan_adapter.runs import Replay, replay_runs
from plan_adapter.store import load_plan
from plan_adapter.testing import load_cases
from plan_adapter.testing.running import CaseRunner
from plan_adapter.text.replay_text import difference_text, replay_lines
from plan_adapter.tools.registry import ToolRegistry
from tests.cli.conftest import Plan, home, plan
from tests.cli.scenes import ran

__all__ = ["home", "plan"]

RUNBOOKS = Path(__file__).parents[2] / "deployments/runbooks"
NAMES = sorted(file.name.removesuffix(".test.yaml") for file in RUNBOOKS.glob("*.test.yaml"))
TOOLS = ToolRegistry.from_settings(())


QUICK = {"ci-pipeline", "incident-response", "rolling-restart", "schema-migration"}
"""`make test` covers these runbooks: groups with gates per item, goals, questions, rollbacks."""


@dataclass
class Records:
    """A store with runs of runbooks: one of each case of a runbook, once it is asked about."""

    runner: CaseRunner
    names: set[str] = field(default_factory=set[str])

    def replay(self, name: str, document: Path | None = None) -> Replay:
        """Return the replay of the runs of a runbook with the plan in `document`, by default with the same plan."""
        if name not in self.names:
            self.names.add(name)
            for case in load_cases(RUNBOOKS / f"{name}.test.yaml"):
                self.runner.run(case)
        store, settings = self.runner._store, self.runner._settings
        loop = self.runner._loop.get_loop()
        return loop.run_until_complete(replay(load_plan(document or RUNBOOKS / f"{name}.yaml"), TOOLS, store, settings, runs=1000))


@pytest.fixture(scope="module")
def records() -> Iterator[Records]:
    with CaseRunner() as runner:
        yield Records(runner)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.thorough) for name in NAMES])
def test_the_same_plan_would_go_as_it_went(name: str, records: Records) -> None:
    found = records.replay(name)
    assert [(run.run.status.value, *map(difference_text, run.differences)) for run in found.runs if run.differences] == []
    assert (found.same, found.effects, found.findings) == (len(found.runs), 0, ())
    assert found.runs


class Mistake(NamedTuple):
    """A mistake in an edit of a runbook: what is replaced, a text on the line that causes the difference, and how it is shown."""

    runbook: str
    edits: dict[str, str]
    place: str
    shown: str


DRAINED = '/nodes/${{ item }}", body: {state: drained}}'
DRAIN_AGAIN = f"""
      - id: drain_again
        tool_name: http_send
        description: Take the node out of the pool
        effect: idempotent_write
        parameters: {{method: PUT, url: "${{{{ inputs.balancer }}}}{DRAINED}
        depends_on: [idle]
"""
UNDRAIN = """      - id: undrain
        tool_name: http_send
        description: Put the node back into the pool
        effect: idempotent_write
        parameters: {method: PUT, url: "${{ inputs.balancer }}/nodes/${{ item }}", body: {state: ready}}
        depends_on: [healthy]
        # A node that was restarted leaves the pool again before it is restored.
        rollback: {tool_name: http_send, parameters: {method: PUT, url: "${{ inputs.balancer }}/nodes/${{ item }}", body: {state: drained}}}
"""
MIGRATE = "--single-transaction, --file=-]\n      env:\n        PGHOST: "
TWO_TRANSFORMS = "depends_on: [transform_users, transform_orders]"
GATE = "    requires_approval: true\n"

MISTAKES = [
    Mistake("rolling-restart", {DRAINED: DRAINED.replace("nodes", "node")}, "/node/$", "drain: another url: http://lb:9000/nodes/"),
    Mistake(
        "rolling-restart",
        {"\n      - id: restart\n": DRAIN_AGAIN + "      - id: restart\n"},
        "id: drain_again",
        "drain_again: calls http_send once more",
    ),
    Mistake("rolling-restart", {"    requires_approval: each #": "    #"}, "id: nodes", "nodes: no longer waits for an approval"),
    Mistake(
        "rolling-restart",
        {'{argv: "${{ inputs.restart }}", env: {NODE: "${{ item }}"': '{argv: "${{ inputs.restart }}", env: {NODE: "web-1"'},
        "web-1",
        "restart: another env: ",
    ),
    Mistake("rolling-restart", {UNDRAIN: ""}, "id: healthy", "undrain: no longer calls http_send"),
    Mistake("schema-migration", {GATE: ""}, "id: migrate", "migrate: no longer waits for an approval"),
    Mistake("schema-migration", {MIGRATE + "${{ inputs.host }}": MIGRATE + "db-2"}, "env:\n        PGHOST: db-2", "migrate: another env: "),
    Mistake("schema-migration", {"read_migrate.result": "read_revert.result"}, "stdin: ${{ steps.read_revert", "migrate: another stdin: "),
    Mistake(
        "schema-migration",
        {"[dump]": "[read_migrate]", "[read_migrate, read_revert, read_check]": "[check]"},
        "id: migrate",
        "migrate: comes before dump",
    ),
    Mistake("postgres-backup", {"        - --exit-on-error\n": ""}, "argv:\n        - pg_restore", "restore: another argv: "),
    Mistake(
        "postgres-backup",
        {'[dropdb, --if-exists, "restore_check_': '[dropdb, --if-exists, "restore_'},
        "argv: [dropdb",
        "drop_scratch: another argv: ",
    ),
    Mistake("postgres-backup", {"file: ${{ steps.keep": "file: ${{ steps.dump"}, "file: ${{ steps.dump", "output file: "),
    Mistake("release-package", {GATE: ""}, "id: publish", "publish: no longer waits for an approval"),
    Mistake("user-offboarding", {GATE: ""}, "id: transfer", "transfer: no longer waits for an approval"),
    Mistake(
        "user-offboarding", {'heir: "${{ steps.heir': 'heir: "${{ steps.leaver'}, "parameters: {heir", "transfer: another parameters: "
    ),
    Mistake("tls-rotation", {'DAYS: "${{ inputs.days }}"': 'DAYS: "9"'}, 'DAYS: "9"', "make: another env: "),
    Mistake(
        "incident-response", {"result.action == '重启' }}": "result.action != '重启' }}"}, "id: restart", "restart: calls run_command newly"
    ),
    Mistake(
        "ci-pipeline", {"depends_on: [build, lint, test]": "depends_on: [build, lint]"}, "id: deploy", "deploy: no longer waits for test"
    ),
    Mistake("ci-pipeline", {"  - id: build\n": "  - id: build\n" + GATE}, "id: build", "build: waits for an approval"),
    Mistake(
        "data-pipeline",
        {TWO_TRANSFORMS: "depends_on: [transform_users]"},
        "id: load_data",
        "load_data: no longer waits for transform_orders",
    ),
    Mistake("data-pipeline", {"[load_data]": "[extract_data]"}, "id: validate_data", "validate_data: no longer waits for load_data"),
]


def as_parameters(mistakes: Sequence[Mistake]) -> Iterator[ParameterSet]:
    """Yield the mistakes. All but the first in each quick runbook are thorough."""
    seen = {*NAMES} - QUICK
    for number, mistake in enumerate(mistakes):
        marks = [pytest.mark.thorough] if mistake.runbook in seen else []
        seen.add(mistake.runbook)
        yield pytest.param(mistake, id=f"{mistake.runbook}-{number}", marks=marks)


@pytest.mark.parametrize("mistake", [*as_parameters(MISTAKES)])
def test_a_mistake_in_an_edit_is_shown_on_its_line(mistake: Mistake, records: Records, tmp_path: Path) -> None:
    text = (RUNBOOKS / f"{mistake.runbook}.yaml").read_text(encoding="utf-8")
    for old, new in mistake.edits.items():
        assert old in text
        text = text.replace(old, new, 1)
    document = tmp_path / f"{mistake.runbook}.yaml"
    document.write_text(text, encoding="utf-8")
    found = records.replay(mistake.runbook, document)
    line = text[: text.index(mistake.place) + len(mistake.place)].count("\n") + 1 - mistake.place.count("\n")
    lines = {difference_text(finding.first): finding.line for finding in found.findings}
    assert [at for shown, at in lines.items() if shown.startswith(mistake.shown)] == [line], lines
    assert (found.effects, found.same < len(found.runs)) == (0, True)


RESTART = """name: restart
description: Restart the nodes
inputs:
  nodes: {type: array, default: [web-1, web-2]}
steps:
  - id: backup
    write_file: {path: backup.txt, content: all}
  - id: drain
    for_each: "${{ inputs.nodes }}"
    needs: backup
    write_file: {path: "drain-${{ item }}.txt", content: "${{ item }}"}
  - id: restart
    needs: drain
    requires_approval: true
    write_file: {path: restart.txt, content: "${{ string(size(steps.drain.result)) }}"}
outputs: {nodes: "${{ size(steps.drain.result) }}"}
"""
WRONG = RESTART.replace("drain-${{", "drained-${{").replace("    requires_approval: true\n", "")


@pytest.fixture
def recorded(plan: Plan) -> Plan:
    """Three runs of a plan, and an edit of it with two mistakes."""
    Path("restart.yaml").write_text(RESTART, encoding="utf-8")
    Path("edited.yaml").write_text(WRONG, encoding="utf-8")
    for nodes in (["web-1"], ["web-1", "web-2"], ["web-3"]):
        ran(plan, 0, "run", "restart.yaml", "--offline", "--yes", "--input", f"nodes={json.dumps(nodes)}")
    return plan


def test_the_command_shows_what_differs_in_how_many_runs(recorded: Plan) -> None:
    same = ran(recorded, 0, "replay", "restart.yaml", "--fail-on", "any")
    assert same.out.splitlines() == ["3 of 3 runs would go as they went", "effects of this replay: 0"]
    shown = ran(recorded, 1, "replay", "edited.yaml", "--fail-on", "write")
    assert [re.sub(" {2,}", " | ", line) for line in shown.out.splitlines()] == [
        "PLACE | RUNS | WHAT WOULD GO DIFFERENTLY",
        "edited.yaml:11 | 3 of 3 | drain: another path: drain-web-3.txt -> drained-web-3.txt",
        "edited.yaml:12 | 3 of 3 | restart: no longer waits for an approval",
        "",
        "0 of 3 runs would go as they went",
        "effects of this replay: 0",
    ]
    assert not [*Path().glob("drained-*")]
    assert ran(recorded, 0, "replay", "edited.yaml", "--runs", "1").out.splitlines()[-2] == "0 of 1 run would go as they went"


def test_other_programs_can_read_it(recorded: Plan) -> None:
    *runs, found = [json.loads(line) for line in ran(recorded, 0, "replay", "edited.yaml", "--json").out.splitlines()]
    assert [(run["type"], [difference["kind"] for difference in run["differences"]]) for run in runs] == [
        ("replayed_run", ["other_values", "gone_gate"]),
        ("replayed_run", ["other_values", "other_values", "gone_gate"]),
        ("replayed_run", ["other_values", "gone_gate"]),
    ]
    assert (found["type"], found["runs"], found["same"], found["effects"]) == ("replay", 3, 0, 0)
    assert [(finding["at"], finding["line"], len(finding["runs"])) for finding in found["findings"]] == [
        ("steps[1].parameters.path", 11, 3),
        ("steps[2]", 12, 3),
    ]
    assert ran(recorded, 0, "replay", "edited.yaml", "--format", "github").out.splitlines() == [
        "::error file=edited.yaml,line=11,col=18,title=plan replay::drain: another path: drain-web-3.txt -> drained-web-3.txt (3 of 3)",
        "::error file=edited.yaml,line=12,col=5,title=plan replay::restart: no longer waits for an approval (3 of 3)",
    ]
    sarif = json.loads(ran(recorded, 0, "replay", "edited.yaml", "--format", "sarif").out)
    assert [result["locations"][0]["physicalLocation"]["region"]["startLine"] for result in sarif["runs"][0]["results"]] == [11, 12]
    junit = ElementTree.fromstring(ran(recorded, 0, "replay", "edited.yaml", "--format", "junit").out)
    assert (junit.get("tests"), junit.get("failures"), len(junit.findall("testcase/failure"))) == ("3", "3", 3)


def test_nothing_is_called_or_recorded(recorded: Plan, home: Path) -> None:
    def contents() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in Path().rglob("*") if file.is_file()}

    before, runs = contents(), ran(recorded, 0, "runs", "--json").out
    ran(recorded, 0, "replay", "edited.yaml")
    assert ran(recorded, 0, "runs", "--json").out == runs
    assert contents() == before


def test_without_runs_there_is_one_clear_error(plan: Plan) -> None:
    Path("restart.yaml").write_text(RESTART, encoding="utf-8")
    assert "the store has no run of `restart`; `plan runs` lists the runs" in ran(plan, 2, "replay", "restart.yaml").err
    ran(plan, 0, "run", "restart.yaml", "--offline", "--yes")
    assert "write a number and s, m, h, d or w" in ran(plan, 2, "replay", "restart.yaml", "--since", "soon").err
    assert "`--runs 0`: replay at least one run" in ran(plan, 2, "replay", "restart.yaml", "--runs", "0").err
    assert ran(plan, 0, "replay", "restart.yaml", "--since", "1d").out.splitlines()[0] == "1 of 1 run would go as they went"
    with pytest.raises(RunNotFoundError, match="no run of `restart` in this time"):
        replay_runs(RESTART, tools=TOOLS, since=timedelta(0))


@tool(effect="read")
def load(node: str) -> dict[str, int]:
    """Return the load of a node, or fail."""
    if node == "web-9":
        raise ValueError("no such node")
    return {"load": len(node)}


@tool
def move(node: str, load: int) -> None:
    """Move the load elsewhere."""


def document(**changes: Any) -> str:
    steps = [
        {"id": "look", "tool_name": "load", "parameters": {"node": "${{ inputs.node }}"}, "max_retries": 1},
        {"id": "move", "tool_name": "move", "parameters": {"node": "${{ inputs.node }}", "load": "${{ steps.look.result.load }}"}},
        {"id": "tell", "tool_name": "move", "parameters": {"node": "${{ inputs.node }}", "load": 0}, **changes.pop("tell", {})},
    ]
    inputs = {"node": {"type": "string"}}
    return json.dumps({"name": "moves", "description": "Moves", "inputs": inputs, "steps": steps, **changes})


def test_failures_end_as_they_did_and_new_calls_are_unknown(plan: Plan) -> None:
    tools, approver = [load, move], PolicyApprover([Rule()])
    runs = {node: run_plan(document(), tools=tools, inputs={"node": node}, offline=True, approver=approver) for node in ("web-1", "web-9")}

    def replayed(plan: str) -> dict[str, list[str]]:
        found = replay_runs(plan, tools=tools)
        names = {run.id: node for node, run in runs.items()}
        return {names[run.run.id]: [difference_text(one) for one in run.differences] for run in found.runs}

    assert replayed(document()) == {"web-9": [], "web-1": []}
    renamed = replayed(document(tell={"id": "say"}))
    assert renamed == {
        node: [f"tell: no longer calls move: node={node}, load=0", f"say: calls move newly: node={node}, load=0"]
        for node in ("web-9", "web-1")
    }
    other = document(inputs={"node": {"type": "string"}, "extra": {"type": "string", "default": "x"}}, tell={"when": "${{ false }}"})
    assert replayed(other) == {
        "web-9": ["tell: no longer calls move: node=web-9, load=0", "ends as failed, not as partial"],
        "web-1": ["tell: no longer calls move: node=web-1, load=0"],
    }


def test_runs_that_cannot_be_replayed_are_left_out_and_do_not_count(plan: Plan) -> None:
    approvers = [PolicyApprover([Rule()]), PolicyApprover([Rule("reject")])]
    for node, approver in (("a", approvers[0]), ("b", approvers[0]), ("c", approvers[1])):
        run_plan(document(), tools=[load, move], inputs={"node": node}, offline=True, approver=approver)
        if node != "c":
            assert len(replay_runs(document(), tools=[load, move]).runs) == ("a", "b").index(node) + 1
    found = replay_runs(document(), tools=[load, move], runs=2)
    assert (len(found.runs), found.left_out) == (2, {"rejected": 1})


def test_only_runs_that_cannot_be_replayed_are_an_error(plan: Plan) -> None:
    run_plan(document(), tools=[load, move], inputs={"node": "a"}, offline=True, approver=PolicyApprover([Rule("reject")]))
    with pytest.raises(RunNotFoundError, match=r"no run of `moves` can be replayed \(1 rejected\)"):
        replay_runs(document(), tools=[load, move])


ROLLOUT = """
name: rollout
description: Copy the configuration of a host and announce it
options: {require_approval: false}
inputs: {host: {type: string}}
steps:
  - {id: current, read_file: "${{ inputs.host }}.cfg"}
  - id: decide
    ask: {question: "How to announce ${{ inputs.host }}?", fields: {channel: {type: string, enum: [mail, chat]}}}
    needs: current
  - id: deploy
    write_file: {path: "out/${{ inputs.host }}.cfg", content: "${{ steps.current.result.text }}"}
    needs: [current, decide]
    requires_approval: true
  - {id: announce, write_file: {path: "out/${{ steps.decide.result.channel }}", content: "${{ inputs.host }}"}, needs: deploy}
  - {id: log, bash: "echo done >> log.txt", needs: announce}
outputs: {path: "${{ steps.deploy.result.path }}"}
"""


@pytest.fixture
def rollouts(plan: Plan) -> Plan:
    """Runs of a plan with a question and a gate: two that completed, one whose gate was rejected, and one that failed."""
    Path("out").mkdir()
    for host in ("web-1", "web-2", "web-3"):
        Path(f"{host}.cfg").write_text(f"host={host}\n", encoding="utf-8")
    answers = {"web-1": ("mail", "approve"), "web-2": ("chat", "approve"), "web-3": ("chat", "reject"), "web-9": ("chat", "")}
    for host, (channel, answer) in answers.items():
        approver = CallbackApprover(
            lambda request, channel=channel, answer=answer: {"channel": channel} if request.kind == "question" else answer
        )
        run_plan(ROLLOUT, tools=TOOLS, inputs={"host": host}, offline=True, approver=approver)
    return plan


EDITS = {
    "": ("", []),
    '${{ inputs.host }}"}, needs: deploy}': (
        '${{ inputs.host }}"}}',
        ["announce: no longer waits for deploy", "log: no longer waits for deploy"],
    ),
    "needs: [current, decide]": ("needs: current", ["deploy: no longer waits for decide"]),
    "[mail, chat]": ("[sms, chat]", ["decide: does not take the answer of the run: channel: the value is none of `sms`, `chat`"]),
    "How to announce": ("Where to announce", ["decide: another question: How to announce web-3? -> Where to announce web-3?"]),
    "inputs: {host": ("inputs: {node: {type: string}, host", ["does not start: no value for `node`"]),
}


def test_what_an_edit_around_a_gate_changes_is_said_and_each_time_the_same(rollouts: Plan) -> None:
    for old, (new, expected) in EDITS.items():
        assert old in ROLLOUT
        for _ in range(2):
            found = replay_runs(ROLLOUT.replace(old, new), tools=TOOLS)
            assert [difference_text(finding.first) for finding in found.findings] == expected, old
            assert len(found.runs) == 4


def test_the_end_of_a_run_whose_failed_call_is_another_one_is_not_known(rollouts: Plan) -> None:
    found = replay_runs(ROLLOUT.replace('${{ inputs.host }}.cfg"}', '${{ inputs.host }}.conf"}', 1), tools=TOOLS)
    texts = [difference_text(finding.first) for finding in found.findings]
    assert "it is not known how it ends; it ended as failed" in texts
    assert [
        text
        for text in texts
        if text.startswith("deploy: another content: ") and text.endswith("not known (${{ steps.current.result.text }})")
    ]


def test_without_its_gate_a_rejected_write_is_made(rollouts: Plan) -> None:
    found = replay_runs(ROLLOUT.replace("    requires_approval: true\n", ""), tools=TOOLS)
    kinds = {(finding.first.kind, finding.first.step_id): len(finding.runs) for finding in found.findings}
    assert kinds["gone_gate", "deploy"] == 3
    assert kinds["new_call", "deploy"] == kinds["new_call", "announce"] == 1


def test_inputs_that_do_not_fit_any_more_and_a_tool_that_is_gone_are_reported(plan: Plan) -> None:
    approver = PolicyApprover([Rule()])
    run_plan(document(), tools=[load, move], inputs={"node": "a"}, offline=True, approver=approver)
    needs_more = json.dumps({**json.loads(document()), "inputs": {"node": {"type": "string"}, "zone": {"type": "string"}}})
    (run,) = replay_runs(needs_more, tools=[load, move]).runs
    assert [(one.kind, one.subject) for one in run.differences] == [("no_start", "inputs.zone")]
    assert difference_text(run.differences[0]).startswith("does not start: ")

    without = json.loads(document())
    without["steps"] = [step for step in without["steps"] if step["tool_name"] != "load"]
    without["steps"][0]["parameters"]["load"] = 1
    found = replay_runs(json.dumps(without), tools=[move])
    assert [difference_text(one) for one in found.runs[0].differences] == ["look: no longer calls load: node=a"]
    assert "the order of steps was not compared in 1 run" in "\n".join(replay_lines(found))
