"""Tests of dry runs: what is called, simulated and unknown, and that nothing changes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore, tool
from plan_adapter.errors import InvalidPlanError
from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.runs import DryRun, DryRunGate, dry_run_plan
from plan_adapter.tools import Simulation, ToolContext
from plan_adapter.tools.registry import ToolRegistry
from tests.cli.conftest import Plan, home, plan

__all__ = ["home", "plan"]

RUNBOOKS = Path(__file__).parents[2] / "deployments/runbooks"

called = list[str]()


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    called.clear()


@tool(effect="read")
def look(what: str = "world") -> dict[str, str]:
    """Read something."""
    called.append(f"look {what}")
    return {"seen": what}


@tool(effect="read")
def broken() -> str:
    """Fail."""
    raise ValueError("no such node")


@tool
def change(value: str) -> dict[str, str]:
    """Change something."""
    called.append(f"change {value}")
    return {"new": value}


def would_count(value: str, context: ToolContext) -> Simulation:
    """Say what would be counted."""
    called.append(f"simulation {value} {context.commands}")
    return Simulation(shows=f"+ {value}", result=len(value))


@tool(simulate=would_count)
def count(value: str) -> int:
    """Count something."""
    called.append(f"count {value}")
    return len(value)


def dry(*steps: dict[str, Any], tools: Any = (), **fields: Any) -> DryRun:
    """Return a dry run of a plan with these steps."""
    arguments = {name: fields.pop(name) for name in ("given", "answers", "reads") if name in fields}
    document = {"name": "dry", "description": "Dry", **fields, "steps": list(steps)}
    options = {"inputs": arguments.get("given"), "answers": arguments.get("answers"), "reads": arguments.get("reads", True)}
    return dry_run_plan(json.dumps(document), tools=[look, broken, change, count, *tools], **options)


def step(step_id: str, tool_name: str = "change", **fields: Any) -> dict[str, Any]:
    parameters = {name: fields.pop(name) for name in ("value", "what") if name in fields}
    return {"id": step_id, "tool_name": tool_name, "description": step_id, "parameters": parameters, **fields}


SEEN = "${{ steps.first.result.seen }}"
NEW = "${{ steps.made.result.new }}"


def test_reads_are_called_and_writes_are_not() -> None:
    found = dry(step("first", "look"), step("second", value=SEEN), step("third", "look", what=SEEN))
    assert called == ["look world", "look world"]
    assert [(call.name, call.how, call.parameters) for call in found.calls] == [
        ("first", "called", {}),
        ("second", "unknown", {"value": "world"}),
        ("third", "called", {"what": "world"}),
    ]
    assert (found.effects, found.is_complete, found.run.succeeded) == (0, True, True)


def test_without_reads_nothing_is_called() -> None:
    found = dry(step("first", "look"), step("second", value=SEEN), reads=False)
    assert called == []
    assert [(call.how, call.why, call.parameters) for call in found.calls] == [
        ("unknown", "nothing is called", {}),
        ("unknown", "its tool can write", {"value": SEEN}),
    ]


def test_what_depends_on_an_unknown_value_is_unknown() -> None:
    found = dry(
        step("made", value="a"),
        step("read", "look", what=f"for {NEW}"),
        step("known", "look", what="b"),
        step("maybe", value="c", when="${{ steps.made.result.new == 'a' }}"),
        step("each", value="${{ item }}", for_each="${{ steps.made.result.new.split(',') }}"),
        step("after", value="${{ steps.read.result.seen }} ${{ steps.known.result.seen }}"),
        outputs={"new": NEW, "known": "${{ steps.known.result.seen }}"},
    )
    assert called == ["look b"]
    assert {call.name: (call.how, call.parameters, call.condition) for call in found.calls} == {
        "made": ("unknown", {"value": "a"}, ""),
        "read": ("unknown", {"what": f"for {NEW}"}, ""),
        "known": ("called", {"what": "b"}, ""),
        "maybe": ("unknown", {"value": "c"}, "${{ steps.made.result.new == 'a' }}"),
        "each[${{ steps.made.result.new.split(',') }}]": ("unknown", {"value": "${{ item }}"}, ""),
        "after": ("unknown", {"value": "${{ steps.read.result.seen }} b"}, ""),
    }
    assert found.run.outputs == {"new": NEW, "known": "b"}
    assert found.run.step("read").status == "completed"


def test_known_parameters_that_do_not_fit_fail() -> None:
    @tool(effect="read")
    def number() -> object:
        """Return a number."""
        return 7

    found = dry(step("first", "number"), step("second", value="${{ steps.first.result }}"), tools=[number])
    assert (found.calls[1].how, "the parameters do not match `change`: `value`" in found.calls[1].why) == ("failed", True), found.calls[
        1
    ].why


def test_a_condition_that_is_known_decides() -> None:
    found = dry(step("first", "look"), step("no", value="a", when="${{ steps.first.result.seen == 'moon' }}"), step("yes", value="b"))
    assert [call.name for call in found.calls] == ["first", "yes"]


def test_a_simulation_gives_the_result() -> None:
    found = dry(step("counted", "count", value="abc"), step("second", value="${{ string(steps.counted.result) }}"))
    assert called == ["simulation abc None"]
    assert [(call.how, call.result, call.shows, call.parameters) for call in found.calls] == [
        ("simulated", 3, "+ abc", {"value": "abc"}),
        ("unknown", "${{ steps.second.result }}", "", {"value": "3"}),
    ]


def test_a_simulation_gets_no_unknown_values_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_KEY", "s3cret-value")
    found = dry(step("made", value="a"), step("unknown", "count", value=NEW), step("secret", "count", value="${{ secrets.key }}"))
    assert called == ["simulation ${{ secrets.key }} None"]
    assert "s3cret-value" not in repr(found)


def test_a_secret_that_a_read_returns_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_KEY", "s3cret-value")
    found = dry(step("first", "look", what="${{ secrets.key }}"), step("second", value=SEEN), outputs={"seen": SEEN})
    assert called == ["look s3cret-value"]
    assert "s3cret-value" not in repr(found)


def fails(value: str) -> int:
    """Fail."""
    raise ValueError(f"cannot tell about {value}")


def lies(value: str) -> object:
    """Return something else."""
    return {"value": value}


@pytest.mark.parametrize(
    ("simulate", "why"),
    [(fails, "ValueError: cannot tell about a"), (lies, "the result is not what `act` returns: it: Input should be a valid integer")],
)
def test_a_simulation_that_fails_leaves_the_result_unknown_and_is_a_problem(simulate: Callable[..., object], why: str) -> None:
    @tool(simulate=simulate)
    def act(value: str) -> int:
        """Act."""
        raise AssertionError(value)

    found = dry(step("acts", "act", value="a"), step("second", value="${{ string(steps.acts.result) }}"), tools=[act])
    assert found.problems == (f"the simulation of `act` for `acts` failed: {why}",)
    assert [(call.how, call.why) for call in found.calls] == [
        ("unknown", f"its simulation failed: {why}"),
        ("unknown", "its tool can write"),
    ]
    assert not found.is_complete


def test_a_simulation_that_does_not_fit_is_refused() -> None:
    def other(size: int) -> int:
        return size

    with pytest.raises(ToolDefinitionError, match="`other` cannot be the simulation of `act`: the tool has no parameter `size`"):

        @tool(simulate=other)
        def act(value: str) -> int:
            return len(value)

    with pytest.raises(ToolDefinitionError, match="the tool only reads, and a simulation is for writes"):
        tool(effect="read", simulate=would_count)(would_count)


def test_a_plan_cannot_have_a_write_called_by_declaring_that_it_reads() -> None:
    found = dry(step("lowered", value="a", effect="read"))
    assert (called, [(call.effect, call.how) for call in found.calls]) == ([], [("read", "unknown")])


def test_gates_are_listed_and_what_waits_at_them_is_not_called() -> None:
    found = dry(
        step("first", "look", requires_approval=True),
        {"id": "decide", "description": "Decide", "ask": {"question": "Which?", "fields": {"node": {"type": "string"}}}},
        step("second", value="${{ steps.decide.result.node }}"),
    )
    assert called == []
    assert found.gates == (
        DryRunGate("plan", "approval"),
        DryRunGate("first", "approval", step_id="first"),
        DryRunGate("decide", "question", step_id="decide"),
    )
    assert [(call.name, call.why, call.parameters) for call in found.calls] == [
        ("first", "it waits for an approval first", {}),
        ("second", "its tool can write", {"value": "${{ steps.decide.result.node }}"}),
    ]


ASKS = (
    {"id": "decide", "description": "Decide", "ask": {"question": "Which?", "fields": {"node": {"type": "string", "enum": ["a", "b"]}}}},
    step("second", "look", what="${{ steps.decide.result.node }}"),
)


def test_an_answer_to_a_question_is_used() -> None:
    found = dry(*ASKS, answers={"decide": {"node": "b"}})
    assert called == ["look b"]
    assert found.gates[-1] == DryRunGate("decide", "question", {"node": "b"}, "decide")


def test_every_wrong_answer_is_reported() -> None:
    with pytest.raises(InvalidPlanError) as raised:
        dry(*ASKS, answers={"decide": {"node": "c"}, "second": {"x": 1}, "decid": {"node": "a"}})
    assert [(problem.at, problem.code) for problem in raised.value.problems] == [
        ("answers.decide.node", "bad-input"),
        ("answers.second", "unknown-step"),
        ("answers.decid", "unknown-step"),
    ]
    assert "did you mean `decide`?" in str(raised.value)


def test_a_read_that_fails_ends_it_except_for_the_finally_steps() -> None:
    steps = (
        step("first", "look"),
        step("bad", "broken", max_retries=9, retry_delay_ms=60_000),
        step("never", value="b", depends_on=["bad"]),
    )
    found = dry(*steps, **{"finally": [step("tell", value="${{ run.status }}")]})
    assert [(call.name, call.how) for call in found.calls] == [("first", "called"), ("bad", "failed"), ("tell", "unknown")]
    assert (found.calls[1].why, found.calls[2].parameters) == ("failed: ValueError: no such node", {"value": "partial"})
    assert (found.is_complete, found.effects, called) == (False, 0, ["look world"])
    assert found.run.step("never").status == "skipped"


def test_a_read_that_fails_may_depend_on_a_write_that_was_not_made() -> None:
    met = step("met", "look", what="b", done_when="${{ result.seen == 'a' }}")
    found = dry(
        step("made", value="a"), step("bad", "broken", depends_on=["made"]), met, step("last", value="${{ steps.met.result.seen }}")
    )
    assert [(call.name, call.how) for call in found.calls] == [
        ("made", "unknown"),
        ("bad", "unknown"),
        ("met", "unknown"),
        ("last", "unknown"),
    ]
    assert found.calls[1].why == "writes before it were not made, and now it failed: ValueError: no such node"
    assert (found.is_complete, found.calls[3].parameters) == (True, {"value": "${{ steps.met.result.seen }}"})


def test_groups_sub_plans_and_finally_steps_are_rehearsed(tmp_path: Path) -> None:
    (tmp_path / "inner.json").write_text(
        json.dumps(
            {
                "name": "inner",
                "description": "Inner",
                "inputs": {"node": {"type": "string"}},
                "steps": [step("act", value="${{ inputs.node }}")],
            }
        )
    )
    steps = [
        step("made", value="a"),
        {
            "id": "nodes",
            "description": "Each node",
            "for_each": "${{ ['a', 'b'] }}",
            "steps": [step("down", value="${{ item }}"), step("up", "look", what="${{ steps.down.result.new }}")],
        },
        {"id": "inner", "description": "Inner", "plan": "inner.json", "inputs": {"node": NEW}},
    ]
    outer = {"name": "outer", "description": "Outer", "steps": steps, "finally": [step("tell", value="${{ run.status }}")]}
    (tmp_path / "outer.json").write_text(json.dumps(outer))
    found = dry_run_plan(tmp_path / "outer.json", tools=[look, change])
    assert {call.name: call.parameters for call in found.calls} == {
        "made": {"value": "a"},
        "down[a]": {"value": "a"},
        "down[b]": {"value": "b"},
        "up[a]": {"what": "${{ steps.down.result.new }}"},
        "up[b]": {"what": "${{ steps.down.result.new }}"},
        "inner.act": {"value": "${{ inputs.node }}"},
        "tell": {"value": "completed"},
    }
    assert (called, found.run.succeeded) == ([], True)


def test_a_goal_is_not_pursued() -> None:
    found = dry({"id": "seek", "description": "Seek", "goal": "Find it", "tools": ["look", "change"], "max_rounds": 3})
    assert [(call.name, call.why) for call in found.calls] == [("seek", "a model decides what to call")]


def test_neither_the_turn_nor_the_window_of_a_plan_delays_it() -> None:
    never = {"run_window": {"cron": "0 0 29 2 *", "duration_ms": 60_000}}
    assert dry(step("a", value="b"), options=never, concurrency={"key": "one"}).is_complete


def test_no_store_is_created_and_nothing_is_recorded_in_one(home: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    dry(step("first", "look"), step("second", value="a"))
    assert plan("runs", "--json").lines == []
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(home / "none"))
    dry(step("first", "look"), step("second", value="a"))
    assert not (home / "none").exists()


async def test_the_policy_of_the_store_opens_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_GATE_EFFECTS", "write")
    from plan_adapter.runs import adry_run_plan

    document = json.dumps({"name": "dry", "description": "Dry", "steps": [step("a", value="b")]})
    async with PlanStore("sqlite:///other.db") as store:
        found = await adry_run_plan(document, tools=[change], store=store)
    assert [gate.name for gate in found.gates] == ["plan", "a"]


def test_no_runbook_changes_anything(tmp_path: Path) -> None:
    scratch, elsewhere = tmp_path / "scratch", tmp_path / "elsewhere"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "PLAN_ADAPTER_HOME": str(elsewhere), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "tests.rehearsal.world", str(RUNBOOKS), str(scratch)]
    done = subprocess.run(command, cwd=RUNBOOKS.parents[1], env=environment, capture_output=True, text=True, check=True)
    *runs, changes = done.stdout.splitlines()
    assert changes == "changes: 0"
    assert (len(runs), [run for run in runs if not run.endswith(" effects: 0, completed")]) == (len([*RUNBOOKS.glob("*.test.yaml")]), [])
    assert (elsewhere.exists(), [*scratch.iterdir()]) == (False, [])


CHANGES = """
open('new', 'w')
os.open('new', os.O_CREAT | os.O_WRONLY)
sqlite3.connect('new.db')
sqlite3.connect('file:new.db?mode=rwc', uri=True)
os.mkdir('folder')
os.rename('old', 'renamed')
os.remove('renamed')
os.remove('new', dir_fd=os.open('.', os.O_RDONLY))
"""


def test_every_change_of_the_world_is_seen(tmp_path: Path) -> None:
    lines = CHANGES.strip().splitlines()
    watched = "import os, sqlite3\nfrom tests.rehearsal import world\nseen = []\nworld.watch(seen, {!r})\n{}\nprint(len(seen))"
    environment = {**os.environ, "PYTHONPATH": str(RUNBOOKS.parents[1])}
    scratch, elsewhere = tmp_path / "scratch", tmp_path / "elsewhere"

    def changes_in(folder: Path) -> str:
        folder.mkdir()
        (folder / "old").touch()
        command = [sys.executable, "-c", watched.format(str(scratch), "\n".join(lines))]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout

    assert (changes_in(elsewhere), changes_in(scratch)) == (f"{len(lines)}\n", "0\n")


# Built-in tools.

BUILT_IN = ToolRegistry.from_settings(())


def built_in(tool_name: str, **parameters: Any) -> Any:
    """Return the only call of a dry run of this tool."""
    steps = [{"id": "only", "description": "Only", "tool_name": tool_name, "parameters": parameters}]
    found = dry_run_plan(json.dumps({"name": "dry", "description": "Dry", "steps": steps}), tools=BUILT_IN)
    assert found.effects == 0
    return found.calls[0]


def test_write_file_shows_the_change() -> None:
    Path("a.txt").write_text("one\ntwo\n", encoding="utf-8")
    call = built_in("write_file", path="a.txt", content="one\nthree\n")
    assert call.shows.splitlines()[-3:] == [" one", "-two", "+three"]
    assert (call.how, call.result["size"]) == ("simulated", 10)
    assert built_in("write_file", path="a.txt", content="one\ntwo\n").shows == "a.txt would not change"
    assert built_in("write_file", path="new/b.txt", content={"a": 1}).shows.splitlines()[-1] == "+}"
    assert Path("a.txt").read_text(encoding="utf-8") == "one\ntwo\n"
    assert not Path("new").exists()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'data.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_database")


async def test_sql_execute_is_rolled_back(database: str) -> None:
    from plan_adapter.runs import adry_run_plan
    from plan_adapter.tools.sql import sql_execute, sql_query

    await sql_execute(database, "CREATE TABLE parts (id int); INSERT INTO parts VALUES (1), (2)")
    statements = ["DELETE FROM parts", "CREATE TABLE more (id int)", "INSERT INTO parts VALUES (3)"]
    for statement, rows in ((statements, 3), (statements[0], 2), (statements[1], 0)):
        steps = [{"id": "only", "description": "Only", "tool_name": "sql_execute", "parameters": {"url": database, "statement": statement}}]
        found = await adry_run_plan(json.dumps({"name": "dry", "description": "Dry", "steps": steps}), tools=BUILT_IN)
        assert [(call.how, call.result) for call in found.calls] == [("simulated", {"rowcount": rows})]
    assert (await sql_query(database, "SELECT id FROM parts ORDER BY id"))["rows"] == [{"id": 1}, {"id": 2}]
    assert await sql_execute(database, "CREATE TABLE more (id int)") == {"rowcount": 0}


def test_sql_execute_creates_no_file_and_cannot_end_its_transaction(tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    call = built_in("sql_execute", url=f"sqlite:///{missing}", statement="CREATE TABLE a (b int)")
    assert (call.how, "does not exist yet" in call.shows, missing.exists()) == ("unknown", True, False)
    (tmp_path / "there.db").touch()
    assert "its simulation failed" in built_in("sql_execute", url=f"sqlite:///{tmp_path / 'there.db'}", statement="COMMIT").why
    assert built_in("sql_execute", url=f"sqlite:///file:{missing}?uri=true", statement="CREATE TABLE a (b int)").how == "unknown"
    assert not missing.exists()
    assert built_in("sql_execute", url="sqlite:///${{ secrets.file }}.db", statement="DELETE FROM a").how == "unknown"


def test_commands_and_requests_are_shown() -> None:
    call = built_in("run_command", argv=["touch", "a b"], cwd="/tmp", env={"TOKEN": "${{ secrets.token }}"})
    assert (call.how, call.shows) == ("unknown", "touch 'a b'\nin /tmp\nwith TOKEN")
    assert built_in("bash", command="touch c\n").shows == "touch c"
    call = built_in("http_send", url="http://user:pass@127.0.0.1:9/a", method="PUT", body={"state": "up"}, headers={"X-Key": "k"})
    assert call.shows == 'PUT http://user:***@127.0.0.1:9/a\nheaders: content-type, idempotency-key, x-key\n{"state": "up"}'
    assert not Path("c").exists()


# The command line.

PLAN_FILE = """
name: tidy
description: Tidy up
inputs: {node: {type: string}}
options: {step_timeout_ms: 1000}
steps:
  - {id: note, tool_name: write_file, description: Note, parameters: {path: note.txt, content: "node ${{ inputs.node }}"}}
  - {id: count, tool_name: bash, description: Count, parameters: {command: "ls | wc -l"}}
  - {id: ask, description: Ask, ask: {question: "Really?", fields: {why: {type: string}}}}
  - id: clean
    tool_name: run_command
    description: Clean
    when: ${{ steps.count.result.stdout != '0' }}
    parameters: {argv: [clean, "${{ inputs.node }}", "${{ steps.ask.result.why }}"]}
