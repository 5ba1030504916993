"""The preview of a write: Markdown that a tool library shows after the write, as an artifact. It can fail neither the call nor the run."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from plan_adapter.execution.calling import CallStoppedError, CallTimedOutError, complete, prepare_call
from plan_adapter.execution.printing import prints_of_call
from plan_adapter.execution.scope import RunScope
from plan_adapter.model.errors import ToolError, error_text
from plan_adapter.tools.tool import Tool, ToolContext

log = logging.getLogger(__name__)

PREVIEW_SECONDS = 30.0
"""How long a preview may take."""


async def show_preview(
    scope: RunScope, preview: Tool[..., Any], call: str, parameters: Mapping[str, JsonValue], context: ToolContext
) -> None:
    """Publish what `preview` returns after the write `call` with these `parameters`, in which secrets are not resolved.

    Without Prefect, it is only logged, at the level DEBUG. A failure is logged as a warning in the step's log.
    """
    redact = scope.secrets.redactor.text
    try:
        text = redact(await _preview_text(scope, preview, parameters, context))
    except CallTimedOutError:
        context.logger.warning("the preview `%s` gave no answer within %g s", preview.name, PREVIEW_SECONDS)
    except CallStoppedError:
        context.logger.info("the preview `%s` was ended, because the run stops", preview.name)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            raise
        context.logger.warning("the preview `%s` failed: %s", preview.name, error_text(error, redact))
    else:
        log.debug("the preview of %s: %s", call, text)
        if scope.publish is not None:
            await scope.publish(text, key=f"preview-{context.step_id}", description=f"After {redact(call)}")


async def _preview_text(scope: RunScope, preview: Tool[..., Any], parameters: Mapping[str, JsonValue], context: ToolContext) -> str:
    arguments = preview.bind({name: value for name, value in parameters.items() if name in preview.parameter_names}, context)
    with prints_of_call(context.logger):
        coroutine = prepare_call(preview, arguments, isolation="thread")
        text = await complete(coroutine, preview.name, timeout=PREVIEW_SECONDS, stop=scope.stop)
    if not isinstance(text, str):
        raise ToolError(f"it returned {type(text).__name__} instead of text")
    return text
