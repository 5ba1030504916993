"""The log lines of a flow run and its steps, as Prefect's API keeps them."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import Log
from prefect.client.schemas.sorting import LogSort

PAGE = 200  # the most that Prefect's API returns at once


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log record. `step` is the name of its task run, or None for a record of the flow itself."""

    at: datetime
    level: int
    step: str | None
    text: str


async def flow_run_logs(flow_run_id: str) -> list[LogLine]:
    """Return the records of a flow run and its task runs, oldest first, from the current server."""
    async with get_client() as client:
        logs = await _logs(client, flow_run_id)
        names = await _task_names(client, flow_run_id)
    return [LogLine(log.timestamp, log.level, names.get(log.task_run_id), log.message) for log in logs]


async def _logs(client: PrefectClient, flow_run_id: str) -> list[Log]:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[UUID(flow_run_id)]))
    logs: list[Log] = []
    while True:
        page = await client.read_logs(log_filter=wanted, limit=PAGE, offset=len(logs), sort=LogSort.TIMESTAMP_ASC)
        logs += page
        if len(page) < PAGE:
            return logs


async def _task_names(client: PrefectClient, flow_run_id: str) -> dict[UUID | None, str]:
    this = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run_id)]))
    names: dict[UUID | None, str] = {}
    while True:
        page = await client.read_task_runs(flow_run_filter=this, limit=PAGE, offset=len(names))
        names |= {run.id: run.name for run in page}
        if len(page) < PAGE:
            return names
