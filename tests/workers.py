"""A Prefect worker for one test, in its own process."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from pydantic import JsonValue

from plan_adapter.engine.connection import Server

ROOT = Path(__file__).parents[1]


@contextmanager
def worker(server: Server, *, pool: str, log: Path, environment: Mapping[str, str]) -> Generator[None]:
    """Create the work pool `pool` and run a worker for it. `environment` is added to the environment of its runs."""
    variables = {
        **os.environ,
        "PREFECT_API_URL": server.api_url,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PYTHONPATH": str(ROOT),
        "PLAN_ADAPTER_ALLOW_LOCAL_STORE": "true",
        **environment,
    }
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    subprocess.run(
        [*prefect, "work-pool", "create", pool, "--type", "process", "--overwrite"], env=variables, check=True, capture_output=True
    )
    with log.open("w") as output:
        start = [*prefect, "worker", "start", "--pool", pool, "--type", "process"]
        process = subprocess.Popen(start, cwd=ROOT, env=variables, stdout=output, stderr=output, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


async def deployed(client: PrefectClient, *, pool: str, parameters: Mapping[str, JsonValue] | None = None) -> UUID:
    """Return the id of a deployment of `plan_adapter.flows.run_plan` with `parameters`, for the worker of `pool`."""
    from plan_adapter.flows import run_plan

    return await client.create_deployment(
        flow_id=await client.create_flow(run_plan),
        name=f"{pool}-worker",
        work_pool_name=pool,
        entrypoint="plan_adapter.flows.run_plan",  # without a path, which Prefect 3.9 copies for each run, `.venv` included
        parameters=dict(parameters or {}),
    )
