"""Tests of the form of a gate: which answers its schema accepts, how an answer is read, and how long its text may be."""

import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from prefect.utilities.schema_tools.validation import is_valid

from plan_adapter.engine.form import (
    DECISION,
    MAX_TEXT_CHARACTERS,
    NotAnAnswerError,
    build_form,
    decision_field,
    form_description,
    form_values,
    parse_answer,
    without_folding,
)
from plan_adapter.model.approvals import Answer, ApprovalRequest, GateKind, GatePolicy
from plan_adapter.model.options import Input, KnownBy
from plan_adapter.validation.inputs import input_from_schema
from tests.engine.gates import GOOD, request_of

EVERY_PROOF = ("ssh_signature", "totp", "os_user", "form", "unverified")


def accepts(gate_policy: GatePolicy, answer: dict[str, Any]) -> bool:
    """Return whether Prefect's server accepts `answer`."""
    return is_valid(answer, build_form(request_of(gate_policy=gate_policy)).model_json_schema())


def fields(gate_policy: GatePolicy) -> list[str]:
    return list(build_form(request_of(gate_policy=gate_policy)).model_json_schema()["properties"])


@pytest.mark.parametrize(
    ("gate_policy", "names"),
    [
        (GatePolicy(), ["decision", "approver", "note"]),
        (GatePolicy(known_by=("form",)), ["decision", "approver", "note"]),
        (GatePolicy(known_by=("totp",)), ["decision", "approver", "code", "note"]),
        (GatePolicy(known_by=EVERY_PROOF), ["decision", "approver", "code", "signature", "note"]),
    ],
)
def test_the_form_has_only_the_fields_that_its_policy_needs(gate_policy: GatePolicy, names: list[str]) -> None:
    assert fields(gate_policy) == names


@pytest.mark.parametrize(
    ("known_by", "names"),
    [
        (("totp",), ["decision", "approver", "note"]),
        (("totp", "ssh_signature"), ["decision", "approver", "signature", "note"]),
    ],
)
@pytest.mark.parametrize("kind", ["approval", "outcome"])
def test_a_form_on_an_open_server_asks_for_no_code_and_names_the_command(
    kind: GateKind, known_by: tuple[KnownBy, ...], names: list[str]
) -> None:
    request = replace(request_of(gate_policy=GatePolicy(known_by=known_by)), kind=kind, step_id="lost", run_id="run-1")
    schema = build_form(request, takes_codes=False).model_json_schema()
    assert [name for name in schema["properties"] if name != "result"] == names
    assert ("signature" in schema["required"]) is ("ssh_signature" in known_by)  # the only proof that is left
    command = {"approval": "plan approve run-1 lost --digest", "outcome": "plan resolve run-1 lost done|again|abort --digest"}[kind]
    hint = form_description(request, takes_codes=False).partition("\n\n")[0]
    assert "demands no authentication" in hint and f"`{command} " in hint and hint.endswith("--code CODE`.")


@pytest.mark.parametrize(
    ("gate_policy", "more", "taken"),
    [
        pytest.param(GatePolicy(known_by=("totp",)), {}, False, id="no code where it is the only proof"),
        pytest.param(GatePolicy(known_by=("totp",)), {"code": "12345"}, False, id="five digits"),
        pytest.param(GatePolicy(known_by=("totp",)), {"code": "123456"}, True, id="six digits"),
        pytest.param(GatePolicy(known_by=("totp", "form")), {}, True, id="no code where another proof will do"),
        pytest.param(GatePolicy(known_by=("totp", "form")), {"code": ""}, True, id="an empty code where another proof will do"),
        pytest.param(GatePolicy(known_by=("totp", "form")), {"code": "abcdef"}, False, id="letters"),
        pytest.param(GatePolicy(known_by=("ssh_signature",)), {}, False, id="no signature where it is the only proof"),
        pytest.param(GatePolicy(known_by=("ssh_signature",)), {"signature": ""}, False, id="an empty signature where it is the only proof"),
        pytest.param(GatePolicy(known_by=("ssh_signature",)), {"signature": "-----BEGIN"}, True, id="a signature"),
        pytest.param(GatePolicy(approvers=("bo",)), {}, False, id="not an approver"),
        pytest.param(GatePolicy(approvers=("安娜", "ana")), {}, True, id="an approver"),
        pytest.param(GatePolicy(approvers=()), {}, True, id="no approvers: the gate itself refuses"),
        pytest.param(
            GatePolicy(approvers=tuple(f"u{n}" for n in range(51))), {}, True, id="too many approvers to list: the gate itself refuses"
        ),
    ],
)
def test_the_schema_enforces_the_gate_policy(gate_policy: GatePolicy, more: dict[str, Any], taken: bool) -> None:
    assert accepts(gate_policy, {**GOOD, **more}) is taken


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (None, "empty"),
        ({}, "empty"),
        ([], "empty"),
        ("approve", "empty"),
        ({"approver": "ana"}, "decision is missing"),
        ({**GOOD, "decision": None}, "decision is missing"),
        ({**GOOD, "decision": "Approve"}, "decision is missing"),
        ({**GOOD, "decision": True}, "`decision` is not text"),
        ({**GOOD, "approver": ["ana"]}, "`approver` is not text"),
        ({**GOOD, "approver": "\n"}, "name of the person who answers is missing"),
        ({**GOOD, "approver": "a" * 201}, "`approver` has more than 200 characters"),
        ({**GOOD, "note": "a" * 4001}, "`note` has more than 4000 characters"),
        ({**GOOD, "note": {"__prefect_kind": "json"}}, "`note` is not text"),
        ({**GOOD, "decision": "request_changes", "note": ""}, "note is empty: say in it what to change"),
        ({**GOOD, "decision": "request_changes", "note": " \n"}, "note is empty"),
        ({**GOOD, "__prefect_kind": "json"}, "fields that the form does not have: __prefect_kind"),
    ],
)
def test_an_incomplete_answer_is_refused_with_the_reason(raw: object, why: str) -> None:
    with pytest.raises(NotAnAnswerError, match=why):
        parse_answer(raw)


