"""Tests of `plan audit`: the pack of a period, on real runs of each kind."""

import asyncio
import csv
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import load_plan
from plan_adapter.store.database.columns import sqlite_text
from plan_adapter.store.store import PlanStore
from plan_adapter.text.audit_pack import COLUMNS
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import bind_inputs, validate
from tests.cli.conftest import CommandResult, Plan, digest_of
from tests.cli.gated import resumed, signer, waiting
from tests.cli.some_tools import greet
from tests.cli.test_questions import asking
from tests.cli.test_quorum import TWO, approve_as
from tests.cli.test_report import ALLOWED, Elements
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.cli.test_standing_approvals import BY_INPUT, STANDING
from tests.cli.test_unknown_outcomes import slow
from tests.gates.world import FixedApprover
from tests.postgres import PostgresServer
from tests.sql import Sql
from tests.text.payloads import PAYLOADS

__all__ = ["signer"]

ME = os_user()
EVER = ("--from", "2020-01-01", "--to", "2099-12-31")
WRITE = step("write", "run_command", parameters={"argv": ["echo", "done"]})
REFUSED = ("NUL", "expression", "expression in text", "secret", "unclosed", "blanks", "empty")
"""Texts that no plan may have as a name or description."""


def read(path: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def audited(plan: Plan, *options: str) -> dict[str, dict[str, str]]:
    """Return the rows of `runs.csv` of a pack of all runs, by run."""
    written = plan("audit", *EVER, "--sample", "all", "-o", "pack", "--force", *options)
    assert written.code == 0, written.err
    return {row["run"]: row for row in read("pack/runs.csv")}


def only(plan: Plan) -> dict[str, str]:
    """Return the row of the only run."""
    (row,) = audited(plan).values()
    return row


def run(plan: Plan, *steps: dict[str, Any], code: int = 0, **fields: Any) -> CommandResult:
    """Run a plan of these steps offline."""
    result = plan("run", document(*steps, **fields), "--offline", "--json", *TOOLS)
    assert result.code == code, result.err
    return result


def moved(run_id: str, days: int) -> None:
    """Move the request of a run into the past. Its record no longer verifies."""

    async def move() -> None:
        async with PlanStore() as store:
            at = (await store.now()) - timedelta(days=days)
        change = "UPDATE runs SET created_at = :at WHERE id = :run"
        await Sql(store_url()).change(change, at=sqlite_text(at), run=run_id)

    asyncio.run(move())


def store_url() -> str:
    from plan_adapter.local.settings import Settings

    return Settings().store_url


@pytest.mark.usefixtures("signer")
def test_an_approval_by_another_person_than_requester_and_author(plan: Plan) -> None:
    plan("save", document(GREET, **NEEDS_APPROVAL), *TOOLS)
    run_id = waiting(plan)
    plan("approve", run_id, "--sign", "--by", "ana", "--yes", "--note", "CHG-1042")
    assert resumed(plan, run_id).code == 0
    row = only(plan)
    assert list(row) == [*COLUMNS]
    assert (row["requested_by"], row["requester_known_by"]) == (ME, "not recorded")
    assert (row["plan"], row["version"], row["author"], row["author_known_by"]) == ("试运行", "试运行@1", ME, "not recorded")
    assert (row["approved_by"], row["separate_approver"]) == ("another person", "yes")
    assert row["approvals"].startswith("plan: approved by ana (ssh_signature) at 20")
    assert row["approvals"].endswith(", note: CHG-1042")
    shown = plan("show", run_id, "--json").run
    assert shown["approval_digest"] in row["approvals"]
    assert (row["plan_digest"], row["status"], row["reason"]) == (shown["digest"], "completed", "")
    assert (row["steps"], row["calls"], row["writing_calls"]) == ("1: 1 completed", "1", "0")
    assert (row["tested"], row["earlier_completed_runs"], row["deviations"]) == ("not recorded", "0", "none")
    verified = plan("verify", run_id, "--json").run
    assert (row["record"], row["record_digest"]) == ("intact", verified["digest"])
    for name in ("requested_at", "began_at", "ended_at"):
        assert datetime.fromisoformat(row[name]).tzinfo == UTC


def test_each_of_several_approvals_has_its_own_line(plan: Plan) -> None:
    run_id = waiting(plan, approval=TWO)
    plan("approve", run_id, "--digest", digest_of(plan, run_id), "--note", "图已看过")
    approve_as("ben")
    assert resumed(plan, run_id).code == 0
    first, second = only(plan)["approvals"].split("; ")
    assert first.startswith(f"plan: approved by {ME} (os_user) at 20")
    assert first.endswith(", note: 图已看过")
    assert second.startswith("plan: approved by ben (os_user) at 20")
    assert "note" not in second


@pytest.mark.usefixtures("signer")
def test_without_a_saved_version_the_author_is_not_recorded(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("approve", run_id, "--sign", "--by", "ana", "--yes")
    resumed(plan, run_id)
    plan("save", document(GREET, **NEEDS_APPROVAL), *TOOLS)  # too late: the run did not come from it
    row = only(plan)
    assert (row["version"], row["author"]) == ("not saved as a version", "not recorded")
    assert (row["approved_by"], row["separate_approver"]) == ("not the requester; author not recorded", "not recorded")


def test_an_approval_by_the_requester_is_a_deviation(plan: Plan) -> None:
    path = document(GREET, **NEEDS_APPROVAL)
    for _ in range(2):
        assert plan("run", path, "--offline", "--yes", *TOOLS).code == 0
    first, second = audited(plan).values()
    assert (first["approved_by"], first["separate_approver"]) == ("the requester or an author", "no")
    assert first["deviations"] == "the plan approved by the requester"
    assert [row["earlier_completed_runs"] for row in (first, second)] == ["0", "1"]


@pytest.mark.usefixtures("signer")
def test_an_approval_by_the_author_is_a_deviation(plan: Plan) -> None:
    async def save() -> None:
        async with PlanStore() as store:
            await store.save(load_plan(document(GREET, **NEEDS_APPROVAL)), author="ana")

    asyncio.run(save())
    run_id = waiting(plan)
    plan("approve", run_id, "--sign", "--by", "ana", "--yes")
    resumed(plan, run_id)
    row = only(plan)
    assert (row["author"], row["separate_approver"], row["deviations"]) == ("ana", "no", "the plan approved by an author of the plan")


def test_a_plan_that_requires_no_approval_says_so_and_its_writes_deviate(plan: Plan) -> None:
    ids = [run(plan, GREET).run["id"], run(plan, WRITE).run["id"]]
    reads, writes = (audited(plan)[run_id] for run_id in ids)
    assert [(row["approved_by"], row["separate_approver"]) for row in (reads, writes)] == [
        ("nobody: the plan requires no approval", "no")
    ] * 2
    assert "no approval required" in reads["approvals"]
    assert (reads["writing_tools"], reads["deviations"]) == ("none", "none")
    assert (writes["writing_calls"], writes["writing_tools"], writes["deviations"]) == ("1", "run_command x1", "wrote without an approval")


@pytest.mark.usefixtures("signer")
def test_the_gates_of_steps_count_if_each_write_had_one(plan: Plan) -> None:
    gated, other = {**WRITE, "requires_approval": True}, {**WRITE, "id": "other", "depends_on": ["write"]}
    ids = [run(plan, *steps, code=6).run["id"] for steps in ((gated,), (gated, other))]
    for run_id in ids:
        plan("approve", run_id, "write", "--sign", "--by", "ana", "--yes")
        assert resumed(plan, run_id).code == 0
    alone, both = (audited(plan)[run_id] for run_id in ids)
    assert alone["approved_by"] == "not the requester; author not recorded"
    assert "step write: approved by ana (ssh_signature)" in alone["approvals"]
    assert (both["approved_by"], both["deviations"]) == ("nobody: the plan requires no approval", "wrote without an approval")


def test_a_standing_approval_is_named_as_one(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    given = plan("standing", "add", path, *STANDING, "--json").run
    tools = ToolRegistry([greet])
    request = RunRequest(
        approver=FixedApprover("reject"), schedule="试运行/nightly", requested_by="schedule of 试运行/nightly", tools=tools
    )
    bound = bind_inputs(validate(load_plan(path), tools), {"who": "ana"})
    assert asyncio.run(execute_plan(bound, run_request=request, offline=True)).status == "completed"
    row = only(plan)
    assert row["requested_by"] == "schedule of 试运行/nightly"
    assert f"standing approval {given['id']}" in row["approvals"]
    assert row["deviations"] == f"standing approval of {ME} used for the plan"


def test_an_unknown_outcome_and_who_resolved_it(plan: Plan) -> None:
    run_id = plan("run", slow(timeout=300), "--offline", "--json").run["id"]
    assert "outcome of slow unknown" in only(plan)["deviations"]
    plan("resolve", run_id, "slow", "done", "--note", "seen in the log")
    resolved = f"outcome of slow was unknown; {ME} (os_user) recorded it as done: seen in the log"
    deviations = only(plan)["deviations"]
    assert resolved in deviations
    assert "outcome of slow unknown" not in deviations


def test_a_failed_step_its_retries_and_a_rollback(plan: Plan) -> None:
    undone = {**WRITE, "rollback": {"tool_name": "run_command", "parameters": {"argv": ["echo", "undone"]}}}
    broken = step("broken", "fail", depends_on=["write"], max_retries=1, retry_delay_ms=0)
    run_id = run(plan, undone, broken, code=1).run["id"]
    assert plan("rollback", run_id, "--offline", "--note", "坏了", *TOOLS).code == 0
    row = only(plan)
    for text in (
        "step broken failed",
        "step broken retried once",
        "rolled back",
        f"rollback requested by {ME} (os_user): 坏了 (by {ME})",
    ):
        assert text in row["deviations"].split("; "), row["deviations"]
    assert row["writing_calls"] == "1"


def test_a_revised_plan_has_its_reviser_as_an_author(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("revise", run_id, document(GREET, step("more", "greet", parameters={"who": "大家"}), **NEEDS_APPROVAL), *TOOLS, "--note", "为大家")
    assert plan("approve", run_id, "--digest", digest_of(plan, run_id)).code == 0
    assert resumed(plan, run_id).code == 0
    row = only(plan)
    assert (row["author"], row["approved_by"]) == (ME, "the requester or an author")
    assert f"plan revised during the run, by {ME}: 为大家" in row["deviations"]


def test_cancelled_rejected_and_waiting_runs_say_so(plan: Plan) -> None:
    cancelled, rejected, open_run = waiting(plan), waiting(plan), waiting(plan)
    plan("cancel", cancelled, "--note", "wrong node")
    plan("reject", rejected, "--note", "not during the sale")
    rows = audited(plan)
    assert rows[cancelled]["deviations"] == f"cancelled: wrong node (by {ME})"
    assert "rejected by" in rows[rejected]["deviations"]
    assert f"plan: rejected by {ME} (os_user)" in rows[rejected]["approvals"]
    assert rows[open_run]["deviations"] == "not ended: pending_approval"
    assert {(row["approved_by"], row["separate_approver"], row["began_at"]) for row in rows.values()} == {("nobody", "no", "never")}


def test_an_answer_to_a_question_is_no_approval(plan: Plan) -> None:
    run_id = asking(plan)
    plan("answer", run_id, "decide", "choice=switch")
    resumed(plan, run_id)
    row = only(plan)
    assert (row["status"], "approved by the requester" in row["deviations"]) == ("completed", False), row
    assert f"step decide: answered by {ME} (os_user)" in row["approvals"]


def test_an_altered_record_is_a_deviation_unless_records_are_not_checked(plan: Plan) -> None:
    run_id = run(plan, GREET).run["id"]
    moved(run_id, days=0)
    row = only(plan)
    assert (row["record"], row["deviations"].startswith("record altered: ")) == ("altered", True)
    (unchecked,) = audited(plan, "--no-verify").values()
    assert (unchecked["record"], unchecked["record_digest"], unchecked["deviations"]) == ("not checked", "", "none")


def test_the_same_seed_draws_the_same_sample_and_the_population_is_complete(plan: Plan) -> None:
    ids = sorted(run(plan, GREET).run["id"] for _ in range(8))
    first = plan("audit", *EVER, "--sample", "3", "-o", "first", "--json").run
    assert (first["population"], first["sample"], first["records"]) == (8, 3, {"intact": 3})
    drawn = sorted(random.Random(first["seed"]).sample(ids, 3))
    assert [row["run_id"] for row in first["runs"]] == drawn
    again = plan("audit", *EVER, "--sample", "3", "--seed", str(first["seed"]), "-o", "again", "--json").run
    assert {**again, "path": "first"} == first
    assert [Path(f"{name}/runs.csv").read_bytes() for name in ("first",)] == [Path("again/runs.csv").read_bytes()]
    population = read("first/population.csv")
    assert [row["run"] for row in population] == ids
    assert sorted(row["run"] for row in population if row["in_sample"] == "yes") == drawn
    assert f"random.Random({first['seed']}).sample(sorted(runs), 3)" in Elements(Path("first/index.html").read_text(encoding="utf-8")).text


def test_a_small_population_is_the_sample_and_the_summary_says_so(plan: Plan) -> None:
    run(plan, GREET)
    result = plan("audit", *EVER, "-o", "pack")
    assert result.out.splitlines()[1:] == [
        "1 run in the period; sample: 1, the whole population",
        "approved by another person 0, by the requester or an author 0, author not recorded 0, no approval required 1, not approved 0",
        "runs with deviations: 0",
        "records: 1 intact",
        "wrote pack/index.html, runs.csv and population.csv",
    ]
    assert result.err == "the sample is every run: the period has no more than 25\n"
    assert {path.stat().st_mode & 0o777 for path in Path("pack").iterdir()} == {0o600}
    assert plan("audit", *EVER, "--sample", "0", "-o", "all").err == ""


def test_only_runs_of_the_plan_and_the_period_are_in_the_population(plan: Plan) -> None:
    old, other = run(plan, GREET).run["id"], run(plan, GREET, name="other").run["id"]
    moved(old, days=40)
    today, before = datetime.now().astimezone(), datetime.now().astimezone() - timedelta(days=40)  # days are local
    for options, expected in (
        (("--from", f"{today:%Y-%m-%d}", "--to", f"{today + timedelta(days=1):%Y-%m-%d}"), [other]),
        (("--from", f"{before:%Y-%m-%d}", "--to", f"{before:%Y-%m-%d}"), [old]),
        (("--from", f"{before + timedelta(minutes=1):%Y-%m-%dT%H:%M:%S%z}", "--to", "2099-01-01"), [other]),
        ((*EVER, "--plan", "试运行"), [old]),
    ):
        found = plan("audit", *options, "-o", "pack", "--force", "--json").run
        assert [row["run_id"] for row in found["runs"]] == expected


def test_pruned_runs_are_listed_and_cannot_be_in_the_sample(plan: Plan) -> None:
    gone = run(plan, GREET).run["id"]
    plan("prune", "--older-than", "0m", "--yes")
    kept = run(plan, GREET).run["id"]
    result = plan("audit", *EVER, "-o", "pack")
    assert "not in the population: 1 run that ended in the period and whose records were pruned" in result.out
    rows = {row["run"]: row for row in read("pack/population.csv")}
    assert list(rows) == [kept, gone]
    assert rows[gone]["status"].startswith("completed, record pruned 20")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--from", "2020-01-01", "--to", "2020-03-31"), "no run was requested from 2020-01-01 00:00:00"),
        ((*EVER, "--plan", "nope"), "no run of `nope` was requested from"),
        (("--from", "2026-09-30", "--to", "2026-07-01"), "--from 2026-09-30 is after --to 2026-07-01"),
        (("--from", "July", "--to", "2026-07-01"), "--from July: write a day (2026-12-31) or a time"),
        ((*EVER, "--sample", "-1"), "--sample -1: write a number of runs, or `all`"),
        ((*EVER, "--sample", "many"), "--sample many: write a number of runs, or `all`"),
    ],
    ids=["no run", "no run of the plan", "reversed", "no date", "negative", "no number"],
)
def test_a_mistake_writes_nothing(plan: Plan, options: tuple[str, ...], message: str) -> None:
    run(plan, GREET)
    before = sorted(Path.cwd().iterdir())
    result = plan("audit", *options, "-o", "pack")
    assert (result.code, message in result.err) == (2, True), result.err
    assert sorted(Path.cwd().iterdir()) == before


def test_a_folder_with_files_is_only_written_with_force(plan: Plan) -> None:
    run(plan, GREET)
    Path("pack").mkdir()
    Path("empty").mkdir()
    Path("pack/notes.txt").write_text("mine", encoding="utf-8")
    refused = plan("audit", *EVER, "-o", "pack")
    assert (refused.code, "pack is not empty: give another name, or --force" in refused.err) == (2, True)
    assert "is a file" in plan("audit", *EVER, "-o", "pack/notes.txt").err
    assert "no/pack cannot be written" in plan("audit", *EVER, "-o", "no/pack").err
    assert [plan("audit", *EVER, "-o", name, *more).code for name, more in (("empty", ()), ("pack", ("--force",)))] == [0, 0]
    assert sorted(path.name for path in Path("pack").iterdir()) == ["index.html", "notes.txt", "population.csv", "runs.csv"]
    assert not [path for path in Path.cwd().iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "＝1+1"])
def test_no_cell_of_a_csv_file_is_a_formula(plan: Plan, name: str) -> None:
    run(plan, GREET, name=name)
    row = only(plan)
    (listed,) = read("pack/population.csv")
    assert (row["plan"], listed["plan"]) == (f"'{name}", f"'{name}")
    cells = [cell for cells in (row, listed) for cell in cells.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠"))]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(name, marks=[] if number % 4 == 0 else pytest.mark.thorough)
        for number, name in enumerate(name for name in PAYLOADS if name not in REFUSED)
    ],
)
def test_no_text_becomes_markup_in_the_page(plan: Plan, payload: str) -> None:
    run_id = waiting(plan, name=PAYLOADS[payload] or "x")
    plan("cancel", run_id, "--note", PAYLOADS[payload] or "x")
    audited(plan)
    page = Elements(Path("pack/index.html").read_text(encoding="utf-8"))
    assert page.tags <= ALLOWED
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "href")}


