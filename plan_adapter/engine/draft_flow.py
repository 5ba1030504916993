"""Drafting inside a flow run: model calls as task runs, questions to a person as forms, and the draft as an artifact."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

from prefect import get_client, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.actions import ArtifactCreate
from prefect.exceptions import FlowPauseTimeout
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from prefect.runtime import flow_run
from prefect.states import Running
from pydantic import Field, create_model

from plan_adapter.engine.outgoing import markdown, publish_text, run_name
from plan_adapter.model.readable import prose

T = TypeVar("T")

log = logging.getLogger(__name__)

ANSWER_SECONDS = 24 * 3600
"""How long a person may take to answer a model's question."""
POLL_SECONDS = 2


async def run_as_task(name: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `ask`, called in a task run called `name`. Prefect keeps neither its parameters nor its result."""

    @task(name=run_name(name), cache_policy=NO_CACHE, persist_result=False)
    async def call() -> T:
        return await ask()

    return await call()


async def ask_model_question(question: str) -> str | None:
    """Show `question` in a form of the current flow run. Return the person's answer, or None if nobody answered in time."""
    fields: dict[str, Any] = {
        "answer": (str, Field(min_length=1, max_length=20_000, title="Answer", description="The model continues with it."))
    }
    form = create_model("Reply", __base__=RunInput, **fields).with_initial_data(description=f"The model asks:\n\n{prose(question)}")
    # Prefect restarts its pause counter each time a flow run starts, and then refuses or hides a form whose number it has already used.
    pause = pause_flow_run(wait_for_input=form, timeout=ANSWER_SECONDS, poll_interval=POLL_SECONDS, key=str(uuid4()))
    try:
        reply: Any = await cast("Awaitable[Any]", pause)
    except FlowPauseTimeout:
        async with get_client() as client:
            shown = (await client.read_flow_run(UUID(flow_run.id))).state
            if shown is not None and shown.is_paused():  # otherwise Prefect shows the flow run as paused forever
                await client.set_flow_run_state(UUID(flow_run.id), Running(), force=True)
        return None
    return str(reply.answer)


def current_flow_run() -> str | None:
    """Return the id of the current flow run, or None outside one."""
    found: str | None = flow_run.id
    return found


async def publish_summary(text: str, flow_run_id: str) -> None:
    """Publish the summary of a goal's outcome as an artifact of a flow run. The flow run may have ended."""
    data = "\n\n".join(prose(line) for line in text.splitlines() if line.strip())
    summary = ArtifactCreate(
        key="summary", type="markdown", description="Outcome of the goal", data=markdown(data), flow_run_id=UUID(flow_run_id)
    )
    try:
        async with get_client() as client:
            await client.create_artifact(summary)
    except Exception as error:
        log.warning("the artifact %s was not written: %s", summary.key, error)


async def publish_draft(text: str) -> None:
    """Publish a Markdown draft as an artifact of the current flow run."""
    await publish_text(text, key="draft", description="A draft of a plan, with every round")