def test_an_answer_is_read_as_it_was_written() -> None:
    answer = Answer("request_changes", "安娜", "先排空\n再部署", channel="form", code="123456", signature="-----BEGIN")
    assert parse_answer(form_values(answer)) == answer
    assert parse_answer({"decision": "approve", "approver": " ana ", "code": ""}) == Answer("approve", "ana", channel="form")


def test_an_answer_from_a_page_that_showed_other_content_is_refused() -> None:
    first, other = "1" * 64, "2" * 64
    assert decision_field(first, first) == DECISION
    bound = decision_field(other, first)
    schema = build_form(request_of(), decision=bound).model_json_schema()
    assert not is_valid(GOOD, schema)
    given = {("decision" if name == "decision" else name): value for name, value in GOOD.items()}
    given[bound] = given.pop("decision")
    assert is_valid(given, schema)
    answer = parse_answer(given)
    assert (answer.decision, answer.digest) == ("approve", other[:12])
    assert parse_answer(form_values(answer, decision=bound)) == answer
    for more in ({"decision": "reject"}, {decision_field("3" * 64, first): "reject"}, {"digest": "1" * 12}):
        with pytest.raises(NotAnAnswerError, match="more than one decision"):
            parse_answer({**given, **more})


def test_an_outcome_form_asks_for_a_result_only_if_something_uses_it() -> None:
    asked = request_of(kind="outcome", step_id="lost")
    assert [*build_form(asked).model_json_schema()["properties"]] == ["decision", "approver", "note"]
    used = replace(asked, fields={"result": Input()})
    assert [*build_form(used).model_json_schema()["properties"]] == ["decision", "result", "approver", "note"]


def test_the_text_starts_with_the_escaped_reason_for_a_refused_answer() -> None:
    text = form_description(request_of(), refused="<script>\n# no", links={"The run x": "http://a/run", "The runbook": "http://a/book"})
    assert "\n\n[The run x](http://a/run) · [The runbook](http://a/book)\n" in text
    assert text.startswith("**The last answer was refused:** \\<script> # no. **Nothing has run; please answer again.**\n\n")


def test_details_after_the_first_screen_are_folded() -> None:
    text = form_description(request_of(text="## Approve it?\n\n- **1. a**\n\n### Steps\n\n- a\n\n### Digests\n\n```\nd1\n```\n"))
    summary = "<details><summary><b>All details: read them before you answer</b></summary>"
    assert text == f"## Approve it?\n\n- **1. a**\n\n{summary}\n\n### Steps\n\n- a\n\n### Digests\n\n```\nd1\n```\n\n</details>\n"
    assert (
        without_folding(text) == request_of(text="## Approve it?\n\n- **1. a**\n\n### Steps\n\n- a\n\n### Digests\n\n```\nd1\n```\n").text
    )


def test_a_form_has_no_diagram() -> None:
    diagram = "### Order\n\n```mermaid\nflowchart TD\n```\n\nBlue reads.\n\n"
    assert "flowchart" not in form_description(
        request_of(text=f"## Approve it?\n\n### Steps\n\n- a\n\n{diagram}### Digests\n\n```\nd1\n```\n")
    )


