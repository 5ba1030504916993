"""The one exit for text to Prefect: every name, message, log line, label, event, description and artifact passes through here.

Text of plans, tools, models and people is untrusted. Prefect's pages show some of it as it is and render the rest as Markdown. In neither
may it hide or move what stands around it, or make links, pictures or HTML. Values, such as the parameters of a flow run, are no text.

The fields of forms are described in `validation/inputs.py` (`form_schema`), the text of gates in `text/`.
"""

import hashlib
import logging
import re
import traceback
from typing import Any, cast

from plan_adapter.model.readable import MAX_NAME_CHARACTERS, cut, one_line, prose, visible

MAX_MESSAGE_CHARACTERS = 2000
MAX_LABEL_CHARACTERS = 1000
MAX_ARTIFACT_CHARACTERS = 1_000_000


def state_message(text: str) -> str:
    """Return the message of a state, shown as it is: visible, and cut at 2,000 characters."""
    shown = visible(text)
    return shown if len(shown) <= MAX_MESSAGE_CHARACTERS else cut(shown, MAX_MESSAGE_CHARACTERS - 1) + "…"


def log_line(text: str) -> str:
    """Return a line of a log."""
    return visible(text)


def log_text(record: logging.LogRecord) -> str:
    """Return the message of `record`, followed by its traceback if it has one."""
    error = record.exc_info[1] if record.exc_info else None
    return visible("\n".join([record.getMessage(), *([] if error is None else ["".join(traceback.format_exception(error)).rstrip()])]))


def label(text: str) -> str:
    """Return the value of a label."""
    return cut(one_line(text), MAX_LABEL_CHARACTERS)


def run_name(text: str) -> str:
    """Return the name of a flow run or task run, on one line."""
    return cut(one_line(text), MAX_NAME_CHARACTERS)


def paragraphs(text: str) -> str:
    """Return `text` as the Markdown paragraphs of a description."""
    return "\n\n".join(prose(paragraph) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip())


def markdown(text: str) -> str:
    """Return a Markdown document for an artifact, whose writer has escaped the texts in it: visible, and cut if it is too long."""
    shown = visible(text)
    if len(shown) <= MAX_ARTIFACT_CHARACTERS:
        return shown
    return cut(shown, MAX_ARTIFACT_CHARACTERS) + "\n\n… cut here; `plan show` has all of it."


def event_payload(value: Any) -> Any:
    """Return the payload or a resource of an event, with every text in it visible."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: event_payload(member) for name, member in cast("dict[str, Any]", value).items()}
    return [event_payload(member) for member in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


MAX_KEY_CHARACTERS = 200


def artifact_key(name: str) -> str:
    """Return `name` as a Prefect key: lowercase letters, digits and dashes, plus a digest of `name` if that loses anything."""
    key = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if key == name and len(key) <= MAX_KEY_CHARACTERS:
        return key
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{key[: MAX_KEY_CHARACTERS - 13].rstrip('-')}-{digest}".lstrip("-")
