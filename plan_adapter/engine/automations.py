"""The automations that start a deployed runbook when an event comes: one for each trigger of its plan, found again by their names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.events.schemas.automations import Automation, AutomationCore

from plan_adapter.model.options import Trigger
from plan_adapter.model.readable import one_line
from plan_adapter.model.triggers import EVENT_PARAMETER

TAG = "plan-adapter"
PAGE = 200
"""The most that Prefect's server returns for one request."""


@dataclass(frozen=True, slots=True)
class Starter:
    """An automation that is switched on and starts a deployed runbook: for which events, by the trigger with this number."""

    automation_id: str
    deployment_id: str
    trigger: int
    expect: tuple[str, ...]
    match: Mapping[str, tuple[str, ...]]

    def covers(self, event: str, resource: Mapping[str, str]) -> bool:
        """Return whether Prefect starts the runbook for this event."""
        return any(fnmatchcase(event, pattern) for pattern in self.expect) and all(
            any(_fits(pattern, resource.get(name)) for pattern in patterns) for name, patterns in self.match.items()
        )


async def read_starters(client: PrefectClient) -> list[Starter]:
    """Return the automations that start deployed runbooks."""
    found, wanted = list[dict[str, Any]](), {"tags": {"all_": [TAG]}}
    while len(found) % PAGE == 0:
        response = await client.request("POST", "/automations/filter", json={"automations": wanted, "limit": PAGE, "offset": len(found)})
        page = cast("list[dict[str, Any]]", response.json())
        if not page:
            break
        found += page
    return [starter for automation in found if automation["enabled"] and (starter := _starter_of(automation)) is not None]


def _starter_of(automation: dict[str, Any]) -> Starter | None:
    """Return the starter that an automation is, or None for one with another action, or that people made."""
    trigger, number = automation["trigger"], automation["name"].rpartition(" trigger ")[2].partition(":")[0]
    if not number.isdigit() or [action["type"] for action in automation["actions"]] != ["run-deployment"]:
        return None
    return Starter(
        automation["id"],
        automation["actions"][0]["deployment_id"],
        int(number),
        tuple(trigger["expect"]),
        {name: (patterns,) if isinstance(patterns, str) else tuple(patterns) for name, patterns in trigger["match"].items()},
    )


def _fits(pattern: str, value: str | None) -> bool:
    """Return whether a label has a value that fits, as Prefect's server decides it."""
    return value is not None and fnmatchcase(value, pattern.removeprefix("!")) is not pattern.startswith("!")


def automation_name(deployment: str, number: int, event: str) -> str:
    """Return the name of the automation of a trigger. `deployment` is `flow/deployment`."""
    return f"{_prefix(deployment)}{number}: {one_line(event)}"


async def read_automations(client: PrefectClient, deployment: str, deployment_id: UUID) -> list[Automation]:
    """Return the automations of the deployment's triggers. Those that people made for it are left out."""
    related = await client.read_resource_related_automations(_resource(deployment_id))
    return [found for found in related if TAG in found.tags and found.name.startswith(_prefix(deployment))]


def differ(existing: Sequence[Automation], wanted: Sequence[AutomationCore]) -> bool:
    """Return whether the automations on the server are not those that a deployment should have."""
    before, after = ({found.name: _compared(found) for found in automations} for automations in (existing, wanted))
    return len(existing) != len(wanted) or before != after


async def apply_automations(client: PrefectClient, existing: Sequence[Automation], wanted: Sequence[AutomationCore]) -> None:
    """Create, update and delete automations until the deployment has those that it should have. One that is disabled stays so."""
    left = list(existing)
    for automation in wanted:
        known = next((found for found in left if found.name == automation.name), None)
        if known is None:
            await client.create_automation(automation)
            continue
        left.remove(known)
        if _compared(known) != _compared(automation):
            await client.update_automation(known.id, automation.model_copy(update={"enabled": known.enabled}))
    await delete_automations(client, left)


async def delete_automations(client: PrefectClient, automations: Sequence[Automation]) -> None:
    """Delete these automations."""
    for automation in automations:
        await client.delete_automation(automation.id)


def automations_of(deployment: str, deployment_id: UUID, triggers: Sequence[Trigger]) -> list[AutomationCore]:
    """Return the automations that start the deployment, one for each trigger.

    The server renders the event into one text of JSON, and nothing renders that text again. The flow evaluates the rest of the trigger.
    """
    return [_automation_of(deployment, deployment_id, number, trigger) for number, trigger in enumerate(triggers, start=1)]


def _automation_of(deployment: str, deployment_id: UUID, number: int, trigger: Trigger) -> AutomationCore:
    template = f'{{"trigger": {number}, "event": {{{{ event | tojson }}}}}}'
    fields: dict[str, Any] = {
        "name": automation_name(deployment, number, trigger.event),
        "description": f"Starts {deployment} when the event comes, unless its plan ignores it. `plan deploy` made it",
        "tags": [TAG],
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "expect": [trigger.event],
            "match": dict(trigger.resource),
            "threshold": 1,
            "within": 0,
        },
        "actions": [
            {
                "type": "run-deployment",
                "source": "selected",
                "deployment_id": str(deployment_id),
                "parameters": {EVENT_PARAMETER: {"__prefect_kind": "jinja", "template": template}},
            }
        ],
    }
    return AutomationCore.model_validate(fields)


def _compared(automation: AutomationCore) -> str:
    """Return the parts of an automation that a deployment decides, as text: its trigger, its actions and its texts."""
    fields = automation.model_dump(mode="json", include={"name", "description", "tags", "trigger", "actions"})
    return json.dumps(fields, sort_keys=True)


def _prefix(deployment: str) -> str:
    return f"{deployment} trigger "


def _resource(deployment_id: UUID) -> str:
    return f"prefect.deployment.{deployment_id}"
