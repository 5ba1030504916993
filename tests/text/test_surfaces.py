"""Tests that no fact differs between the surfaces that show it: `plan show`, the report, the artifact, the tree, gates, previews, pages."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_adapter.cli import output
from plan_adapter.cli.run_view import run_lines
from plan_adapter.engine.form import form_description
from plan_adapter.gates.policy import effective_policy
from plan_adapter.gates.terminal import gate_summary
from plan_adapter.local.settings import Settings
from plan_adapter.model.options import Effect
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.model.readable import plain
from plan_adapter.model.triggers import TriggerRecord
from plan_adapter.runbooks.deploy import _description  # pyright: ignore[reportPrivateUsage]
from plan_adapter.text.plan_graph import GraphNode, PlanGraph, tree_text
from plan_adapter.text.plan_text import plan_gate_text
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.text.report import RunReport, report_html
from plan_adapter.text.run_facts import SHAPES, CallFacts, ItemFacts, LeftBehind, Mark, RunAccount, RunFacts, StepFacts
from plan_adapter.text.run_markdown import run_markdown
from tests.cli.builders import NOW, a_step
from tests.engine.gates import request_of
from tests.gates.plans import bound

WORDS = st.sampled_from(["exit code 7", "连接被拒绝", "HTTP 200", "3 rows", "timed out"])
MARKS = st.sampled_from([*Mark])
CALLS = st.builds(CallFacts, st.sampled_from(["drain", "restart", "健康检查"]), MARKS)
ITEMS = st.builds(ItemFacts, st.sampled_from(["web-1", "数据库-2", "web-3"]), MARKS, st.lists(CALLS, max_size=3).map(tuple), WORDS)
LEFT = st.builds(LeftBehind, st.sampled_from(["done, and not undone", "rollback not completed"]), st.just(("drain[web-1]", "tell")))


@st.composite
def runs(draw: st.DrawFn) -> RunFacts:
    """Return the facts of a run of one to five steps."""
    steps = [
        StepFacts(f"step{number}", draw(MARKS), "run_command", draw(WORDS), items=tuple(draw(st.lists(ITEMS, max_size=3))))
        for number in range(draw(st.integers(1, 5)))
    ]
    return RunFacts(
        id="0192f0c4-0000-7000-8000-000000000001",
        name="发布流程",
        run_name="release in 上海",
        mark=draw(MARKS),
        outcome="Partial",
        cause=draw(st.none() | WORDS),
        requested_by="ana",
        started_at=NOW,
        ended_at=NOW,
        duration_ms=1500,
        progress="1 of 2 steps done",
        inputs={"site": "上海"},
        outputs={"url": "http://a"},
        steps=tuple(steps),
        left_behind=tuple(draw(st.lists(LEFT, max_size=2))),
    )


class Text(HTMLParser):
    """The text of an HTML document, without its style and pictures."""

    def __init__(self, document: str) -> None:
        """Parse `document`."""
        super().__init__()
        self.parts, self._hidden = list[str](), 0
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Skip the style."""
        self._hidden += tag == "style"

    def handle_endtag(self, tag: str) -> None:
        """Go on after the style."""
        self._hidden -= tag == "style"

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        if not self._hidden:
            self.parts.append(data)


def surfaces(facts: RunFacts) -> dict[str, str]:
    """Return the text of a run on each surface, on one line, with all marks as shapes."""
    account = RunAccount(facts, "Partial", asked=(), next_text=None, approvals=(), notes=(), now=NOW)
    steps = [a_step(step.id) for step in facts.steps]
    report = RunReport(account, "intact", "d" * 64, steps, places={}, calls={}, rounds={}, picture="", timeline="")
    nodes = [GraphNode(step.id, step.what, None, False, False, None, (), step.mark, step.detail, step.items) for step in facts.steps]
    texts = {
        "show": "\n".join(f"{'' if line.mark is None else line.mark[0]} {line.label or ''} {line.text}" for line in run_lines(account)),
        "report": " ".join(Text(report_html(report)).parts),
        "artifact": plain(run_markdown(facts)),
        "tree": tree_text(PlanGraph(facts.name, tuple(nodes))),
    }
    return {name: re.sub(r"\s+", " ", text.replace("`", "")) for name, text in texts.items()}


