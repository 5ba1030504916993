"""Tests of inputs of type `secret` in expressions: where they may be used, and what they become once their names are known."""

from typing import Any

import pytest

from plan_adapter.expressions import Declarations, Prediction, Template, Variables, compile_template, passed_input
from plan_adapter.model.options import Input
from tests.expressions.builders import refuse

INPUTS = {"password": Input(type="secret"), "token": Input(type="secret"), "host": Input()}
DECLARED = Declarations(frozenset(), INPUTS, item=True, secrets=True)
ELSEWHERE = Declarations(frozenset({"check"}), INPUTS, item=True)


def compiled(value: Any) -> Template:
    template, problems = compile_template(value, DECLARED, at="here")
    assert problems == []
    return template


@pytest.mark.parametrize("code", ["inputs.password", "'Bearer ' + inputs.password", "inputs.password == 'x'", "[inputs.password].size()"])
def test_it_is_refused_wherever_a_secret_is(code: str) -> None:
    refused, as_secret = refuse(f"${{{{ {code} }}}}", ELSEWHERE), refuse(f"${{{{ {code.replace('inputs', 'secrets')} }}}}", ELSEWHERE)
    assert (refused.code, refused.message, refused.hint) == (
        "misplaced-secret",
        as_secret.message.replace("secrets", "inputs"),
        as_secret.hint,
    )


def test_it_is_a_text() -> None:
    assert refuse("${{ inputs.password + 1 }}", DECLARED).code == "expression-type"
    assert refuse("${{ inputs.password.value }}", DECLARED).code == "expression-type"
    assert refuse("${{ inputs.pasword }}", DECLARED).code == "unknown-reference"


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("${{ inputs.password }}", '${{ secrets["prod-db"] }}'),
        ("${{inputs['password']}}", '${{ secrets["prod-db"] }}'),
        ("${{ inputs.token }}", "${{ secrets.api_token }}"),
        ("Bearer ${{ inputs.token }} for ${{ inputs.host }}", "Bearer ${{ secrets.api_token }} for ${{ inputs.host }}"),
        ("${{ inputs.host + ':' + inputs.password }}", "${{ inputs.host + ':' + secrets[\"prod-db\"] }}"),
        ("${{ 'inputs.password: ' + inputs.password.lowerAscii() }}", "${{ 'inputs.password: ' + secrets[\"prod-db\"].lowerAscii() }}"),
    ],
)
def test_it_becomes_the_secret_that_it_names(written: str, becomes: str) -> None:
    named = compiled({"value": [written, written], "other": "${{ inputs.host }}"}).with_named_secrets(
        {"password": "prod-db", "token": "api_token"}
    )
    again, problems = compile_template({"value": [becomes, becomes], "other": "${{ inputs.host }}"}, DECLARED, at="here")
    assert problems == []
    assert (named.source, named.secrets) == (again.source, again.secrets)
    values = Variables({}, {"host": "db-1", "password": "prod-db"}, secrets={"prod-db": "S3cret", "api_token": "T0ken"})
    assert named.resolve(values) == again.resolve(values)
    shown = named.resolve_except_secrets(Variables({}, {"host": "db-1", "password": "prod-db"}))
    assert shown == again.resolve_except_secrets(values)
    assert "S3cret" not in str(shown) and "T0ken" not in str(shown)


def test_a_block_is_named_by_type_and_name() -> None:
    named = compiled("${{ inputs.password }}").with_named_secrets({"password": "aws-secret/db"})
    assert (named.source, named.secrets) == ('${{ secrets["aws-secret/db"] }}', {"aws-secret/db"})


def test_a_prediction_leaves_it_open() -> None:
    template = compiled({"a": "${{ inputs.password }}", "b": "${{ inputs.host }}"})
    inputs: dict[str, Any] = {"host": "db-1", "password": "prod-db"}
    shown = Prediction(inputs).of(template.with_named_secrets({"password": "prod-db"}))
    assert shown == {"a": '${{ secrets["prod-db"] }}', "b": "db-1"}


def test_without_such_inputs_nothing_changes() -> None:
    template = compiled({"a": "${{ inputs.host }} ${{ secrets.token }}"})
    assert template.with_named_secrets({"password": "prod-db"}) is template


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("${{ inputs.password }}", "password"),
        (" ${{inputs['password']}} ", "password"),
        ("${{ inputs.password + '' }}", None),
        ("${{ inputs.a.b }}", None),
        ("x ${{ inputs.password }}", None),
        ("${{ secrets.password }}", None),
        ("${{ inputs.password", None),
        ("inputs.password", None),
        (7, None),
    ],
)
def test_a_whole_reference_passes_an_input_on(text: object, name: str | None) -> None:
    assert passed_input(text) == name
