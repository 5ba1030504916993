"""Tests of the picture of a plan at its gate: text of the plan cannot change its structure."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.model.options import Effect
from plan_adapter.model.plan import Step
from plan_adapter.text.pictures import MAX_EDGES, mermaid

NODE = r's\d+(?:\["[^"]*"\]|\{\{"[^"]*"\}\}):::(?:read|idempotent_write|write)'
LINE = re.compile(rf"  (?:{NODE}|s\d+ --> s\d+|classDef \w+ [\w#:,-]+)")


def picture(*steps: Step, effect: Effect = "read", gated: tuple[str, ...] = (), limit: int = 60) -> str:
    """Return the picture of `steps`, all with `effect`."""
    reduced = {step.id: tuple(step.depends_on) for step in steps}
    return mermaid(steps, reduced, effects={step.id: effect for step in steps}, gated=gated, limit=limit)


def nodes(text: str) -> list[str]:
    """Return the node lines of a picture."""
    return re.findall(rf"^  ({NODE})$", text, re.MULTILINE)


def test_a_plan_is_drawn_as_its_steps_and_their_dependencies() -> None:
    check = Step(id="check", tool_name="http_get", description="It answers")
    restart = Step(id="restart", tool_name="run_command", description="重启服务", depends_on=["check"])
    drawn = mermaid(
        [check, restart], {"check": (), "restart": ("check",)}, effects={"check": "read", "restart": "write"}, gated=["restart"]
    )
    assert drawn.splitlines() == [
        "flowchart TD",
        '  s1["check<br/>It answers"]:::read',
        '  s2{{"restart<br/>重启服务"}}:::write',
        "  s1 --> s2",
        "  classDef read fill:#e3eefb,stroke:#3b6ea5,color:#10263d",
        "  classDef idempotent_write fill:#fdf0d0,stroke:#b07a10,color:#3d2a05",
        "  classDef write fill:#fbdcd8,stroke:#b3261e,color:#410e0b,stroke-width:3px",
    ]


# Each label was checked by rendering it with the Mermaid version of UI V2.
@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('"]; click s1 href "javascript:x"', "#34;#93;#59; click s1 href #34;javascript#58;#8288;x#34;"),
        ("%%{init: {}}%%", "#37;#37;#123;init#58;#8288; #123;#125;#125;#37;#37;"),
        ("<img src=x>", "#60;img src#61;x#62;"),
        ("1. first", "1#46; first"),
        ("end", "end"),
        ("$$x$$", "#36;#8288;#36;#8288;x#36;#8288;#36;#8288;"),
        ("fa:fa-car", "fa#58;#8288;fa#45;car"),
        (r"a\nb", "a#92;#8288;nb"),
        ("`a` **b** _c_", "#96;a#96; #42;#42;b#42;#42; #95;c#95;"),
        ("two\nlines\u202e", "two lines#92;#8288;u202e"),
        ("ﬂ°°35¶ß", "#92;#8288;ufb02#176;#176;35#92;#8288;u00b6ß"),
        ("#35;", "#35;35#59;"),
        ("x" * 41, "x" * 39 + "#8230;"),
    ],
)
def test_a_label_is_shown_literally(text: str, label: str) -> None:
    assert nodes(picture(Step(id="a", tool_name="t", description=text))) == [f's1["a<br/>{label}"]:::read']


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_text_never_adds_a_line_or_a_node(texts: list[str]) -> None:
    steps = [Step(id=f"s{number}", tool_name="t", description=text) for number, text in enumerate(texts)]
    first, *lines = picture(*steps).split("\n")
    assert first == "flowchart TD"
    assert all(LINE.fullmatch(line) for line in lines)
    assert len(lines) == len(steps) + 3


def test_a_large_plan_is_drawn_by_stage() -> None:
    steps = [Step(id=f"s{number}", tool_name="t", depends_on=[f"s{number - 40}"] if number >= 40 else []) for number in range(80)]
    drawn = picture(*steps, effect="write", gated=("s41",))
    assert nodes(drawn) == [
        's1["stage 1 #183; 40 steps<br/>s0<br/>#8230; 39 more"]:::write',
        's2{{"stage 2 #183; 40 steps<br/>s40<br/>#8230; 39 more"}}:::write',
    ]
    assert "  s1 --> s2" in drawn


def test_a_long_chain_is_drawn_by_its_ends() -> None:
    steps = [Step(id=f"s{number}", tool_name="t", depends_on=[f"s{number - 1}"] if number else []) for number in range(1000)]
    drawn = nodes(picture(*steps, limit=10))
    assert len(drawn) == 10
    assert [node for node in drawn if "more" in node] == ['s7["stages 7 to 997 #183; 991 steps<br/>s6<br/>#8230; 990 more"]:::read']


def test_a_plan_with_more_edges_than_mermaid_draws_is_drawn_by_stage() -> None:
    above = [Step(id=f"a{number}", tool_name="t") for number in range(20)]
    below = [Step(id=f"b{number}", tool_name="t", depends_on=[step.id for step in above]) for number in range(20)]
    assert len(above) * len(below) > MAX_EDGES
    assert len(nodes(picture(*above, *below))) == 2
