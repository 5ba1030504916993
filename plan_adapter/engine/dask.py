"""`DaskCluster`: calls tools on the workers of a Dask cluster, either an existing one or one that lasts as long as the run."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar, cast
from uuid import uuid4

from plan_adapter.local.credentials import environment_without_credentials
from plan_adapter.model.errors import ToolError, UnknownOutcomeError, error_message

log = logging.getLogger(__name__)

INSTALL_DASK = "pip install 'prefect-plan-adapter[dask]'"

T = TypeVar("T")

# Dask's own annotations say little, and its methods return a value or a coroutine, depending on the thread.
Client: TypeAlias = Any
Security: TypeAlias = Any
Queue: TypeAlias = Any


def has_dask() -> bool:
    """Return whether the packages of the extra `dask` are installed."""
    return find_spec("prefect_dask") is not None


@asynccontextmanager
async def dask_cluster(address: str | None, *, processes: int) -> AsyncGenerator["DaskCluster"]:
    """Yield the cluster whose scheduler is at `address`, or else one on this machine, with `processes` workers, that ends with the block.

    Nothing is started or connected before the first call.
    """
    cluster = DaskCluster(address, processes=processes)
    try:
        yield cluster
    finally:
        await asyncio.shield(asyncio.to_thread(cluster.close))


class DaskCluster:
    """A Dask cluster that calls tools. Implements `ports.Cluster`."""

    def __init__(self, address: str | None, *, processes: int) -> None:
        """Use the scheduler at `address`, or start `processes` workers on this machine, at most one per core."""
        self._address = address
        self._processes = min(processes, os.cpu_count() or 1)
        self._lock = threading.Lock()
        self._resources = ExitStack()
        self._client: Client | None = None

    async def call(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` on a worker, at most once, and return its result. See `ports.Cluster`."""
        client = await asyncio.to_thread(self._connect)
        # The client has an event loop of its own. Cancelling the wrapper cancels `_call` there.
        future = asyncio.run_coroutine_threadsafe(_call(client, name, work), client.loop.asyncio_loop)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Disconnect. End the cluster that the run started and everything that still runs on it."""
        with self._lock:
            self._client = None
            self._resources.close()

    def _connect(self) -> Client:
        with self._lock:
            if self._client is None or self._client.status == "closed":  # the client gave up on its scheduler
                self._resources.close()
                self._client = self._new_client()
            return self._client

    def _new_client(self) -> Client:
        try:
            from prefect_dask.client import PrefectDaskClient
        except ImportError as error:
            raise ToolError(f"Dask is not installed here: {INSTALL_DASK} ({error})") from error
        # Not DaskTaskRunner: it would run the step's task on the worker, which needs Prefect's server and credentials there, and it prefers
        # any other client of this process to the address.
        with ExitStack() as resources:
            address, security = (self._address, None) if self._address else resources.enter_context(_start_local_cluster(self._processes))
            try:
                client: Client = resources.enter_context(cast("Any", PrefectDaskClient)(address, security=security, set_as_default=False))
            except (OSError, ValueError) as error:
                raise ToolError(f"no Dask scheduler answers at {address} (PLAN_ADAPTER_DASK_ADDRESS): {error_message(error)}") from error
            self._resources = resources.pop_all()
            return client


async def _call(client: Client, name: str, work: Callable[[], T]) -> T:
    """Run `work` on a worker and return its result. Call this in the event loop of `client`.

    Dask runs a task again if its worker is lost, even after the task has ended. No setting of a task prevents that, and the scheduler may
    belong to somebody else. So each call has one ticket, in a queue of the scheduler, and only the worker that takes it may start.
    """
    import distributed

    key = f"{name}-{uuid4().hex}"
    tickets: Queue = await cast("Any", distributed.Queue(f"plan-adapter-{key}", client=client))
    try:
        await tickets.put(key)
        future = client.submit(_start_once, tickets.name, work, key=key)
        try:
            answer = await future
        except asyncio.CancelledError:
            await tickets.get(batch=True)
            await future.cancel(reason="the run ended the call")
            raise
        except Exception as error:  # the cluster failed: `work` raises nothing
            raise await _error_of_lost_call(tickets, error) from error
        finally:
            future.release()
    finally:
        tickets.close()
    if answer is None:
        raise UnknownOutcomeError("the worker was lost; Dask started the call again, and the second start did nothing")
    return answer[0]


async def _error_of_lost_call(tickets: Queue, error: Exception) -> ToolError:
    """Return the error of a call whose future failed with `error`. An unused ticket proves that the call never started."""
    why = error_message(error.__cause__ or error)
    try:
        unused_tickets = await tickets.get(batch=True)
    except Exception as unreachable:
        why, unused_tickets = f"{why}; {error_message(unreachable)}", []
    if unused_tickets:
        return ToolError(f"the Dask cluster could not start the call: {why}")
    return UnknownOutcomeError(f"the Dask cluster lost the call: {why}")


def _start_once(tickets: str, work: Callable[[], T]) -> tuple[T] | None:
    """Run `work` and return its result in a tuple, or None if it was started before. Called on a worker."""
    import distributed

    queue: Queue = distributed.Queue(tickets)
    try:
        is_first = bool(queue.get(batch=True))
    finally:
        queue.close()
    return (work(),) if is_first else None


@contextmanager
def _start_local_cluster(processes: int) -> Generator[tuple[str, Security]]:
    """Start a cluster on this machine for this account only. Yield its address and keys. It ends with the block or the run."""
    import distributed

    command = [sys.executable, "-P", "-m", "plan_adapter.engine.dask_process"]
    environment = environment_without_credentials(os.environ, keeps_settings=True)
    process = subprocess.Popen(  # noqa: S603  # this interpreter, with fixed arguments
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with tempfile.TemporaryDirectory(prefix="plan-dask-", ignore_cleanup_errors=True) as folder, process:  # closes its input, and waits
        process.stdin.write(json.dumps({"processes": processes, "folder": folder, "path": sys.path}) + "\n")
        process.stdin.flush()
        if not (line := process.stdout.readline()):
            raise ToolError(f"no Dask cluster could be started on this machine; its process ended with code {process.wait()}")
        started: dict[str, str] = json.loads(line)
        certificate, key = started["certificate"], started["key"]
        log.info("Started a Dask cluster of %d processes at %s", processes, started["address"])
        yield (
            started["address"],
            distributed.Security(tls_ca_file=certificate, tls_client_cert=certificate, tls_client_key=key, require_encryption=True),
        )