def test_the_decision_is_the_first_field() -> None:
    for kind in get_args(GateKind):
        gate_policy = GatePolicy(known_by=("totp", "ssh_signature", "form"))
        assert next(iter(build_form(request_of(kind=kind, gate_policy=gate_policy)).model_json_schema()["properties"])) == "decision"


def test_a_long_text_is_cut_before_a_step_and_says_where_the_rest_is() -> None:
    step = "### 部署 step\n\n" + "参数 " * 200 + "\n\n```json\n" + "{}\n" * 20 + "```\n\n"
    request = request_of(text=f"## Approve it?\n\n{step * 300}")
    kept, _, rest = without_folding(form_description(request)).partition("\n\n**Cut here: ")
    assert len(kept) < MAX_TEXT_CHARACTERS
    assert request.text.startswith(kept) and request.text[len(kept) :].startswith("\n### 部署 step")
    assert rest.startswith(f"{len(request.text) - len(kept)} characters more.")
    assert f"`plan approve {request.run_id} --show`, or the artifact `plan-to-approve` of this flow run." in rest


def test_a_cut_text_of_a_step_names_the_command_that_shows_the_rest() -> None:
    text = form_description(request_of(step_id="部署", item=2, text="x\n" * MAX_TEXT_CHARACTERS))
    assert re.search(r"Read all of it before you answer: `plan approve \S+ 部署 --item 3 --show`\.\n$", text)


def test_a_cut_inside_a_code_block_closes_the_block() -> None:
    text = form_description(request_of(text="````\n" + "x\n" * MAX_TEXT_CHARACTERS))
    assert "x\n````\n\n**Cut here:" in text
    indented = form_description(request_of(text="- a:\n\n  ```\n" + "  x\n" * MAX_TEXT_CHARACTERS))
    assert "x\n  ```\n\n**Cut here:" in indented


QUESTION = {
    "choice": Input(type="string", enum=["switch", "wait"], title="怎么办", description="What now"),
    "nodes": Input(type="integer", minimum=1, maximum=9),
    "hosts": Input(type="array", items="string", min_length=1, default=["web-1"]),
}


def question_request() -> ApprovalRequest:
    return replace(request_of(step_id="decide", kind="question"), fields=QUESTION, description="Switch to the standby site?")


def test_the_form_of_a_question_has_its_typed_fields_first() -> None:
    properties = build_form(question_request()).model_json_schema()["properties"]
    assert [*properties] == ["choice", "nodes", "hosts", "decision", "approver", "note"]
    assert properties["choice"] == {
        "type": "string",
        "enum": ["switch", "wait"],
        "title": "怎么办",
        "description": "Switch to the standby site? What now",
        "position": 0,
    }
    rules = {"nodes": "At least 1, at most 9.", "hosts": "At least 1 member."}
    assert {name: input_from_schema(schema) for name, schema in properties.items() if name in rules} == {
        name: QUESTION[name].model_copy(update={"title": name, "description": rule}) for name, rule in rules.items()
    }


GIVEN: dict[str, Any] = {"choice": "switch", "nodes": 3, "approver": "ana"}


@pytest.mark.parametrize(
    ("answer", "is_taken"),
    [
        (GIVEN, True),
        ({**GIVEN, "decision": "answer", "hosts": ["web-2"]}, True),
        ({**GIVEN, "decision": "reject"}, True),
        ({"decision": "reject", "approver": "ana"}, False),
        ({**GIVEN, "choice": "run"}, False),
        ({**GIVEN, "nodes": "3"}, False),
        ({**GIVEN, "nodes": 10}, False),
        ({**GIVEN, "hosts": []}, False),
        ({**GIVEN, "until": "noon"}, False),
        ({**GIVEN, "decision": "approve"}, False),
        ({"choice": "switch", "approver": "ana"}, False),
        ({"choice": "switch", "nodes": 3}, False),
    ],
)
def test_the_server_accepts_only_answers_that_fit_the_fields_of_a_question(answer: dict[str, Any], is_taken: bool) -> None:
    assert is_valid(answer, build_form(question_request()).model_json_schema()) is is_taken


def test_an_answer_to_a_question_has_its_fields() -> None:
    answer = parse_answer({**GIVEN, "hosts": None, "note": "so"}, "question", QUESTION)
    assert (answer.decision, answer.by, answer.note, answer.result) == ("approve", "ana", "so", {"choice": "switch", "nodes": 3})
    assert parse_answer(form_values(answer), "question", QUESTION) == answer
    rejected = parse_answer({**GIVEN, "decision": "reject"}, "question", QUESTION)
    assert (rejected.decision, rejected.result) == ("reject", None)
    with pytest.raises(NotAnAnswerError, match="until"):
        parse_answer({**GIVEN, "until": "noon"}, "question", QUESTION)
