import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from plan_adapter.tools.tool import ToolContext
from tests.ssh import server

__all__ = ["server"]

logger = logging.getLogger("tests.tools.step")


@pytest.fixture
def context(caplog: pytest.LogCaptureFixture) -> ToolContext:
    """Return the context of a first attempt. `caplog` gets what the tool logs."""
    caplog.set_level(logging.INFO, logger=logger.name)
    return ToolContext(
        run_id="run",
        step_id="step",
        attempt=1,
        idempotency_key="key-of-the-step",
        agent_id=None,
        org_id=None,
        tenant_id=None,
        logger=logger,
        deadline=None,
    )


@pytest.fixture
def another_step(context: ToolContext) -> Callable[[str], ToolContext]:
    """Return a function that makes the context of another step from its idempotency key."""
    return lambda key: replace(context, idempotency_key=key)
