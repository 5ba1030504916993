"""Every payload through every tool, in one run: it arrives as it was, or is refused in words; nothing of it happens."""

import json
import sqlite3
from urllib.parse import unquote

from plan_adapter.status import Outcome
from tests.cases import for_each
from tests.text.conftest import Passed
from tests.text.payloads import PAYLOADS, PRODUCT, nothing_was_interpreted

NO_NUL = {"argv", "env"}  # what no process can be given; the tools say so
NOT_IN_OUTPUT = {"stdin": "before\ufffdafter"}  # a result is text without NUL

FILE_NAMES_REFUSED = {"parent folder", "NUL", "empty"}
HEADERS_REFUSED = {"YAML", "ANSI", "OSC", "bidi", "NUL", "carriage return", "new header", "Markdown", "Mermaid", "blanks", "Chinese"}

every_payload = for_each(payload=PAYLOADS)


def test_no_text_was_interpreted_anywhere(passed: Passed) -> None:
    assert {step.id for step in passed.run.steps if step.reason is not None and "unknown" in step.reason} == set()
    assert len(passed.receipts) == 2 + 15 * len(PAYLOADS), "each payload came to each place"
    assert nothing_was_interpreted(passed.folder)
    assert not [unit for unit, receipt in passed.receipts.items() if PRODUCT in f"{receipt.result}{receipt.error}"]


@for_each(payload=PAYLOADS, place=["result", "input"])
def test_a_reference_gives_the_text_and_is_not_looked_at_again(passed: Passed, place: str, payload: str) -> None:
    text = PAYLOADS[payload]
    text = text if place == "result" else text.replace("\0", "")
    inside, nested = (f"<{text}>", {"a": [text]}) if place == "result" else (text + text, {"b": [text]})
    assert passed.result(place, payload) == {"whole": text, "inside": inside, "nested": nested}


@for_each(payload=PAYLOADS, place=["argv", "env", "stdin", "bash"])
def test_a_command_is_handed_the_text_as_it_is(passed: Passed, place: str, payload: str) -> None:
    if payload == "NUL" and place in NO_NUL:
        assert _refusal(passed, place, payload) == f"`{'printf' if place == 'argv' else 'sh'}` cannot be started: embedded null byte"
        return
    expected = NOT_IN_OUTPUT.get(place, "beforeafter") if payload == "NUL" else PAYLOADS[payload]
    assert passed.result(place, payload) == {"exit_code": 0, "stdout": expected, "stderr": ""}


@every_payload
def test_a_parameter_of_a_statement_is_a_value(passed: Passed, payload: str) -> None:
    assert passed.result("sql", payload) == {"rows": [{"v": PAYLOADS[payload]}]}


def test_what_was_inserted_is_there_and_the_table_too(passed: Passed) -> None:
    with sqlite3.connect(passed.folder.parent / "notes.db") as database:
        kept = [text for (text,) in database.execute("SELECT v FROM notes")]
    assert sorted(kept) == sorted(PAYLOADS.values())


@every_payload
def test_a_header_holds_the_text_or_is_refused_by_its_name(passed: Passed, payload: str) -> None:
    if payload in HEADERS_REFUSED:
        assert _refusal(passed, "header", payload).startswith("`x-text` cannot be sent as a header: a name has letters")
        return
    assert unquote(passed.result("header", payload)["headers"]["x-text"]) == PAYLOADS[payload]


@every_payload
def test_a_body_arrives_as_json(passed: Passed, payload: str) -> None:
    assert passed.result("body", payload)["status"] == 200
    assert PAYLOADS[payload] in [json.loads(body)["text"] for _, body in passed.seen if body]


@every_payload
def test_a_file_is_called_as_the_text_says_below_the_folder_or_not_at_all(passed: Passed, payload: str) -> None:
    text = PAYLOADS[payload]
    if payload in FILE_NAMES_REFUSED:
        assert "path" in _refusal(passed, "file_name", payload) or "does not lead to a file in" in _refusal(passed, "file_name", payload)
        assert _refusal(passed, "read_name", payload) == _refusal(passed, "file_name", payload)
        return
    written = passed.result("file_name", payload)["path"]
    assert written == str(passed.folder / text)
    assert (passed.folder / text).read_text() == "here"


@every_payload
def test_a_file_holds_the_text(passed: Passed, payload: str) -> None:
    assert passed.result("content", payload)["size"] == len(PAYLOADS[payload].encode())


@every_payload
def test_an_error_keeps_its_own_message(passed: Passed, payload: str) -> None:
    text = PAYLOADS[payload].replace("\0", "\\x00")
    assert _refusal(passed, "error", payload) == (f"ValueError: {text}" if text else "ValueError")


@every_payload
def test_a_line_of_a_log_is_the_text(passed: Passed, payload: str) -> None:
    lines = "\n".join(passed.logs["log"])
    assert PAYLOADS[payload] in lines


def _refusal(passed: Passed, place: str, payload: str) -> str:
    receipt = passed.end(place, payload)
    assert receipt is not None and receipt.outcome is Outcome.FAILED
    return receipt.error or ""
