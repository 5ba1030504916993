"""`failed_checks`: asks the tools of a group, before its first item begins, for which items they could not be called."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from plan_adapter.execution.calling import CallStoppedError, CallTimedOutError, complete, prepare_call
from plan_adapter.execution.groups import Group
from plan_adapter.execution.scope import RunScope, step_logger
from plan_adapter.expressions import Prediction, has_expression
from plan_adapter.model.errors import error_text
from plan_adapter.model.plan import Step
from plan_adapter.model.record import StepRun
from plan_adapter.tools.tool import CHECK_SECONDS, CHECKS_AT_ONCE, Tool, ToolContext


def has_checks(scope: RunScope, group: Step) -> bool:
    """Return whether a tool of the group can be asked. In a dry run none is."""
    tools = scope.approved.bound.validated.tools
    return scope.assume is None and any(inner.id in tools and tools[inner.id].preflight is not None for inner in group.steps)


async def failed_checks(scope: RunScope, group: Group, step_run: StepRun) -> dict[int, str]:
    """Return why items of `group` cannot be called, by item. Items that have begun in an earlier start are not checked."""
    checks: dict[tuple[str, str], tuple[Tool[..., Any], dict[str, JsonValue], ToolContext]] = {}
    items: dict[tuple[str, str], list[int]] = {}
    for item, inner, check, arguments in _checks_of(scope, group):
        key = (check.name, json.dumps(arguments, sort_keys=True))
        checks[key] = (check, arguments, _context(scope, inner, step_run))
        items.setdefault(key, []).append(item)
    limit = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def why_failed(key: tuple[str, str]) -> tuple[tuple[str, str], str]:
        async with limit:
            return key, await _why_failed(scope, *checks[key])

    failed: dict[int, str] = {}
    for key, why in await asyncio.gather(*map(why_failed, checks)):
        failed |= {item: failed.get(item, why) for item in items[key]} if why else {}
    return failed


def _checks_of(scope: RunScope, group: Group) -> Iterator[tuple[int, Step, Tool[..., Any], dict[str, JsonValue]]]:
    """Yield each item, step and check with its arguments, as far as the inputs and the item decide them."""
    bound = scope.approved.bound
    for item in range(len(group.labels)):
        if any((inner.id, item) in scope.history.attempts for inner in group.step.steps):
            continue
        known = scope.variables(item=group.value_of(item))
        prediction = Prediction(known.inputs, hosts=known.hosts, item=known.item)
        for inner in group.step.steps:
            tool = bound.validated.tools.get(inner.id)
            if tool is None or tool.preflight is None or inner.id in bound.validated.when:
                continue
            given = prediction.of(bound.validated.parameters[inner.id])
            names = tool.preflight.parameter_names
            arguments = {name: value for name, value in given.items() if name in names} if isinstance(given, dict) else {}
            if not has_expression(json.dumps(arguments)):
                yield item, inner, tool.preflight, arguments


def _context(scope: RunScope, inner: Step, step_run: StepRun) -> ToolContext:
    run = scope.run
    return ToolContext(
        run_id=run.id,
        step_id=inner.id,
        attempt=1,
        idempotency_key="",
        agent_id=run.agent_id,
        org_id=run.org_id,
        tenant_id=run.tenant_id,
        logger=step_logger(scope, step_run, inner.id),
        deadline=None,
        redaction=scope.secrets.redactor,
    )


async def _why_failed(scope: RunScope, check: Tool[..., Any], arguments: dict[str, JsonValue], context: ToolContext) -> str:
    """Return why a check failed. Empty if it did not, or if the run stops."""
    try:
        work = prepare_call(check, check.bind(arguments, context), isolation="thread")
        await complete(work, check.name, timeout=CHECK_SECONDS, stop=scope.stop)
    except CallStoppedError:
        return ""
    except CallTimedOutError:
        return f"`{check.name}` gave no answer within {CHECK_SECONDS:g} s"
    except Exception as error:
        return error_text(error, scope.secrets.redactor.text)
    return ""
