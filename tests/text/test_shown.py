"""Tests of payloads where people read, write or store text: nothing is hidden, misplaced or changed."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.cli.app import main
from plan_adapter.engine.form import NotAnAnswerError, parse_answer
from plan_adapter.engine.outgoing import artifact_key
from plan_adapter.model.approvals import Approval
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.plans import format_plan
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import dump_plan, load_plan
from plan_adapter.store.proof.verification import verify
from plan_adapter.text import pictures
from plan_adapter.text.gate_text import without_picture
from plan_adapter.validation import bind_inputs, validate
from tests.cases import for_each
from tests.exports import document_of
from tests.text.conftest import PayloadRun
from tests.text.payloads import HIDING, PAYLOADS, PRODUCT, nothing_was_interpreted

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
ACTIVE = re.compile(r"<(script|img|a|iframe)\b|\u202e")
WITHOUT_NUL = {name: text for name, text in PAYLOADS.items() if "\0" not in text}


@tool(effect="read")
def take(whole: str) -> str:
    """Return what it was given."""
    return whole


def plan_about(text: str) -> ExecutionPlan:
    """Return a plan with `text` in every field that takes free text."""
    plan = ExecutionPlan(name=text, description=text if text.strip() else "empty", metadata={"text": text, "list": [text]})
    plan.add_step("take", text, {"whole": "x"}, id="only", metadata={"text": text})
    plan.options.require_approval = False
    return plan


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder; the home with its store is beside it."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "never")
    return work


def mermaid(text: str) -> str:
    return pictures.mermaid(plan_about(text).steps, {"only": ()}, effects={"only": "read"}, gated=())


SHOWN: dict[str, Callable[[str], str]] = {
    "plan as Markdown": lambda text: format_plan(plan_about(text)),
    "picture": mermaid,
    "gate at a terminal": lambda text: without_picture(f"> {one_line(text)}\n"),
    "one line": one_line,
}


@for_each(payload=WITHOUT_NUL, place=SHOWN)
def test_displayed_text_holds_no_hiding_characters(place: str, payload: str) -> None:
    assert not HIDING & set(SHOWN[place](PAYLOADS[payload])), "neither a terminal nor a reader is deceived"


@for_each(payload=WITHOUT_NUL)
def test_plan_markdown_has_no_active_content(payload: str) -> None:
    page = MARKDOWN.render(format_plan(plan_about(PAYLOADS[payload])))
    assert not ACTIVE.search(page), page


@for_each(payload=WITHOUT_NUL)
def test_text_stays_in_its_node_of_the_diagram(payload: str) -> None:
    lines = mermaid(PAYLOADS[payload]).splitlines()
    assert [line.strip().split("[")[0].split(" ")[0] for line in lines] == ["flowchart", "s1", "classDef", "classDef", "classDef"]
    assert lines[1].count('"') == 2


@for_each(payload=PAYLOADS)
def test_a_plan_document_reads_back_as_the_same_data_or_is_refused(payload: str) -> None:
    plan = plan_about(PAYLOADS[payload])
    if payload == "NUL":
        with pytest.raises(InvalidPlanError, match="NUL"):
            validate(plan, ToolRegistry([take]))
        return
    again = load_plan(dump_plan(plan))
    assert again == plan
    assert (again.metadata, again.steps[0].description) == (plan.metadata, PAYLOADS[payload])


@for_each(payload=PAYLOADS)
def test_arbitrary_text_is_not_accepted_as_a_plan(payload: str, home: Path) -> None:
    (home / "plan.yaml").write_text(PAYLOADS[payload], encoding="utf-8")
    with pytest.raises(InvalidPlanError):
        load_plan(home / "plan.yaml")
    assert nothing_was_interpreted(home)


@for_each(payload=PAYLOADS, field=["decision", "approver", "note", "code", "signature"])
def test_form_text_is_never_interpreted_as_a_decision(field: str, payload: str) -> None:
    text = PAYLOADS[payload]
    raw: dict[str, object] = {"decision": "reject", "approver": "ana", "note": "", field: text}
    try:
        answer = parse_answer(raw)
    except NotAnAnswerError as error:
        assert not HIDING & set(str(error))
        assert field in ("decision", "approver", "code"), error
        return
    assert answer.decision == "reject"
    submitted = {"approver": answer.by, "note": answer.note, "code": answer.code or "", "signature": answer.signature or ""}[field]
    assert submitted == text or submitted == text.strip()


@for_each(payload=PAYLOADS)
def test_a_form_answer_that_is_a_prefect_object_is_refused(payload: str) -> None:
    with pytest.raises(NotAnAnswerError):
        parse_answer({"decision": {"__prefect_kind": "jinja", "template": PAYLOADS[payload]}, "approver": "ana"})


@for_each(payload=PAYLOADS)
def test_an_artifact_key_holds_only_letters_digits_and_dashes(payload: str) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", artifact_key(f"plan-{PAYLOADS[payload]}"))


@pytest.fixture(scope="module")
def stored_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PlanRun, Approval, dict[str, object]]]:
    """For each payload: a stored run of a plan with it, an approval with it as note, and the exported record."""
    url = f"sqlite:///{tmp_path_factory.mktemp('kept')}/plans.db"

    async def work() -> dict[str, tuple[PlanRun, Approval, dict[str, object]]]:
        found = dict[str, tuple[PlanRun, Approval, dict[str, object]]]()
        tools = ToolRegistry([take])
        async with PlanStore(url) as store:
            for payload, text in WITHOUT_NUL.items():
                bound = bind_inputs(validate(plan_about(text), tools))
                run = await execute_plan(bound, run_request=RunRequest(tools=tools, requested_by=text), store=store, offline=True)
                note = Approval(f"of {payload}", "d" * 64, "reject", text, "unverified", datetime.now(UTC), note=text, run_id=run.id)
                await store.add_approval(note)
                given = next(approval for approval in await store.approvals(run.id) if approval.id == note.id)
                found[payload] = (await store.run(run.id), given, await store.export(run.id))
        return found

    return asyncio.run(work())


@for_each(payload=WITHOUT_NUL)
def test_the_store_returns_text_unchanged(stored_runs: dict[str, tuple[PlanRun, Approval, dict[str, object]]], payload: str) -> None:
    text, (run, approval, _) = PAYLOADS[payload], stored_runs[payload]
    assert run.status is PlanStatus.COMPLETED
    named = text or "empty"
    assert (run.name, run.steps[0].description, run.metadata) == (named, text, {"text": text, "list": [text]})
    assert (approval.note, approval.by, run.requested_by) == (text, text, text)


@for_each(payload=WITHOUT_NUL)
def test_an_exported_record_verifies_after_reading_its_file(
    stored_runs: dict[str, tuple[PlanRun, Approval, dict[str, object]]], payload: str
) -> None:
    document = json.loads(json.dumps(stored_runs[payload][2], ensure_ascii=False))
    assert document == stored_runs[payload][2]
    assert verify(document).ok


def test_the_command_line_neither_renders_nor_runs_a_text(
    payload_run: PayloadRun, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", payload_run.url)
    for arguments in (["runs"], ["show", payload_run.run.id], ["logs", payload_run.run.id], ["verify", payload_run.run.id]):
        capsys.readouterr()
        main(arguments)
        output = capsys.readouterr()
        assert output.out, arguments
        assert not HIDING & set(output.out + output.err), arguments
        assert PRODUCT not in output.out + output.err, arguments
    assert nothing_was_interpreted(home, payload_run.folder)


def test_an_exported_file_of_all_payloads_verifies(
    payload_run: PayloadRun, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", payload_run.url)
    assert main(["export", payload_run.run.id, "--output", "run.jsonl"]) == 0
    document = document_of((home / "run.jsonl").read_text(encoding="utf-8"))
    results = [json.loads(row["result"]) for row in document["receipts"] if row["step_id"] == "give"]
    assert results == [list(PAYLOADS.values())]
    assert main(["verify", "run.jsonl"]) == 0
    assert not HIDING & set(capsys.readouterr().out)
    assert nothing_was_interpreted(home)


def test_a_nul_in_a_note_is_stored_as_an_escape(home: Path) -> None:
    async def work() -> str:
        tools = ToolRegistry([take])
        async with PlanStore() as store:
            run = await execute_plan(
                bind_inputs(validate(plan_about("x"), tools)), run_request=RunRequest(tools=tools), store=store, offline=True
            )
            note = Approval("note", "d" * 64, "reject", "ana", "unverified", datetime.now(UTC), note="x", run_id=run.id)
            await store.add_approval(replace(note, note=PAYLOADS["NUL"]))
            assert verify(await store.export(run.id)).ok
            return next(approval.note for approval in await store.approvals(run.id) if approval.id == "note")

    assert asyncio.run(work()) == "before\\x00after"
