"""Words pydantic's errors as problems that name the field, what it accepts and what was given."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import ErrorDetails

from plan_adapter.documents.nodes import shorten_path
from plan_adapter.model.options import DocumentModel
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.values import join, milliseconds

_EXPECTED: Mapping[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_SCRIPT = "write `bash: |` with the script, or `run_command: [program, argument]`"
_TOOL = "write the tool as the key, as in `http_get: URL`, or `tool_name`"
_ARGUMENTS = "write the arguments under the name of the tool, or under `parameters`"
_LOOP = 'write `for_each: "${{ [...] }}"`; expressions call each item `item`'
_TIMEOUT = "write `timeout: 5m`"
_RETRY = "write `retry: {times: 3, delay: 2s}`"
_CONTINUE = "write `on_error: continue`"
_SCHEDULE = 'a schedule belongs to the deployment: `plan deploy NAME --cron "0 3 * * *"`'
_GITHUB = "this looks like a GitHub workflow: `plan import` converts it"
_SSM = "this looks like a document of AWS Systems Manager: `plan import` converts it"

FOREIGN_WORDS: Mapping[type[DocumentModel], Mapping[str, str]] = {
    Step: {
        **dict.fromkeys(("run", "script", "shell", "cmd", "command", "exec", "commands"), _SCRIPT),
        **dict.fromkeys(("tool", "action", "task", "module", "type", "operator"), _TOOL),
        **dict.fromkeys(("with", "args", "arguments", "params", "kwargs"), _ARGUMENTS),
        **dict.fromkeys(("loop", "with_items", "foreach", "items", "matrix", "strategy", "withItems", "withParam"), _LOOP),
        **dict.fromkeys(("timeout-minutes", "timeout_minutes", "timeout_seconds", "timeoutSeconds"), _TIMEOUT),
        **dict.fromkeys(("retries", "attempts", "max_attempts", "maxAttempts", "retryStrategy"), _RETRY),
        **dict.fromkeys(("retry_delay_seconds", "retry_delay_s", "retry_interval", "backoff"), _RETRY),
        **dict.fromkeys(("continue-on-error", "continue_on_error", "ignore_errors", "allow_failure", "allowFailure"), _CONTINUE),
        **dict.fromkeys(("depends", "depends-on", "dependencies", "after", "requires"), "write `needs`, with one id or a list"),
        **dict.fromkeys(("tasks", "block", "parallel", "jobs"), "write a group: `for_each` and `steps`"),
        **dict.fromkeys(("approval", "manual", "confirm", "pause"), "write `requires_approval: true`"),
        **dict.fromkeys(("environment", "vars", "variables"), "write `env`"),
        **dict.fromkeys(("working-directory", "workdir", "cwd", "chdir"), "write it as a parameter: `parameters: {cwd: /srv}`"),
        **dict.fromkeys(("image", "container"), "a step runs no container by itself: `bash: docker run …` does"),
        "uses": "a tool is the key, as in `http_get: URL`; another plan runs with `plan: FILE`; `plan import` converts a GitHub workflow",
        "name": "write `id`, or `description` for what people read",
        "register": "`${{ steps.ID.result }}` is the result of a step; nothing needs to register it",
        "until": "write `done_when`, and `retry`",
    },
    ExecutionPlan: {
        **dict.fromkeys(("on", "schedule", "cron", "triggers"), _SCHEDULE),
        **dict.fromkeys(("jobs", "runs-on"), _GITHUB),
        **dict.fromkeys(("mainSteps", "schemaVersion"), _SSM),
        **dict.fromkeys(("tasks", "stages", "workflow", "templates"), "write `steps`"),
        **dict.fromkeys(("vars", "variables", "params", "parameters", "arguments"), "write `inputs`"),
        **dict.fromkeys(("retry", "retries"), "write `defaults: {retry: {times: 3, delay: 2s}}`"),
        "environment": "write `env`",
        "hosts": "write a group: `for_each` over the hosts, and `steps`",
        "labels": "write `tags`",
    },
}
"""What other programs call things, by the part that has them: what to write here."""

_LIMITS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_LITERAL_CODES: Mapping[str, str] = {"effect": "bad-effect", "version": "unsupported-version"}


def to_problem(finding: ErrorDetails, path: tuple[int | str, ...], *, names_field: bool) -> Problem:
    """Return the problem of the value at `path`. Its message names the field and shows the value, or says `this` and the value's type."""
    at = ""
    for part in path:
        at = join(at, part)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in _field_path(path)).lstrip(".")
    code, message, hint = _describe(finding, shorten_path(name), names_field=names_field)
    return Problem(code, at=at, message=message, hint=hint)


