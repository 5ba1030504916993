"""The automations that start a deployed runbook when an event comes: one for each trigger of its plan, found again by their names."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.events.schemas.automations import Automation, AutomationCore

from plan_adapter.model.options import Trigger
from plan_adapter.model.readable import one_line
from plan_adapter.model.triggers import EVENT_PARAMETER

TAG = "plan-adapter"


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