def test_no_secret_is_in_the_pack(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOK", "canary-Sx9-secret-42!")
    use = step("use", "run_command", parameters={"argv": ["sh", "-c", "echo $TOK; exit 3"], "env": {"TOK": "${{ secrets.tok }}"}})
    run_id = run(plan, use, code=1, name="uses-tok").run["id"]
    plan("rollback", run_id, "--offline", "--note", "it was canary-Sx9-secret-42!", *TOOLS)
    audited(plan)
    text = "".join(path.read_text(encoding="utf-8") for path in Path("pack").iterdir())
    assert ("canary" in text, "step use failed" in text) == (False, True)


def test_the_pack_is_in_english_whoever_writes_it(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plan, GREET)
    monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", "zh")
    assert plan("audit", *EVER, "-o", "pack").code == 0
    assert read("pack/runs.csv")[0]["steps"] == "1: 1 completed"
    assert '<html lang="en">' in Path("pack/index.html").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_pack_of_a_store_on_postgresql(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer, migrated: str
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", postgres_server.url(migrated))
    try:
        ids = [run(plan, GREET).run["id"], run(plan, WRITE).run["id"], waiting(plan)]
        plan("cancel", ids[2], "--note", "wrong node")
        rows = audited(plan)
        assert list(rows) == sorted(ids)
        assert [rows[run_id]["deviations"] for run_id in ids] == ["none", "wrote without an approval", f"cancelled: wrong node (by {ME})"]
        assert {row["record"] for row in rows.values()} == {"intact"}
    finally:
        postgres_server.empty(migrated)
