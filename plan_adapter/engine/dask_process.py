"""The process of a run's own Dask cluster: `python -m plan_adapter.engine.dask_process`. It lives as long as its standard input is open.

The process of the run holds no `LocalCluster`: its workers would import the run's main script again, inherit the run's credentials and
print to its output.
"""

import json
import logging
import multiprocessing
import os
import select
import shutil
import signal
import sys
from typing import Any, cast

CHECK_SECONDS = 1.0


def main() -> None:
    """Read a request as a line of JSON, start that cluster, answer with its address and keys as a line of JSON, and serve it."""
    request = json.loads(sys.stdin.readline())
    sys.path[:] = request["path"]
    owner, reply = os.dup(0), os.dup(1)
    sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # shows why a cluster does not start
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the workers inherit these, and nothing would redact what tools write there
        os.dup2(devnull, stream)
    try:
        _serve(request["processes"], request["folder"], owner, reply)
    finally:
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()
        shutil.rmtree(request["folder"], ignore_errors=True)  # the run also removes it if it is alive
        os.killpg(0, signal.SIGKILL)  # also ends processes that tools left behind


def _serve(processes: int, folder: str, owner: int, reply: int) -> None:
    import dask
    import distributed

    # Dask's web pages would need no key.
    cast("Any", dask).config.set({"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []})
    cast("Any", dask).config.set({"distributed.deploy.lost-worker-timeout": "3s"})
    # Without keys, every account of this machine could run code as this one.
    security: Any = cast("Any", distributed.Security).temporary()
    cluster = cast("Any", distributed.LocalCluster)(
        n_workers=processes,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        security=security,
        local_directory=folder,
        silence_logs=logging.CRITICAL,
    )
    started = {"address": cluster.scheduler_address, "certificate": security.tls_client_cert, "key": security.tls_client_key}
    with os.fdopen(reply, "w", encoding="utf-8") as output:
        output.write(json.dumps(started) + "\n")
    # Dask restarts a worker that dies, but not one that dies just as it starts. `scale` replaces that one.
    while not select.select([owner], [], [], CHECK_SECONDS)[0]:
        cluster.scale(processes)


if __name__ == "__main__":
    main()
