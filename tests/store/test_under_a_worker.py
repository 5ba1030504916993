"""A store on a local path is refused under a Prefect worker: its receipts could be lost with the worker's host."""

import socket
from importlib.util import find_spec
from pathlib import Path

import pytest

from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import StoreError, StoreSettingsError
from plan_adapter.store.store import PlanStore, refuse_local_under_worker

RUN = {"PREFECT__FLOW_RUN_ID": "01999999-0000-7000-8000-000000000000"}
SERVED = {**RUN, "PREFECT__STORAGE_BASE_PATH": "runner"}
UNDER_A_WORKER = [
    pytest.param({**RUN, "PREFECT__WORKER_NAME": "w", "PREFECT__FLOW_ID": "f"}, id="a process worker"),
    pytest.param({**SERVED, "PREFECT__WORKER_NAME": "w"}, id="a container worker, which starts a runner inside"),
    pytest.param(RUN, id="a pool that pushes"),
]


@pytest.mark.parametrize("environ", UNDER_A_WORKER)
def test_a_local_path_is_refused_under_a_worker(environ: dict[str, str]):
    with pytest.raises(StoreError, match="PLAN_ADAPTER_DATABASE_URL to a PostgreSQL database, or PLAN_ADAPTER_ALLOW_LOCAL_STORE=true"):
        refuse_local_under_worker("sqlite:///plans.db", Settings(), environ)


@pytest.mark.parametrize("environ", UNDER_A_WORKER)
@pytest.mark.parametrize("url", ["postgresql://host/db", "postgres://host/db"])
def test_a_server_is_accepted_under_a_worker(environ: dict[str, str], url: str):
    refuse_local_under_worker(url, Settings(), environ)


@pytest.mark.parametrize("environ", [{}, SERVED], ids=["a script", "serve"])
def test_a_local_path_is_accepted_without_a_worker(environ: dict[str, str]):
    refuse_local_under_worker("sqlite:///plans.db", Settings(), environ)


@pytest.mark.parametrize("environ", UNDER_A_WORKER)
def test_a_setting_allows_a_local_path(environ: dict[str, str]):
    refuse_local_under_worker("sqlite:///plans.db", Settings(allow_local_store=True), environ)


@pytest.mark.parametrize("environ", UNDER_A_WORKER)
def test_a_file_of_another_machine_is_refused_under_a_worker(environ: dict[str, str]):
    refuse_local_under_worker("sqlite:///plans.db", Settings(allow_local_store=True, store_host=socket.gethostname()), environ)
    with pytest.raises(StoreSettingsError, match="the store is a file of the machine web-7, and this worker runs on "):
        refuse_local_under_worker("sqlite:///plans.db", Settings(allow_local_store=True, store_host="web-7"), environ)
    refuse_local_under_worker("sqlite:///plans.db", Settings(allow_local_store=True, store_host="web-7"), SERVED)


def test_a_store_reads_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", RUN["PREFECT__FLOW_RUN_ID"])
    monkeypatch.setenv("PREFECT__WORKER_NAME", "w")
    with pytest.raises(StoreError, match="under a Prefect worker"):
        PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")
    assert list(tmp_path.iterdir()) == []


def test_the_environment_variables_are_those_prefect_sets():
    found = find_spec("prefect")
    assert found is not None
    assert found.origin is not None
    prefect = Path(found.origin).parent
    worker = (prefect / "workers" / "base.py").read_text()
    serve = (prefect / "runner" / "_starter_engine.py").read_text()
    assert '"PREFECT__FLOW_RUN_ID"' in worker
    assert '"PREFECT__WORKER_NAME"' in worker
    assert '"PREFECT__FLOW_RUN_ID"' in serve
    assert '"PREFECT__STORAGE_BASE_PATH"' in serve
    assert "PREFECT__WORKER_" not in serve
