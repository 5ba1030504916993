"""What the log of a page says of its gate."""

from collections.abc import Callable
from datetime import UTC
from typing import TypeAlias

from prefect.context import FlowRunContext
from prefect.logging.loggers import flow_run_logger

from plan_adapter.execution.standing import answer_command
from plan_adapter.readable import call_name
from plan_adapter.record import ApprovalRequest

MAX_WORDS = 500

Tell: TypeAlias = Callable[[str], None]
"""Writes a line into the log of a flow run."""


def teller(flow: FlowRunContext) -> Tell:
    """Return what writes into the log of this flow run, from whatever context it is called."""
    logger = flow_run_logger(flow_run=flow.flow_run, flow=flow.flow)
    return lambda said: logger.info("%s", said)


def place_of(request: ApprovalRequest) -> str:
    """Return the step that is asked about, and its item."""
    return call_name(str(request.step_id), request.item, request.label)


_IN_THE_UI = "answer with the button Resume (in Prefect's newer UI: in the menu ⋮)"
"""Where each of Prefect's UIs has the button, on the page of the flow run."""


def waiting(request: ApprovalRequest) -> str:
    """Return that the gate of `request` is open, and how it is answered."""
    command = answer_command(request)
    if request.kind == "outcome":
        return f"asks how {place_of(request)} ended, which nobody knows: {_IN_THE_UI}, or with `{command}`"
    until = "" if request.expires_at is None else f", until {request.expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"waits for an approval{until}: {_IN_THE_UI}, or with `{command}`"
