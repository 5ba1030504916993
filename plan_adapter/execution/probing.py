"""`ask_probe`: has a tool's probe look whether a write was done of which nobody knows it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue

from plan_adapter.execution.calling import CallStoppedError, CallTimedOutError, complete, work_of
from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.printing import prints_of_call
from plan_adapter.tools.probing import Done, NotDone
from plan_adapter.tools.tool import Tool, ToolContext


async def ask_probe(
    probe: Tool[..., Any],
    parameters: Mapping[str, JsonValue],
    context: ToolContext,
    *,
    timeout: float | None,
    stop: Stop,
    told: Callable[[BaseException], str],
) -> Done | NotDone | None:
    """Return what `probe` says of the attempt whose parameters and `context` these are.

    None where it cannot tell, and where it raises, takes longer than `timeout`, or returns anything else; why stands in the step's log,
    with what was raised as `told` words it.
    """
    try:
        arguments = probe.bind({name: value for name, value in parameters.items() if name in probe.parameter_names}, context)
        with prints_of_call(context.logger):
            said = await complete(work_of(probe, arguments, isolation="thread"), probe.name, timeout=timeout, stop=stop)
    except CallTimedOutError:
        why = f"gave no answer within {timeout:g} s"
    except CallStoppedError:
        why = f"was ended: {stop.message}"
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            raise
        why = f"failed: {told(error)}"
    else:
        if isinstance(said, Done | NotDone):
            return said
        why = "cannot tell" if said is None else f"returned {type(said).__name__} instead of Done, NotDone or None"
    context.logger.warning("whether attempt %d was done is unknown: the probe `%s` %s", context.attempt, probe.name, why)
    return None
