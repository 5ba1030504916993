"""Tests of the redactor: what it redacts, and what it leaves unchanged."""

import json
import time
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plan_adapter.execution.redactor import Redactor
from tests.secrets.encodings import encodings, found_in

CANARY = 's3cr3t/Kanarie+vögel "7"=\\'
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=4, max_size=40)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)

ENCODERS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda text: repr(text.encode()),
    "JSON": json.dumps,
    "JSON in Unicode": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps([json.dumps({"a": text})]),
    "URL": quote,
    "URL, all": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "URL in URL": lambda text: quote(quote(text, safe=""), safe=""),
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: b64encode(text.encode()).decode().rstrip("="),
    "urlsafe base64": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "base64 in URL": lambda text: quote(b64encode(text.encode()).decode(), safe=""),
    "base64 in lines": lambda text: encodebytes(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
}


def redactor_for(*values: str) -> Redactor:
    """Return a redactor for `values`."""
    redactor = Redactor()
    for value in values:
        redactor.add(value)
    return redactor


@pytest.mark.parametrize("name", ENCODERS)
@given(value=VALUES, before=TEXTS, after=TEXTS)
@settings(max_examples=25)
def test_a_value_is_redacted_in_every_encoding(name: str, value: str, before: str, after: str) -> None:
    encode = ENCODERS[name]
    shown = redactor_for(value).text(before + encode(value) + after)
    assert value not in shown
    assert encode(value) not in shown
    longer = redactor_for(value).text(encode(before + value + after))
    assert found_in(longer.replace("\n", ""), value) == []


@given(value=VALUES, members=st.lists(TEXTS, max_size=3))
@settings(max_examples=25)
def test_a_value_is_redacted_throughout_a_tree(value: str, members: list[str]) -> None:
    others = [1, 2.5, None, True]
    # The redactor leaves booleans and None alone, and `0000` is in JSON's escape of a null character.
    assume(value not in json.dumps([others, [member for member in members if value not in member]], ensure_ascii=False))
    tree: Any = {f"key {value}": [*members, {value: f"a{value}b"}, {"deep": [[b64encode(value.encode()).decode()]]}], "n": others}
    shown = json.dumps(redactor_for(value).value(tree), ensure_ascii=False)
    assert found_in(shown, value) == []


@given(text=TEXTS)
def test_text_without_a_secret_is_unchanged(text: str) -> None:
    assert redactor_for("canary-a8f3e1").text(text) == text


def test_text_is_not_searched_without_a_value() -> None:
    tree: Any = {"a": [1, "b"]}
    assert Redactor().value(tree) is tree
    assert not Redactor()


@pytest.mark.parametrize(("name", "form"), encodings(CANARY).items())
def test_each_encoding_is_redacted_within_a_sentence(name: str, form: str) -> None:
    shown = redactor_for(CANARY).text(f"{{the {form}!}}")
    assert "***" in shown
    assert found_in(shown, CANARY) == []


def test_the_longer_of_two_overlapping_values_is_redacted_as_one() -> None:
    assert redactor_for("token", "token-of-bo").text("a token-of-bo and a token") == "a *** and a ***"


def test_each_longer_line_of_a_key_is_redacted_on_its_own() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\r\nAASCBKcwggSj\nshort\n-----END KEY-----\n"
    redactor = redactor_for(key)
    assert redactor.text(f"<{key}>") == "<***>"
    assert redactor.text("one: MIIEvQIBADANBgkqhkiG9w0BAQEF, short") == "one: ***, short"
    assert found_in(redactor.text(b64encode(key.encode()).decode()), "MIIEvQIBADANBgkqhkiG9w0BAQEF") == []


def test_a_numeric_value_is_redacted_where_it_is_a_number() -> None:
    assert redactor_for("81726354").value({"pin": 81726354, "other": 8172, "is": True}) == {"pin": "***", "other": 8172, "is": True}


def test_colliding_redacted_keys_lose_no_entries() -> None:
    assert redactor_for("abcd", "efgh").value({"abcd": 1, "efgh": 2, "***": 3}) == {"*** ": 1, "***  ": 2, "***": 3}


@pytest.mark.parametrize("value", ["\\" * 40, "a***", "****", "%25%25", '\\"\\"\\"\\"', "\n\n\n\n", "////", "++++"])
def test_unusual_values_do_not_slow_redaction_down(value: str) -> None:
    began = time.perf_counter()
    redactor = redactor_for(value)
    for text in ("\\" * 3000, "%25" * 1000, value * 20, "*" * 3000, "A" * 3000):
        assert value not in redactor.text(f"x{text}") or value in ("****",)
    assert time.perf_counter() - began < 2.0


@pytest.mark.benchmark
def test_a_megabyte_without_a_value_takes_a_few_milliseconds() -> None:
    redactor = redactor_for(*(f"canary-{number}-{'x' * number}é" for number in range(20)))
    text = json.dumps([{"name": f"row {number}", "value": number} for number in range(30_000)])
    began = time.perf_counter()
    assert redactor.text(text) == text
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize("length", [4, 12, 31, 45, 48, 64, 130, 190])
@pytest.mark.parametrize("before", ["", "a", "ab", "x" * 20, "x" * 40])
def test_line_wrapped_base64_is_redacted(length: int, before: str) -> None:
    value = "".join(chr(33 + number * 37 % 90) for number in range(length))
    for width in (64, 76):
        letters = b64encode(f"{before}{value}!".encode()).decode()
        wrapped = "\n".join(letters[index : index + width] for index in range(0, len(letters), width))
        assert found_in(redactor_for(value).text(wrapped).replace("\n", ""), value) == []
