"""What the scrubber hides, and what it leaves as it is."""

import json
import time
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plan_adapter.execution.secrets import Redactor
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


def scrubber_of(*values: str) -> Redactor:
    """Return a scrubber that hides `values`."""
    redactor = Redactor()
    for value in values:
        redactor.add(value)
    return redactor


@pytest.mark.parametrize("name", ENCODERS)
@given(value=VALUES, before=TEXTS, after=TEXTS)
@settings(max_examples=25)
def test_a_value_is_found_nowhere_afterwards_whatever_it_is_encoded_with(name: str, value: str, before: str, after: str) -> None:
    encode = ENCODERS[name]
    shown = scrubber_of(value).text(before + encode(value) + after)
    assert value not in shown
    assert encode(value) not in shown
    longer = scrubber_of(value).text(encode(before + value + after))
    assert found_in(longer.replace("\n", ""), value) == []


@given(value=VALUES, members=st.lists(TEXTS, max_size=3))
@settings(max_examples=25)
def test_a_value_is_found_nowhere_in_a_tree(value: str, members: list[str]) -> None:
    others = [1, 2.5, None, True]
    assume(value not in json.dumps(others))  # a truth is no text
    tree: Any = {f"key {value}": [*members, {value: f"a{value}b"}, {"deep": [[b64encode(value.encode()).decode()]]}], "n": others}
    shown = json.dumps(scrubber_of(value).value(tree), ensure_ascii=False)
    assert found_in(shown, value) == []


@given(text=TEXTS)
def test_a_text_without_a_value_stays_as_it_is(text: str) -> None:
    assert scrubber_of("canary-a8f3e1").text(text) == text


def test_without_a_value_nothing_is_looked_at() -> None:
    tree: Any = {"a": [1, "b"]}
    assert Redactor().value(tree) is tree
    assert not Redactor()


@pytest.mark.parametrize(("name", "form"), encodings(CANARY).items())
def test_each_form_is_hidden_inside_of_a_sentence(name: str, form: str) -> None:
    shown = scrubber_of(CANARY).text(f"{{the {form}!}}")
    assert "***" in shown
    assert found_in(shown, CANARY) == []


def test_the_longer_of_two_values_is_hidden_as_one() -> None:
    assert scrubber_of("token", "token-of-bo").text("a token-of-bo and a token") == "a *** and a ***"


def test_each_longer_line_of_a_key_is_hidden_by_itself() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\r\nAASCBKcwggSj\nshort\n-----END KEY-----\n"
    redactor = scrubber_of(key)
    assert redactor.text(f"<{key}>") == "<***>"
    assert redactor.text("one: MIIEvQIBADANBgkqhkiG9w0BAQEF, short") == "one: ***, short"
    assert found_in(redactor.text(b64encode(key.encode()).decode()), "MIIEvQIBADANBgkqhkiG9w0BAQEF") == []


def test_a_value_of_digits_is_hidden_where_it_is_a_number() -> None:
    assert scrubber_of("81726354").value({"pin": 81726354, "other": 8172, "is": True}) == {"pin": "***", "other": 8172, "is": True}


def test_keys_that_become_the_same_lose_nothing() -> None:
    assert scrubber_of("abcd", "efgh").value({"abcd": 1, "efgh": 2, "***": 3}) == {"*** ": 1, "***  ": 2, "***": 3}


@pytest.mark.parametrize("value", ["\\" * 40, "a***", "****", "%25%25", '\\"\\"\\"\\"', "\n\n\n\n", "////", "++++"])
def test_odd_values_take_no_time(value: str) -> None:
    began = time.perf_counter()
    redactor = scrubber_of(value)
    for text in ("\\" * 3000, "%25" * 1000, value * 20, "*" * 3000, "A" * 3000):
        assert value not in redactor.text(f"x{text}") or value in ("****",)
    assert time.perf_counter() - began < 2.0


@pytest.mark.benchmark
def test_a_megabyte_without_a_value_takes_a_few_milliseconds() -> None:
    redactor = scrubber_of(*(f"canary-{number}-{'x' * number}é" for number in range(20)))
    text = json.dumps([{"name": f"row {number}", "value": number} for number in range(30_000)])
    began = time.perf_counter()
    assert redactor.text(text) == text
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize("length", [4, 12, 31, 45, 48, 64, 130, 190])
@pytest.mark.parametrize("before", ["", "a", "ab", "x" * 20, "x" * 40])
def test_base64_that_a_command_wraps_is_hidden(length: int, before: str) -> None:
    value = "".join(chr(33 + number * 37 % 90) for number in range(length))
    for width in (64, 76):
        letters = b64encode(f"{before}{value}!".encode()).decode()
        wrapped = "\n".join(letters[index : index + width] for index in range(0, len(letters), width))
        assert found_in(scrubber_of(value).text(wrapped).replace("\n", ""), value) == []
