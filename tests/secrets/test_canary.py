"""Tests that a secret leaked by tools in every possible way is found nowhere after the run."""

import json
import logging
import sqlite3
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from plan_adapter import ExecutionPlan, PlanStore
from plan_adapter.errors import InvalidPlanError
from plan_adapter.execution.printing import captured_prints
from plan_adapter.gates import Approval
from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.record import PlanRun
from plan_adapter.runs import Hooks, aresume_run, arun_plan
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import read_document
from plan_adapter.validation import bind_inputs, validate
from tests.secrets import leaks
from tests.secrets.encodings import encodings, found_in

CANARY = 'Kanarie/ vögel+"7"\\x=&token'


class ApproveAll:
    """An approver that approves and records every request."""

    def __init__(self) -> None:
        self.requests = list[ApprovalRequest]()

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        return answer_to(request, decision="approve", by="ana", known_by="unverified")


def plan_of(text: str) -> ExecutionPlan:
    """Return the plan of a document."""
    plan, problems = read_document(text)
    assert plan is not None and problems == []
    return plan


async def dump(url: str) -> str:
    """Return every row of a store as text."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            return "\n".join(connection.iterdump())
    connection = await asyncpg.connect(url)
    try:
        names = [row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        rows = [await connection.fetch(f'SELECT t::text FROM "{name}" t') for name in names]
        return "\n".join(row[0] for found in rows for row in found)
    finally:
        await connection.close()


def files(folder: Path) -> Iterable[tuple[Path, bytes]]:
    """Yield every file below `folder`."""
    yield from ((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())


NAMED_BY_AN_INPUT = leaks.PLAN.replace("secrets.canary", "inputs.token") + "inputs: {token: {type: secret}}\n"


@pytest.mark.parametrize(("text", "inputs"), [(leaks.PLAN, {}), (NAMED_BY_AN_INPUT, {"token": "canary"})], ids=["written", "named"])
async def test_a_canary_secret_reaches_only_the_tools(
    text: str,
    inputs: dict[str, str],
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_CANARY", CANARY)
    caplog.set_level(logging.DEBUG)
    leaks.seen.clear()
    reported, approver = list[str](), ApproveAll()

    def report(*values: Any) -> None:
        reported.append(repr(values))

    hooks = Hooks(on_step_start=report, on_step_complete=report, on_step_failed=report, on_plan_complete=report, on_gate_open=report)
    run_request = RunRequest(approver=approver, hooks=hooks, listener=lambda event: reported.append(repr(event)), tools=leaks.tools())
    bound = bind_inputs(validate(plan_of(text), leaks.tools()), inputs)
    async with PlanStore(store_url) as store:
        with captured_prints():
            run = await execute_plan(bound, run_request=run_request, store=store, offline=True)
        attempts, receipts = await store.attempts(run.id), await store.receipts(run.id)

    # The tools received the secret, all of them ended, and every way of leaking it was used.
    assert leaks.seen.count(CANARY) == 3 and f"token={CANARY}" in leaks.seen
    ends = {step.id: step.status.value for step in run.steps}
    assert ends == {name: "failed" if name in ("fail", "misfit", "command") else "completed" for name in ends}
    assert "printed ***" in "".join(reported)
    assert "logged elsewhere: {'token': '***'}" in caplog.text and "ValueError: raised with ***" in caplog.text
    assert run.step("later").result == "*** token=***"
    assert [attempt.parameters for attempt in attempts if attempt.step_id == "leak"] == [{"token": "${{ secrets.canary }}"}]
    (request,) = approver.requests
    assert "`${{ 'token=' + secrets.canary }}`" in request.text
    assert "uses the secrets: `canary`" in request.text
    large = run.step("grow").result
    assert isinstance(large, dict) and "8999 ***" in Path(str(large["path"])).read_text()

    everything = {
        "the run": repr(run) + json.dumps(asdict(run), default=str, ensure_ascii=False),
        "the record": repr(attempts) + repr(receipts),
        "listener and hooks": "\n".join(reported),
        "the gate": request.text,
        "logs": caplog.text + repr([vars(record) for record in caplog.records]),
        "stdout and stderr": "".join(capfd.readouterr()),
        "the store": await dump(store_url),
    }
    found = {place: found_in(text, CANARY) for place, text in everything.items()}
    assert found == {place: [] for place in everything}
    forms = {name: form.encode() for name, form in encodings(CANARY).items()}
    assert [(path, name) for path, content in files(tmp_path) for name, form in forms.items() if form in content] == []


def one_step(tool_name: str, **fields: Any) -> ExecutionPlan:
    """Return a plan of one step that uses `secrets.canary`."""
    plan = ExecutionPlan(description="One step")
    plan.add_step(tool_name, "Do it", {"token": "${{ secrets.canary }}"}, id="one", **fields)
    plan.options.require_approval = False
    return plan


async def run_one(plan: ExecutionPlan, tmp_path: Path, **options: Any) -> tuple[PlanRun, int]:
    """Return the run of `plan` offline, and how many attempts it recorded."""
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        run = await arun_plan(plan, tools=leaks.tools(), store=store, offline=True, **options)
        return run, len(await store.attempts(run.id))


def after_a_write(plan: ExecutionPlan) -> ExecutionPlan:
    """Return `plan` with a write before its step, which creates the secrets."""
    plan.add_step("guarded", "First", {"token": "x"}, id="before", creates_secrets=["canary", "later"])
    plan.steps[0].depends_on = ["before"]
    return plan


async def test_a_missing_secret_refuses_the_run_before_anything_is_stored(tmp_path: Path) -> None:
    plan = one_step("guarded")
    plan.add_step("guarded", "Also", {"token": "${{ secrets.other }}"}, id="two")
    with pytest.raises(InvalidPlanError) as refused:
        await run_one(plan, tmp_path)
    assert [(problem.code, problem.at) for problem in refused.value.problems] == [
        ("missing-secret", "steps[0].parameters"),
        ("missing-secret", "steps[1].parameters"),
    ]
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        assert await store.runs() == []


async def test_a_secret_that_its_step_did_not_create_fails_the_step_that_uses_it_before_the_call(tmp_path: Path) -> None:
    run, attempts = await run_one(after_a_write(one_step("guarded", max_retries=3)), tmp_path)
    assert attempts == 1
    assert run.step("one").error is not None
    assert run.step("one").error.startswith(
        "there is no secret `canary`; places checked: the environment variable PLAN_ADAPTER_SECRET_CANARY; "
    )
    assert "no Prefect server is known" in run.step("one").error


async def test_a_call_with_a_missing_secret_opens_no_gate(tmp_path: Path) -> None:
    approver = ApproveAll()
    run, attempts = await run_one(after_a_write(one_step("guarded", requires_approval=True)), tmp_path, approver=approver)
    assert (attempts, approver.requests, run.step("one").status.value) == (1, [], "failed")


async def test_the_approved_content_does_not_depend_on_the_secret_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = list[str]()
    for value in ("first-value", "second-value"):
        monkeypatch.setenv("PLAN_ADAPTER_SECRET_CANARY", value)
        approver = ApproveAll()
        await run_one(one_step("guarded", requires_approval=True), tmp_path, approver=approver)
        digests += [request.approval_digest for request in approver.requests]
    assert len(digests) == 2 and len(set(digests)) == 1


async def test_a_secret_is_converted_to_the_parameter_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_CANARY", "81726354")
    plan = ExecutionPlan(description="One step")
    plan.add_step("guarded", "Do it", {"token": "x", "at": "${{ secrets.canary }}"}, id="one")
    plan.options.require_approval = False
    run, _ = await run_one(plan, tmp_path)
    assert run.step("one").result == "x"


async def test_output_printed_outside_a_log_is_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_CANARY", CANARY)
    before = sys.stdout, sys.stderr, logging.getLogRecordFactory()
    await run_one(one_step("leak"), tmp_path)
    assert before == (sys.stdout, sys.stderr, logging.getLogRecordFactory())
    out, err = capsys.readouterr()
    assert "printed ***" in out
    assert found_in(out + err, CANARY) == []


async def test_a_resumed_run_looks_up_its_secrets_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = after_a_write(one_step("leak"))
    plan.add_step("guarded", "Then this", {"token": "${{ secrets.later }}"}, id="two", depends_on=["one"])
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_CANARY", CANARY)
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        run = await arun_plan(plan, tools=leaks.tools(), store=store, offline=True)
        assert (run.step("one").status.value, run.step("two").status.value) == ("completed", "failed")
        monkeypatch.setenv("PLAN_ADAPTER_SECRET_LATER", "another-value")
        run = await aresume_run(run.id, tools=leaks.tools(), store=store, offline=True)
    assert run.step("one").carried and run.step("two").result == "***"
    assert leaks.seen[-1] == "another-value"
