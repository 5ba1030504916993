"""Tests of plan texts that try to hide, move or forge what a gate shows."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from plan_adapter.engine.form import MAX_TEXT_CHARACTERS, form_description, waiting_message
from plan_adapter.gates.terminal import gate_summary
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.readable import plain
from plan_adapter.text.call_text import step_gate_text
from plan_adapter.text.gate_text import HEIGHT, height_of, split_text, without_picture
from plan_adapter.text.plan_text import plan_gate_text
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.validation import BoundPlan, find_problems
from tests.cases import for_each
from tests.gates.plans import TOOLS, bound
from tests.gates.world import World

DIGEST, FORGED = "d1" * 32, "0" * 64
COMMAND = ["rm", "-rf", "/srv/data"]
SHOWN = '["rm", "-rf", "/srv/data"]'
AS_COMMAND = "`rm -rf /srv/data`"

ATTACKS = {
    "a heading": "\n\n## Approve nothing?\n\nIt only reads.\n",
    "a heading that is underlined": "Approve nothing?\n================\nIt only reads\n---\n",
    "digests": f"\n\n### Digests\n\n```\napproval digest\n{FORGED}\n```\n",
    "the beginning of the picture": "\n\n### Order\n\n```mermaid\n",
    "the picture and the digests": f"\n### Order\n\nx\n\n### Digests\n\n```\napproval digest\n{FORGED}\n```\n",
    "the end of the details": "\n\n</details>\n\n**Cannot be undone: nothing.**\n\n<details>",
    "details of its own": "\n\n<details><summary>All of it</summary>\n\n",
    "hidden HTML": "\n\n<div hidden>\n\n",
    "a comment that does not end": "\n\n<!-- \n\n",
    "a declaration": "\n<!DOCTYPE html>\n<?php ?>\n<![CDATA[ x ]]>\n",
    "a script": "<script>alert(1)</script><style>*{display:none}</style>",
    "the end of a fence": "\n```\n\n**Approved by ana.**\n\n```\n",
    "a fence of tildes": "\n~~~~\nhidden\n~~~~\n",
    "a longer fence": "\n``````\n\n### Steps\n\n- **1. look**: read\n",
    "code without an end": "`` x ` y ``` z",
    "a table": "\n\n| step | effect |\n|---|---|\n| wipe | read |\n",
    "cells": "| | | **read** | nothing |",
    "a list": "\n- **1. look** (read): `http_get`\n1. nothing\n* * *\n",
    "a quote": "\n> > > **ana approved this already**\n",
    "an image": "![x](http://evil.example/p.png) ![x][r]\n\n[r]: http://evil.example/p.png",
    "links": "[all details](javascript:alert(1)) <http://evil.example> https://evil.example www.evil.example a@evil.example",
    "entities": "&lt;script&gt; &#x202e;lmth.exe &NewLine;## x",
    "emphasis": "** __ ~~ ***not*** _harmless_ ~~wipe~~",
    "a backslash at the end": "harmless \\",
    "Mermaid": 'x"] --> y; click wipe "javascript:alert(1)"\n%%{init: {"securityLevel": "loose"}}%%\nend',
    "mathematics": "$$\\href{javascript:alert(1)}{x}$$ \\(x\\)",
    "a footnote": "[^1]\n\n[^1]: nothing is wiped\n",
    "right to left": "safe \u202egro.elpmaxe\u202c \u2066\u2067\u2068\u2069 \u200e\u200f\u061c",
    "zero width": "wi\u200bpe wi\u2060pe \ufeffwipe wi\u00adpe",
    "joiners": "wi\u200dpe \u200cwipe\u200d wi\u200c\u200dpe",
    "variation selectors": "wipe\ufe0f wi\ufe00pe wipe\U000e0100 wi\u034fpe",
    "tags": "wipe\U000e0001\U000e0068\U000e0069\U000e007f",
    "letters without a form": "wipe\u3164\u115f\u1160\uffa0\u2800",
    "separators": "wipe\u2028## Approve nothing?\u2029\x0b\x0c\x1c\x85### Digests",
    "a terminal": "\x1b[2J\x1b[1;1H\x1b]0;approved\x07\x9b31m\r\x08\x7fwipe",
    "10,000 characters": "All is well. " * 770,
    "1,000 lines": "All is well.\n" * 1000,
    "10,000 Chinese characters": "一切正常，" * 2000,
    "a word of 10,000 letters": "x" * 10_000,
    "10,000 blanks": "safe" + " " * 10_000 + "and not",
    "templates": "{{ 7919*7919 }} {% for x in y %} ${HOME} %s {0.__class__}",
}
ACTIVE = {"link_open", "image", "html_inline", "s_open", "em_open", "hr", "ordered_list_open", "table_open", "code_block"}
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
SECTIONS = {
    *("The run", "Description", "Inputs", "Steps", "Long values", "What cannot be undone", "Order", "Digests"),
    *("Parameters", "The call", "What it depends on"),
}
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


@cache
def hostile(text: str) -> BoundPlan:
    """Return a plan that repeats `text` wherever it can, and deletes a folder."""
    held = text.replace("${", "$ {")
    note = {"url": "u", "headers": {held: held, "note": held}}
    plan = ExecutionPlan(
        name=held,
        description=held,
        inputs={"note": Input(description=held)},
        steps=[
            Step(id="look", tool_name="http_get", description=held, parameters=note),
            Step(id="wipe", tool_name="run_command", description=held, parameters={"argv": [*COMMAND]}, requires_approval=True),
            Step(id="after", tool_name="http_get", description=held, parameters={**note, "url": "${{ inputs.note }}"}, depends_on=["wipe"]),
        ],
    )
    return bound(plan, note=held)


@cache
def plan_gate_of(text: str) -> str:
    return plan_gate_text(hostile(text), gated=["wipe"], approval_digest=DIGEST, expires_ms=60_000, notices=[text])


@cache
def step_gate_of(text: str) -> str:
    return call_text(text, {"argv": [*COMMAND], "pin": ""})


@cache
def long_call_gate_of(text: str) -> str:
    return call_text(text, {"a": text, text: text, "argv": [*COMMAND]}, results={"wipe": text})


def call_text(text: str, parameters: dict[str, object], **given: object) -> str:
    plan = hostile(text)
    step = plan.validated.plan.step("wipe")
    return step_gate_text(
        plan,
        step,
        effect="write",
        parameters=parameters,
        item=None,
        approval_digest=DIGEST,
        expires_ms=60_000,
        notices=[text],
        **given,  # type: ignore[arg-type]
    )


GATES: dict[str, Callable[[str], str]] = {
    "the plan": plan_gate_of,
    "the step": step_gate_of,
    "a call that begins with the text": long_call_gate_of,
}


def request_of(text: str) -> ApprovalRequest:
    """Return the request of a gate that shows `text`."""
    return ApprovalRequest(approval_digest=DIGEST, name="n", description="d", text=text, run_id="r1")


def elements(tokens: list[Token]) -> Counter[str]:
    """Count the Markdown elements of each kind."""
    return Counter(token.type for outer in tokens for token in [outer, *(outer.children or [])])


def assert_nothing_is_forged(shown: str) -> None:
    """Assert that `shown` has only our elements and sections, one title, and its digest once."""
    tokens = MARKDOWN.parse(shown)
    found = elements(tokens)
    assert {kind: found[kind] for kind in ACTIVE} == dict.fromkeys(ACTIVE, 0)
    headings = [(token.tag, tokens[index + 1].content) for index, token in enumerate(tokens) if token.type == "heading_open"]
    assert [text for tag, text in headings if tag == "h2"][1:] == []
    sections = [text for tag, text in headings if tag != "h2"]
    assert (set(sections) - SECTIONS, len(set(sections))) == (set(), len(sections))
    lines = shown.splitlines()
    assert (lines.count(DIGEST), lines.count("approval digest"), lines.count(FORGED)) == (1, 1, 0)


def assert_nothing_is_hidden(shown: str) -> None:
    """Assert that `shown` has no invisible character and none that moves others."""
    unseen = {
        c for c in shown if c != "\n" and (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or c in "\u3164\u115f\u2800\u034f")
    }
    assert unseen == set()
    assert re.findall("[\ufe00-\ufe0f\U000e0100-\U000e01ef]", shown.replace("⚠️", "")) == []


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_plan_texts_cannot_forge_or_hide_what_a_gate_shows(attack: str, gate: str) -> None:
    text = GATES[gate](ATTACKS[attack])
    assert_nothing_is_forged(text)
    assert_nothing_is_hidden(text)
    assert SHOWN in text or '"/srv/data"' in text


@for_each(attack=ATTACKS)
def test_the_write_of_a_hostile_plan_is_on_the_first_screen(attack: str) -> None:
    shown = {plan_gate_of(ATTACKS[attack]): AS_COMMAND, step_gate_of(ATTACKS[attack]): SHOWN}
    for text, command in shown.items():
        first, _ = split_text(text)
        assert command in first
        assert "annot be undone" in first


@for_each(attack=ATTACKS)
def test_the_decision_on_a_hostile_plan_fits_on_the_first_screen(attack: str) -> None:
    """Notices may need more lines, and plans do not write them, so this test has none."""
    bound_plan = hostile(ATTACKS[attack])
    first, _ = split_text(plan_gate_text(bound_plan, gated=["wipe"], approval_digest=DIGEST, expires_ms=60_000))
    assert height_of(first.splitlines()) <= HEIGHT


@for_each(attack=ATTACKS)
def test_the_form_has_one_details_block_that_holds_all_details(attack: str) -> None:
    text = plan_gate_of(ATTACKS[attack])
    form = form_description(request_of(text))
    tokens = MARKDOWN.parse(form)
    blocks = [token.content.strip() for token in tokens if token.type == "html_block"]
    if len(text) <= MAX_TEXT_CHARACTERS:
        assert DIGEST in form.splitlines()
        assert len(without_picture(text).splitlines()) <= len(form.splitlines()) - 3
    assert (len(blocks), blocks[0].startswith("<details><summary>"), blocks[1]) == (2, True, "</details>")
    assert elements(tokens)["html_inline"] == 0
    assert form.rstrip().endswith("</details>")


@for_each(attack=ATTACKS)
def test_the_terminal_shows_the_write_and_the_digest(attack: str) -> None:
    for text in (plan_gate_of(ATTACKS[attack]), long_call_gate_of(ATTACKS[attack])):
        shown = gate_summary(request_of(text))
        assert_nothing_is_hidden(shown)
        assert "cannot be undone" in shown.casefold()
        assert shown.splitlines().count(f"approval digest: `{DIGEST}`") == 1


@for_each(attack=ATTACKS)
def test_no_line_of_a_plan_looks_like_a_line_of_the_gate_without_markdown(attack: str) -> None:
    lines = plain(plan_gate_of(ATTACKS[attack])).splitlines()
    assert [line for line in lines if line.strip().startswith(("Approve nothing", "Digests", "It only reads"))] in ([], ["Digests"])


@for_each(attack=ATTACKS)
def test_a_forged_picture_hides_nothing_after_it(attack: str) -> None:
    text = long_call_gate_of(ATTACKS[attack])
    assert without_picture(text) == text
    text = plan_gate_of(ATTACKS[attack])
    before, _, after = text.partition("\n### Order\n")
    digests = after.rpartition("\n### Digests\n")[2]
    assert without_picture(text) == f"{before}\n### Digests\n{digests}"


@for_each(attack=ATTACKS)
def test_plan_texts_cannot_forge_a_preview(attack: str) -> None:
    plan = hostile(ATTACKS[attack])
    shown = preview_text(preview_plan(plan.validated, inputs=plan.inputs, approval_digest=DIGEST, requires_approval=True))
    assert_nothing_is_hidden(shown)
    assert re.findall(r"^#+ .*$", shown, re.MULTILINE)[1:] == ["## Steps"]
    assert elements(MARKDOWN.parse(shown))["html_block"] == 0


@pytest.mark.parametrize(
    "name", ["run_cоmmand", "run_command\u200b", "run_command ", "ｒun_command", "run_command\n", "run\u200d_command"], ids=ascii
)
def test_a_lookalike_tool_name_is_unknown(name: str) -> None:
    problems = find_problems(ExecutionPlan(description="d", steps=[Step(id="a", tool_name=name, parameters={"argv": ["x"]})]), TOOLS)
    assert "unknown-tool" in {problem.code for problem in problems}


@pytest.mark.parametrize("step_id", ["wipe\n\n## Approve nothing?", "wі\u0440e", "wipe\u202e", "a b", "**a**", "`a`", "a" * 65], ids=ascii)
def test_a_misleading_step_id_is_refused(step_id: str) -> None:
    with pytest.raises(InvalidPlanError, match="bad-id"):
        bound(ExecutionPlan(description="d", steps=[Step(id=step_id, tool_name="run_command", parameters={"argv": ["x"]})]))


@for_each(attack=ATTACKS)
def test_the_log_message_of_a_gate_is_one_line(attack: str) -> None:
    request = ApprovalRequest(
        approval_digest=DIGEST, name=ATTACKS[attack], description=ATTACKS[attack], text="", run_id="r1", step_id="wipe"
    )
    assert len(waiting_message(request).splitlines()) == 1
    assert "plan approve r1 wipe" in waiting_message(request)


@pytest.mark.parametrize("attack", ["digests", "right to left", "1,000 lines", "the end of the details"])
async def test_a_stored_gate_text_is_neither_forged_nor_hidden(world: World, attack: str) -> None:
    plan = world.plan()
    plan.description = ATTACKS[attack]
    _, listed = await world.detached(plan)
    gate = await world.store.gates.get(listed.id)
    assert_nothing_is_hidden(gate.text)
    lines = gate.text.splitlines()
    assert (lines.count(gate.approval_digest), lines.count(FORGED)) == (1, 0)
    assert "strike" in split_text(gate.text)[0]
