"""Redact what a model must not see: secret values, passwords in URLs, and values under names that denote secrets."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from pydantic import JsonValue

from plan_adapter.drafts import PlanRequest
from plan_adapter.execution.secrets import Redactor
from plan_adapter.readable import MASK, redacted, without_passwords
from plan_adapter.secrets import visible_secrets
from plan_adapter.settings import Settings


async def environment_redactor() -> Redactor:
    """Return a redactor for the secrets that this process can read without knowing their names."""
    return Redactor.of(await visible_secrets(Settings()))


def redact_request(request: PlanRequest, redactor: Redactor) -> tuple[PlanRequest, list[str]]:
    """Return `request` as a model may see it, and the paths where a value was replaced by `***`."""
    before: dict[str, JsonValue] = {
        "task": request.task,
        "context": request.context if isinstance(request.context, str) else dict(request.context),
        "constraints": [*request.constraints],
    }
    after = cast("dict[str, JsonValue]", redactor.value(redacted(before)))
    shown = replace(
        request,
        task=cast("str", after["task"]),
        context=cast("str | Mapping[str, JsonValue]", after["context"]),
        constraints=tuple(cast("list[str]", after["constraints"])),
    )
    return shown, _changed_paths(before, after, "")


def redact_text(text: str, redactor: Redactor) -> str:
    """Return `text` without known secrets and passwords in URLs."""
    return redactor.text(without_passwords(text))


def redaction_note(places: list[str]) -> str:
    """Return a note that says which values the model was not shown, and how a plan can refer to a secret."""
    return (
        f"the model saw `{MASK}` in place of secret values in {', '.join(f'`{place}`' for place in places)}; "
        "a plan refers to a secret by its name, as ${{ secrets.NAME }}"
    )


def _changed_paths(before: JsonValue, after: JsonValue, at: str) -> list[str]:
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        parts = [(before[key], after[key], f"{at}.{key}" if at else key) for key in before]
    elif isinstance(before, list) and isinstance(after, list):
        parts = [(old, new, f"{at}[{number}]") for number, (old, new) in enumerate(zip(before, after, strict=True))]
    else:
        return [at]
    return [place for old, new, where in parts for place in _changed_paths(old, new, where)]
