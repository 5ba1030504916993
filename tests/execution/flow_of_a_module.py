"""A Prefect flow that another process can import."""

from prefect import flow
from prefect.context import FlowRunContext


@flow
def double(number: int) -> int:
    """Return twice `number`; says so if it is run as a flow."""
    return number * 2 if FlowRunContext.get() is None else -1
