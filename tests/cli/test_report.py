"""Tests of `plan graph` and `plan report`: the picture of a plan and of a run, and the report of a run in one HTML file."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.cli.conftest import CommandResult, Plan
from tests.cli.gated import signer
from tests.cli.test_questions import asking
from tests.cli.test_run import TOOLS, document, step
from tests.cli.test_show_run import restart
from tests.text.payloads import PAYLOADS

__all__ = ["signer"]

WHO = {"who": "世界"}
DIAMOND = [
    step("start", "greet", description="开始", parameters=WHO),
    step("left", "greet", depends_on=["start"], parameters=WHO),
    step("right", "get_lost", depends_on=["start"], requires_approval=True),
    step("end", "greet", depends_on=["left", "right", "start"], parameters=WHO),
]
TREE = """\
试运行
├─ start: 开始 (read)
├─ left: greet (read)
├─ right: get_lost (write, asks), after start
└─ end: greet (read), after left, right
always, at the end
└─ cleanup: greet (read)
"""
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "section", "h1", "h2", "p", "b", "code", "pre", "ul", "li"),
    *("table", "tr", "td", "th", "details", "summary", "div", "svg", "defs", "marker", "path", "pattern", "rect", "g", "text", "line"),
}

REFUSED = ("NUL", "expression", "expression in text", "secret", "unclosed", "blanks")
"""Texts that no plan may have as a description and a parameter, or no run as an input."""


class Elements(HTMLParser):
    """The elements of an HTML document, their attributes, and its text."""

    def __init__(self, document: str) -> None:
        """Parse `document`."""
        super().__init__()
        self.tags, self.attributes, self.text = set[str](), set[str](), ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the element."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        """Note the text."""
        self.text += data


def report_of(plan: Plan, run_id: str) -> str:
    """Return the report of a run."""
    written = plan("report", run_id, "-o", "run.html", "--force")
    assert (written.code, written.out) == (0, "run.html\n")
    return Path("run.html").read_text(encoding="utf-8")


def test_a_tree_names_what_each_step_waits_for_unless_it_is_the_line_before(plan: Plan) -> None:
    path = document(*DIAMOND, **{"finally": [step("cleanup", "greet", parameters=WHO)]})
    assert plan("graph", path, *TOOLS).out == TREE


def drawn(result: CommandResult) -> str:
    """Return the SVG that a command printed."""
    assert (result.code, result.out.startswith("<svg "), result.out.endswith("</svg>\n")) == (0, True, True), result.err
    return result.out


def test_a_picture_has_a_box_for_each_step_and_an_arrow_for_each_dependency(plan: Plan) -> None:
    picture = drawn(plan("graph", document(*DIAMOND), "--format", "svg", *TOOLS))
    assert (picture.count("<rect "), picture.count("marker-end="), picture.count(' asks write"')) == (4, 4, 1)
    assert "<title>right: get_lost: asks first</title>" in picture


def test_the_picture_of_a_run_has_the_ends_of_its_steps_and_items(plan: Plan) -> None:
    run_id = restart(plan, rolls_back=True)
    picture = drawn(plan("graph", run_id, "--format", "svg"))
    assert [text in picture for text in ("✓ look", "✗ nodes", "↶ web-1  ↶ ✓", "✗ web-3  ↶ ✗", "- notify")] == [True] * 5
    tree = plan("graph", run_id).out
    assert "│  ↶ 数据库-2  ↶ drain  ✓ healthy\n" in tree
    nodes = plan("graph", run_id, "--json").run["nodes"]
    assert [(node["id"], node["mark"], node["after"]) for node in nodes if node["parent"] is None] == [
        ("look", "done", []),
        ("nodes", "failed", ["look"]),
        ("notify", "skipped", ["nodes"]),
    ]


def test_mermaid_is_the_flowchart_that_export_writes(plan: Plan) -> None:
    path = document(*DIAMOND)
    texts = {plan(*arguments, "--format", "mermaid", *TOOLS).out for arguments in (("graph", path), ("export", path))}
    assert [text.startswith("flowchart TD\n") for text in texts] == [True]


def test_a_picture_is_written_to_a_file_and_replaces_none_without_force(plan: Plan) -> None:
    path = document(*DIAMOND)
    assert plan("graph", path, "--format", "svg", "-o", "plan.svg").err == "wrote plan.svg\n"
    refused = plan("graph", path, "--format", "svg", "-o", "plan.svg")
    assert (refused.code, "plan.svg already exists" in refused.err) == (2, True)


def test_a_report_says_what_happened_and_shows_the_steps_the_time_and_the_record(plan: Plan) -> None:
    run_id = restart(plan, rolls_back=False)
    page = Elements(report_of(plan, run_id))
    head = page.text[page.text.index("✗ Partial") :]
    assert head.startswith("✗ Partial: rolling-restart (restart web-1, 数据库-2, web-3)")
    for text in (
        "nodes failed: web-3: healthy failed",
        "done, and not undone: drain[web-1], drain[数据库-2], drain[web-3]",
        f"plan resume {run_id} --offline resumes the run",
        "connect to web-3 port 8080 refused",
        "healthy[web-3], attempt 1: failed",
        "in the plan at steps[1].steps[1]",
        "The record is intact: ",
    ):
        assert text in head, text
    assert page.tags <= ALLOWED
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "href")}


def test_a_report_bounds_the_calls_that_a_run_left_behind(plan: Plan) -> None:
    path = document(
        step("each", "run_command", parameters={"argv": ["true"]}, for_each="${{ inputs.hosts }}"),
        step("end", "fail", depends_on=["each"]),
        inputs={"hosts": {"type": "array", "default": [f"主机-{number}" for number in range(1, 58)]}},
    )
    run = plan("run", path, "--offline", "--json", "--yes", *TOOLS).run
    text = Elements(report_of(plan, run["id"])).text
    assert re.findall(r"done, and not undone: .*(each\[主机-20\] and 37 more)", text) == ["each[主机-20] and 37 more"]


def test_a_report_of_a_waiting_run_shows_its_question_and_its_wait(plan: Plan) -> None:
    page = Elements(report_of(plan, asking(plan)))
    assert "⏸ Waiting at decide (no process waits): 试运行" in page.text
    assert "Switch to 东站?" in page.text
    assert "decide waited for an answer" in page.text


def test_a_plan_has_no_report(plan: Plan) -> None:
    result = plan("report", document(*DIAMOND))
    assert (result.code, "is a plan: `plan graph` draws it" in result.err) == (2, True)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(name, marks=[] if number % 4 == 0 else pytest.mark.thorough)
        for number, name in enumerate(name for name in PAYLOADS if name not in REFUSED)
    ],
)
def test_no_text_becomes_markup_in_a_report_or_a_picture(plan: Plan, payload: str) -> None:
    text = PAYLOADS[payload]
    hostile = step("greet", "greet", description=text, parameters={"who": text})
    path = document(hostile, inputs={"text": {"type": "string"}}, description=text or "x")
    run = plan("run", path, "--offline", "--yes", "--json", "--input", f"text={text}", *TOOLS)
    for page in (report_of(plan, run.run["id"]), plan("graph", path, "--format", "svg", *TOOLS).out):
        found = Elements(page)
        assert found.tags <= ALLOWED
        assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href")}


@pytest.mark.thorough
def test_a_report_of_a_thousand_steps_stays_under_three_megabytes(plan: Plan) -> None:
    steps = [step(f"s{n}", "greet", depends_on=[f"s{n - 3}"] if n > 2 else [], parameters=WHO) for n in range(1000)]
    run = plan("run", document(*steps), "--offline", "--yes", "--json", *TOOLS).run
    page = report_of(plan, run["id"])
    assert len(page.encode()) < 3_000_000
    assert page.count("<details") == 1000