"""


def test_the_command_shows_calls_gates_and_that_there_are_no_effects(plan: Plan) -> None:
    Path("tidy.yaml").write_text(PLAN_FILE, encoding="utf-8")
    result = plan("run", "tidy.yaml", "--dry-run", "--input", "node=web-1", "--answer", "ask.why=full")
    assert (result.code, result.err) == (0, "")
    rows = [line.split() for line in result.out.splitlines()[1:4]]
    assert [row[0] for row in rows] == ["note", "count", "clean"]
    assert "run_command clean web-1 full" in result.out
    assert result.out.splitlines()[5:] == [
        "clean: only if ${{ steps.count.result.stdout != '0' }}",
        "note:",
        "    --- note.txt (now)",
        "    +++ note.txt (new)",
        "    @@ -0,0 +1 @@",
        "    +node web-1",
        "gates: plan",
        "questions: ask",
        "worst case: 3 s",
        "0 reads called; 3 writes not called, 1 with a known result",
        "effects: 0",
    ]
    assert not Path("note.txt").exists()
    assert plan("runs", "--json").lines == []


def test_the_command_prints_one_object_with_json(plan: Plan) -> None:
    Path("tidy.yaml").write_text(PLAN_FILE, encoding="utf-8")
    (found,) = plan("run", "tidy.yaml", "--dry", "--no-reads", "--input", "node=web-1", "--json").lines
    assert (found["type"], found["effects"], found["is_complete"]) == ("dry_run", 0, True)
    assert [(call["step"], call["how"]) for call in found["calls"]] == [("note", "simulated"), ("count", "unknown"), ("clean", "unknown")]


def test_it_speaks_the_language_of_its_caller(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tidy.yaml").write_text(f"language: en\n{PLAN_FILE}", encoding="utf-8")
    monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", "zh")
    assert "未知：它的工具会写入" in plan("run", "tidy.yaml", "--dry-run", "--input", "node=web-1").out
    Path("tidy.yaml").write_text(f"language: zh\n{PLAN_FILE}", encoding="utf-8")
    (found,) = plan("run", "tidy.yaml", "--dry-run", "--input", "node=web-1", "--json").lines
    assert found["calls"][1]["reason"] == "its tool can write"


def test_it_counts_as_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = list[str]()
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", sys)
    monkeypatch.setattr("plan_adapter.local.telemetry._counter", counted.append)
    dry(step("first", "look"))
    assert counted == []


def test_a_dry_run_that_fails_exits_with_1(plan: Plan) -> None:
    steps = [{"id": "a", "description": "A", "tool_name": "read_file", "parameters": {"path": "none.txt"}}]
    Path("bad.json").write_text(json.dumps({"name": "bad", "description": "Bad", "steps": steps}), encoding="utf-8")
    result = plan("run", "bad.json", "--dry-run")
    assert (result.code, "none.txt cannot be read" in result.out) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--yes",), "--yes is for a run, and --dry-run only shows what one would do"),
        (("--detach",), "--detach is for a run"),
        (("--answer", "ask"), "`--answer ask`: write --answer step.field=value"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(plan: Plan, arguments: tuple[str, ...], message: str) -> None:
    Path("tidy.yaml").write_text(PLAN_FILE, encoding="utf-8")
    result = plan("run", "tidy.yaml", "--dry-run", "--input", "node=a", *arguments)
    assert (result.code, message in result.err) == (2, True), result.err


def test_its_options_need_it(plan: Plan) -> None:
    Path("tidy.yaml").write_text(PLAN_FILE, encoding="utf-8")
    result = plan("run", "tidy.yaml", "--no-reads")
    assert (result.code, result.err) == (2, "plan: --no-reads and --answer go with --dry-run\n")