@settings(max_examples=60)
@given(runs())
def test_every_surface_of_a_run_shows_the_same_facts(facts: RunFacts) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(output, "is_unicode", lambda _: True)
        shown = surfaces(facts)
    for surface, text in shown.items():
        for step in facts.steps:
            assert f"{SHAPES[step.mark]} {step.id}" in text, surface
            assert step.detail in text, surface
            for item in step.items:
                assert f"{SHAPES[item.mark]} {item.label}" in text, surface
                assert all(f"{SHAPES[call.mark]} {call.step_id}" in text for call in item.calls), surface
                assert item.detail in text, surface
    for surface in ("show", "report", "artifact"):
        text = shown[surface]
        assert f"{SHAPES[facts.mark]} Partial: 发布流程" in text, surface
        assert facts.cause is None or facts.cause in text, surface
        assert all(f"{left.what}: {', '.join(left.calls)}" in text for left in facts.left_behind), surface
        for fact in ("上海", "http://a", "ana", facts.progress):
            assert fact in text, (surface, fact)


TOOLS: dict[Effect, str] = {"read": "http_get", "idempotent_write": "write_file", "write": "run_command"}
PARAMETERS = {"http_get": {"url": "http://a"}, "write_file": {"path": "a", "content": "b"}, "run_command": {"argv": ["x"]}}
UNDO = Rollback(tool_name="run_command", parameters={"argv": ["undo"]})


@st.composite
def plans(draw: st.DrawFn) -> ExecutionPlan:
    """Return a plan of one to twelve steps with different effects, some of which can be undone."""
    steps = list[Step]()
    for number in range(draw(st.integers(1, 12))):
        name = TOOLS[draw(st.sampled_from([*TOOLS]))]
        undo = UNDO if name != "http_get" and draw(st.booleans()) else None
        steps.append(Step(id=f"s{number}", tool_name=name, parameters={**PARAMETERS[name]}, rollback=undo))
    return ExecutionPlan(name="plan", description="A plan", steps=steps)


@settings(max_examples=60)
@given(plans())
def test_every_surface_of_a_plan_names_the_same_steps_that_cannot_be_undone(plan: ExecutionPlan) -> None:
    final = {step.id for step in plan.steps if step.tool_name != "http_get" and step.rollback is None}
    approved = bound(plan)
    preview = preview_plan(approved.validated, inputs={}, approval_digest=None, requires_approval=True)
    text = plan_gate_text(approved, gated=(), approval_digest="d" * 64, expires_ms=0)
    request = request_of(text=text)
    page = _description(approved.validated, effective_policy(Settings()))
    first = text.partition("\n### ")[0]
    shown = {
        "preview": re.findall(r"cannot be undone: (.*?)\*?\*?\n", preview_text(preview))[0],
        "preview --json": ", ".join(map(str, preview.as_json()["cannot_be_undone"])),
        "gate": first.partition("**Cannot be undone:**")[2].partition("**Can be undone")[0].partition("\n\nAlso")[0],
        "form": form_description(request).partition("### What cannot be undone")[2].partition("###")[0],
        "deployment": "".join(re.findall(r"\*\*Cannot be undone\*\*: (.*)", page)),
    }
    for surface, names in shown.items():
        assert set(re.findall(r"\bs\d+\b", names)) == final, (surface, names)
    assert all(f"{step}" in gate_summary(request) for step in final)


@settings(max_examples=1)
@given(runs())
def test_the_report_in_prefect_says_how_many_events_came_for_the_run(facts: RunFacts) -> None:
    shown = run_markdown(replace(facts, trigger=TriggerRecord(facts.id, "alertmanager.alert.firing", "e1", 99)))
    assert "started by the event `alertmanager.alert.firing` (e1); so far 99 events came for this run" in shown
    assert "event" not in run_markdown(facts)
