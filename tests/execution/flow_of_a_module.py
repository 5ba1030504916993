"""A Prefect flow that another process can import."""

from prefect import flow
from prefect.context import FlowRunContext


@flow
def double(number: int) -> int:
    """Return twice `number`, or -1 if it runs as a flow."""
    return number * 2 if FlowRunContext.get() is None else -1