def demand_of(finding: ErrorDetails) -> str:
    """Return what a value must be, such as `must be at least 1`, without the value itself. Any other message of pydantic stays as it is."""
    kind, context = finding["type"], finding.get("ctx", {})
    if kind == "literal_error":
        choices = _choices(context)
        listed = ", ".join(f"`{choice}`" for choice in choices)
        return f"must be {listed}" if len(choices) == 1 else f"must be one of {listed}"
    if kind in _LIMITS:
        words, limit = _LIMITS[kind]
        return f"must be {words} {context[limit]}"
    wanted = context.get("wanted") or _EXPECTED.get(kind)
    return f"must be {wanted}" if wanted else finding["msg"].removeprefix("Value error, ")


def _choices(context: Mapping[str, Any]) -> list[str]:
    return [text or number for text, number in re.findall(r"'([^']*)'|(\d+)", str(context.get("expected", "")))]


def _field_path(path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return the end of `path`, starting with a field's name."""
    start = max((index for index, part in enumerate(path) if isinstance(part, str)), default=0)
    return path[start:]


def _describe(finding: ErrorDetails, name: str, *, names_field: bool) -> tuple[str, str, str]:
    """Return the code, message and hint. A validator of a model has chosen them itself if its error has a code."""
    kind, context = finding["type"], finding.get("ctx", {})
    given = context.get("given", finding["input"])
    subject = f"`{name}`" if names_field else "this"
    instead = f", not {_describe_value(given, shown=names_field)}"
    if "code" in context:
        return context["code"], finding["msg"], context["hint"]
    if kind == "missing":
        if finding["loc"] == ("description",):
            return "no-description", "the plan has no description", "write in one sentence what the plan does"
        return "missing-field", f"`{name}` is missing", f"write `{name}`"
    if kind == "extra_forbidden":
        return "unknown-field", f"`{name}` is no field here", ""
    if kind == "literal_error":
        known = _choices(context)
        hint = did_you_mean(given[:60], known) if isinstance(given, str) and len(known) > 1 else ""
        message = f"{subject} {demand_of(finding)}" + (instead if names_field else "")
        return _LITERAL_CODES.get(name, "bad-value"), message, hint if hint.startswith("did") else ""
    if kind in _LIMITS:
        return "bad-value", f"{subject} {demand_of(finding)}{instead}", ""
    if wanted := context.get("wanted") or _EXPECTED.get(kind):
        return "wrong-type", f"{subject} {demand_of(finding)}{instead}", context.get("hint", _hint(wanted, given, name))
    return "bad-value", f"{subject}: {finding['msg']}", ""


def _describe_value(value: object, *, shown: bool) -> str:
    """Return a phrase for `value` that shows only a few of its characters, or none of them."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower() if shown else "true or false"
        case int() | float():
            return f"the number {value}" if shown else "a number"
        case str():
            return (f"the text {value!r}" if len(value) <= 40 else f"the text {value[:40]!r}…") if shown else "text"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _hint(wanted: str, given: object, name: str) -> str:
    if given is None:
        return "write a value, or remove the line"
    if wanted == "text" and isinstance(given, bool | int | float):
        return "put it in quotes"
    if wanted == "a list":
        return "" if isinstance(given, dict) else "write a list: [ … ]"
    if not isinstance(given, str):
        return ""
    if "${{" in given:
        return "this field accepts no expression"
    if wanted == "an integer" and name.endswith("_ms") and (count := milliseconds(given)) is not None:
        return f"write {count}, or `{name.removesuffix('_ms')}: {given}`"
    if wanted == "true or false":
        return "`yes`, `no`, `on` and `off` are text; write true or false without quotes"
    bare = given.strip().removeprefix("-").replace(".", "", 1)
    return "write the number without quotes" if wanted in ("an integer", "a number") and bare.isdecimal() else ""
