"""Tests of every payload through every tool: it arrives unchanged or is refused, and is never interpreted."""

import json
import sqlite3
from urllib.parse import unquote

from plan_adapter.model.status import Outcome
from tests.cases import for_each
from tests.text.conftest import PayloadRun
from tests.text.payloads import PAYLOADS, PRODUCT, nothing_was_interpreted

NO_NUL = {"argv", "env"}  # processes cannot receive NUL there; the tools refuse it
NOT_IN_OUTPUT = {"stdin": "before\ufffdafter"}  # results contain no NUL

FILE_NAMES_REFUSED = {"parent folder", "NUL", "empty"}
HEADERS_REFUSED = {"YAML", "ANSI", "OSC", "bidi", "NUL", "carriage return", "new header", "Markdown", "Mermaid", "blanks", "Chinese"}

every_payload = for_each(payload=PAYLOADS)


def test_no_payload_was_interpreted(payload_run: PayloadRun) -> None:
    assert {step.id for step in payload_run.run.steps if step.reason is not None and "unknown" in step.reason} == set()
    places = [step for step in payload_run.run.steps if step.id not in ("give", "table")]
    assert len(payload_run.receipts) == 2 + len(places) * len(PAYLOADS), "each payload has one call at each place"
    assert nothing_was_interpreted(payload_run.folder)
    assert not [unit for unit, receipt in payload_run.receipts.items() if PRODUCT in f"{receipt.result}{receipt.error}"]


@for_each(payload=PAYLOADS, place=["result", "input"])
def test_a_reference_returns_the_text_and_is_not_evaluated_again(payload_run: PayloadRun, place: str, payload: str) -> None:
    text = PAYLOADS[payload]
    text = text if place == "result" else text.replace("\0", "")
    inside, nested = (f"<{text}>", {"a": [text]}) if place == "result" else (text + text, {"b": [text]})
    assert payload_run.result(place, payload) == {"whole": text, "inside": inside, "nested": nested}


@for_each(payload=PAYLOADS, place=["argv", "env", "stdin", "bash"])
def test_a_command_gets_the_text_unchanged(payload_run: PayloadRun, place: str, payload: str) -> None:
    if payload == "NUL" and place in NO_NUL:
        assert _refusal(payload_run, place, payload) == f"`{'printf' if place == 'argv' else 'sh'}` cannot be started: embedded null byte"
        return
    expected = NOT_IN_OUTPUT.get(place, "beforeafter") if payload == "NUL" else PAYLOADS[payload]
    assert payload_run.result(place, payload) == {"exit_code": 0, "stdout": expected, "stderr": ""}


@every_payload
def test_a_statement_parameter_is_bound_as_a_value(payload_run: PayloadRun, payload: str) -> None:
    assert payload_run.result("sql", payload) == {"rows": [{"v": PAYLOADS[payload]}]}


def test_inserted_rows_are_stored_and_the_table_still_exists(payload_run: PayloadRun) -> None:
    with sqlite3.connect(payload_run.folder.parent / "notes.db") as database:
        kept = [text for (text,) in database.execute("SELECT v FROM notes")]
    assert sorted(kept) == sorted(PAYLOADS.values())


@every_payload
def test_a_header_carries_the_text_or_is_refused_by_name(payload_run: PayloadRun, payload: str) -> None:
    if payload in HEADERS_REFUSED:
        assert _refusal(payload_run, "header", payload).startswith("`x-text` cannot be sent as a header: a name has letters")
        return
    assert unquote(payload_run.result("header", payload)["headers"]["x-text"]) == PAYLOADS[payload]


@every_payload
def test_a_body_arrives_as_json(payload_run: PayloadRun, payload: str) -> None:
    assert payload_run.result("body", payload)["status"] == 200
    assert PAYLOADS[payload] in [json.loads(body)["text"] for _, body in payload_run.seen if body]


@every_payload
def test_a_file_name_stays_inside_the_folder_or_is_refused(payload_run: PayloadRun, payload: str) -> None:
    text = PAYLOADS[payload]
    if payload in FILE_NAMES_REFUSED:
        assert "path" in _refusal(payload_run, "file_name", payload) or "does not lead to a file in" in _refusal(
            payload_run, "file_name", payload
        )
        assert _refusal(payload_run, "read_name", payload) == _refusal(payload_run, "file_name", payload)
        return
    written = payload_run.result("file_name", payload)["path"]
    assert written == str(payload_run.folder / text)
    assert (payload_run.folder / text).read_text() == "here"


@every_payload
def test_a_file_contains_the_text(payload_run: PayloadRun, payload: str) -> None:
    assert payload_run.result("content", payload)["size"] == len(PAYLOADS[payload].encode())


@every_payload
def test_an_error_keeps_its_own_message(payload_run: PayloadRun, payload: str) -> None:
    text = PAYLOADS[payload].replace("\0", "\\x00")
    assert _refusal(payload_run, "error", payload) == (f"ValueError: {text}" if text else "ValueError")


@every_payload
def test_a_log_line_holds_the_text(payload_run: PayloadRun, payload: str) -> None:
    lines = "\n".join(payload_run.logs["log"])
    assert PAYLOADS[payload] in lines


def _refusal(payload_run: PayloadRun, place: str, payload: str) -> str:
    receipt = payload_run.receipt(place, payload)
    assert receipt is not None and receipt.outcome is Outcome.FAILED
    return receipt.error or ""
