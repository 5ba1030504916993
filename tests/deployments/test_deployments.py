"""Tests of the deployments in deployments/prefect.yaml on a real server with a real process worker."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TypeVar
from uuid import UUID

import pytest
import yaml
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Scheduled

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, approve
from plan_adapter.blocks import PlanStoreDatabase
from plan_adapter.engine.connection import Server
from plan_adapter.model.options import ApprovalPolicy, Input
from plan_adapter.plans import ExecutionOptions
from plan_adapter.store import PlanStatus, dump_plan, load_plan
from tests.agent.server import says, scripted

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
POOL = "plans"
WAIT_SECONDS = 240
SCHEDULE_SECONDS = 60  # much longer than a run takes: late runs all start at once, and overload a server on SQLite

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]  # `prefect deploy` runs `plan save` for each runbook


@dataclass(frozen=True)
class Site:
    """A web site that records the requested pages. Pages in `missing` return 404."""

    url: str
    asked: list[str]
    missing: set[str]


@dataclass(frozen=True)
class Workplace:
    """A worker that runs the deployments, and the store of their records."""

    environment: dict[str, str]
    store_url: str
    log: Path


def prefect(*arguments: str, environment: dict[str, str]) -> str:
    """Run Prefect's command line from the root of the repository, as prefect.yaml says."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    asked: list[str] = []
    missing: set[str] = set()

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404 if self.path in missing else 200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Site(f"http://127.0.0.1:{server.server_port}", asked, missing)
        server.shutdown()


@pytest.fixture(scope="module")
def workplace(prefect_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    folder = tmp_path_factory.mktemp("worker")
    store_url = f"sqlite:///{folder / 'plans.db'}"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # `prefect deploy` runs `plan save`
        "PYTHONPATH": str(ROOT),
        "PREFECT_API_URL": prefect_server.api_url,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PLAN_ADAPTER_DATABASE_URL": store_url,
        "PLAN_ADAPTER_ALLOW_LOCAL_STORE": "true",
    }
    make_blocks = [sys.executable, "-m", "blocks"]
    for _ in range(2):  # the second call changes nothing
        saved = subprocess.run(make_blocks, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert saved.stdout == "saved plan-store-database/plan-store\n"
    prefect("work-pool", "create", POOL, "--type", "process", "--overwrite", environment=environment)
    # The flow runs take their store from the block, not from their environment.
    of_worker = {name: value for name, value in environment.items() if name != "PLAN_ADAPTER_DATABASE_URL"}
    log = folder / "worker.log"
    with log.open("w") as output:
        start = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
        worker = subprocess.Popen(start, cwd=folder, env=of_worker, stdout=output, stderr=output, start_new_session=True)
    try:
        yield Workplace(environment, store_url, log)
    finally:
        os.killpg(worker.pid, signal.SIGTERM)
        try:
            worker.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


@pytest.fixture(scope="module")
def deployed(workplace: Workplace, site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Deploy prefect.yaml with only the site and the schedule changed."""
    text = (ROOT / "deployments" / "prefect.yaml").read_text(encoding="utf-8")
    changed = {"interval: 900": f"interval: {SCHEDULE_SECONDS}", "active: false": "active: true", "http://127.0.0.1:4200": site.url}
    for written, wanted in changed.items():
        assert text.count(written) == 1, written
        text = text.replace(written, wanted)
    project = yaml.safe_load(text)
    for deployment in project["deployments"]:
        if deployment["name"] == "reconcile":
            del deployment["schedules"]
    file = tmp_path_factory.mktemp("deploy") / "prefect.yaml"
    file.write_text(yaml.safe_dump(project), encoding="utf-8")
    prefect("deploy", "--all", "--prefect-file", str(file), environment=workplace.environment)


async def wait_for(condition: Callable[[T], bool], find: Callable[[], Awaitable[list[T]]], log: Path) -> T:
    """Return the first result of `find` that meets `condition`, polling until there is one."""
    deadline = time.monotonic() + WAIT_SECONDS
    seen: list[T] = []
    while time.monotonic() < deadline:
        seen = await find()
        if found := next(filter(condition, seen), None):
            return found
        await asyncio.sleep(0.3)
    pytest.fail(f"no result met the condition: {seen}; the worker's log:\n{log.read_text(encoding='utf-8')[-5000:]}")


def of_deployment(client: PrefectClient, deployment: DeploymentResponse) -> Callable[[], Awaitable[list[FlowRun]]]:
    which = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
    return lambda: client.read_flow_runs(deployment_filter=which)


def is_final(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()


@pytest.mark.usefixtures("deployed")
async def test_a_scheduled_run_completes(prefect_server: Server, workplace: Workplace, site: Site) -> None:
    async with get_client() as client:
        deployment = await client.read_deployment_by_name("run-plan/site-check")
        assert [schedule.schedule.interval.total_seconds() for schedule in deployment.schedules] == [SCHEDULE_SECONDS]
        # Runs that start while the first one still runs are cancelled, as prefect.yaml says.
        flow_run = await wait_for(
            lambda run: is_final(run) and run.state_name != "Cancelled", of_deployment(client, deployment), workplace.log
        )
        await client.delete_deployment_schedule(deployment.id, deployment.schedules[0].id)
        of_this = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))
        # The server records task runs with a delay.
        await wait_for(
            lambda task_run: task_run.name == "pages[/api/ready]", lambda: client.read_task_runs(flow_run_filter=of_this), workplace.log
        )

    assert flow_run.auto_scheduled
    assert flow_run.state is not None
    assert flow_run.state.is_completed(), flow_run.state.message
    assert {"/api/health", "/api/ready"} <= set(site.asked)
    async with PlanStore(workplace.store_url) as store:
        run = await store.ledger.run_of_flow(str(flow_run.id))
    assert run is not None
    assert (run.name, run.status, run.outputs) == ("site-check", PlanStatus.COMPLETED, {"checked": 2})


@pytest.mark.usefixtures("deployed")
async def test_a_stored_plan_runs_by_its_digest_where_only_the_package_is_installed(
    prefect_server: Server, workplace: Workplace, site: Site
) -> None:
    plan = load_plan(ROOT / "deployments" / "runbooks" / "site-check.yaml")
    async with PlanStore(workplace.store_url) as store:
        version = await store.save(plan, author="ana")

    flow_run = await run_any_plan(workplace, plan=version.digest, inputs={"site": site.url, "paths": ["/关于"]})

    assert flow_run.state is not None
    assert flow_run.state.is_completed(), flow_run.state.message
    assert "/%E5%85%B3%E4%BA%8E" in site.asked


@pytest.mark.usefixtures("deployed")
async def test_a_run_of_an_invalid_plan_fails_and_reports_each_problem(prefect_server: Server, workplace: Workplace) -> None:
    plan = ExecutionPlan(description="No such tool")
    plan.add_step("no_such_tool", "Do it")

    flow_run = await run_any_plan(workplace, plan=dump_plan(plan))

    assert flow_run.state is not None
    assert flow_run.state.is_failed()
    assert "no_such_tool" in (flow_run.state.message or "")


@pytest.mark.usefixtures("deployed")
async def test_a_retry_in_prefect_carries_completed_steps(prefect_server: Server, workplace: Workplace, site: Site) -> None:
    plan = ExecutionPlan(description="Two pages", options=ExecutionOptions(require_approval=False))
    first = plan.add_step("http_get", "The first", {"url": f"{site.url}/first"})
    second = plan.add_step("http_get", "The second", {"url": f"{site.url}/second"}, depends_on=[first.id])
    site.missing.add("/second")
    flow_run = await run_any_plan(workplace, plan=dump_plan(plan))
    assert flow_run.state_name == "Partial"
    site.missing.clear()

    async with get_client() as client:
        await client.set_flow_run_state(flow_run.id, Scheduled(name="AwaitingRetry"))  # what the button Retry does
        deployment = await client.read_deployment_by_name("run-plan/any-plan")
        again = await wait_for(
            lambda run: run.id == flow_run.id and run.run_count == 2 and is_final(run), of_deployment(client, deployment), workplace.log
        )

    assert again.state_name == "Completed"
    assert [site.asked.count(page) for page in ("/first", "/second")] == [1, 2]
    async with PlanStore(workplace.store_url) as store:
        run = await store.ledger.run_of_flow(str(flow_run.id))
    assert run is not None
    assert (run.step(first.id).carried, run.step(second.id).carried) == (True, False)


@pytest.mark.usefixtures("deployed")
async def test_a_plan_drafted_from_a_task_runs_by_its_digest(prefect_server: Server, workplace: Workplace, site: Site) -> None:
    step = {"tool_name": "http_get", "description": "Ask", "parameters": {"url": f"{site.url}/drafted"}, "id": "ask"}
    plan = {"action": "plan_done", "speak": "", "reason": "", "description": "Ask the site", "steps": [step]}
    with scripted(says(plan)) as model:
        async with get_client() as client:
            deployment = await client.read_deployment_by_name("draft-plan/from-words")
            asked = await client.create_flow_run_from_deployment(
                deployment.id,
                parameters={"task": "问问网站"},
                job_variables={"env": {"PLAN_ADAPTER_MODEL": "m", "PLAN_ADAPTER_MODEL_URL": model.url}},
            )
            drafted = await wait_for(lambda run: run.id == asked.id and is_final(run), of_deployment(client, deployment), workplace.log)
        assert [len(request["messages"]) for request in model.requests] == [2]
    assert drafted.state is not None
    assert drafted.state.is_completed(), drafted.state.message
    async with PlanStore(workplace.store_url) as store:
        draft = await store.drafts.get(str(asked.id))
        assert draft.plan is not None
        await store.add_approval(approve(draft.plan, tools=ToolRegistry.with_builtins(), by="ana"))
    flow_run = await run_any_plan(workplace, plan=(drafted.state.message or "").split()[1])
    assert flow_run.state is not None
    assert flow_run.state.is_completed(), flow_run.state.message
    assert "/drafted" in site.asked


async def run_any_plan(workplace: Workplace, **parameters: object) -> FlowRun:
    async with get_client() as client:
        deployment = await client.read_deployment_by_name("run-plan/any-plan")
        started: UUID = (await client.create_flow_run_from_deployment(deployment.id, parameters=dict(parameters))).id
        return await wait_for(lambda run: run.id == started and is_final(run), of_deployment(client, deployment), workplace.log)


async def test_the_saved_block_shows_no_password(prefect_server: Server) -> None:
    secret = "postgresql://plans:hunter2@127.0.0.1/plans"
    await PlanStoreDatabase.model_validate({"url": secret}).asave("shown-store", overwrite=True)

    async with get_client() as client:
        shown = await client.read_block_document_by_name("shown-store", "plan-store-database", include_secrets=False)

    assert "hunter2" not in shown.model_dump_json()
    loaded = await PlanStoreDatabase.aload("shown-store")
    assert "hunter2" not in repr(loaded) + repr(loaded.get_store())
    assert loaded.url.get_secret_value() == secret


def deploy_runbook(workplace: Workplace, plan: ExecutionPlan, folder: Path, **environment: str) -> str:
    """Deploy a plan as a runbook from the command line, and return the name of its deployment."""
    path = folder / "runbook.yaml"
    path.write_text(dump_plan(plan), encoding="utf-8")
    store = "env.PLAN_ADAPTER_DATABASE_URL={{ prefect.blocks.plan-store-database.plan-store.url }}"
    command = [sys.executable, "-m", "plan_adapter.cli.app", "deploy", str(path), "--pool", POOL, "--job-variable", store]
    ended = subprocess.run(command, env={**workplace.environment, **environment}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.partition(":")[0]


def page(name: str, url: str, **options: bool) -> ExecutionPlan:
    """Return a runbook that requests one page of the site."""
    plan = ExecutionPlan(name=name, description=f"Ask for {url}", inputs={"who": Input(enum=["ana", "bo"])})
    plan.options = ExecutionOptions(require_approval=options.get("asks", False))
    plan.approval = ApprovalPolicy(release=True)
    plan.add_step("http_get", "Ask", {"url": f"{url}?by=${{{{ inputs.who }}}}"})
    return plan


@pytest.mark.usefixtures("deployed")
async def test_a_deployed_runbook_runs_with_the_inputs_of_its_form(
    prefect_server: Server, workplace: Workplace, site: Site, tmp_path: Path
) -> None:
    name = deploy_runbook(workplace, page("form", f"{site.url}/form"), tmp_path)
    async with get_client() as client:
        deployment = await client.read_deployment_by_name(name)
        with pytest.raises(PrefectHTTPStatusError, match="'eve' is not one of"):
            await client.create_flow_run_from_deployment(deployment.id, parameters={"who": "eve"})
        started = await client.create_flow_run_from_deployment(deployment.id, parameters={"who": "ana"})
        flow_run = await wait_for(lambda run: run.id == started.id and is_final(run), of_deployment(client, deployment), workplace.log)
    assert flow_run.state is not None
    assert flow_run.state.is_completed(), flow_run.state.message
    assert "/form?by=ana" in site.asked


@pytest.mark.usefixtures("deployed")
async def test_a_waiting_run_keeps_its_version_when_a_newer_one_is_deployed(
    prefect_server: Server, workplace: Workplace, site: Site, tmp_path: Path
) -> None:
    name = deploy_runbook(workplace, page("versions", f"{site.url}/old", asks=True), tmp_path)
    async with get_client() as client:
        deployment = await client.read_deployment_by_name(name)
        started = await client.create_flow_run_from_deployment(deployment.id, parameters={"who": "bo"})
        await wait_for(lambda run: run.id == started.id and run.state_name == "Suspended", of_deployment(client, deployment), workplace.log)
        deploy_runbook(workplace, page("versions", f"{site.url}/new", asks=True), tmp_path)
        async with PlanStore(workplace.store_url) as store:
            run = await store.ledger.run_of_flow(str(started.id))
        assert run is not None
        approve_it = [sys.executable, "-m", "plan_adapter.cli.app", "approve", run.id, "--digest", run.approval_digest]
        subprocess.run(approve_it, env=workplace.environment, check=True)
        flow_run = await wait_for(lambda run: run.id == started.id and is_final(run), of_deployment(client, deployment), workplace.log)
    assert flow_run.state is not None
    assert flow_run.state.is_completed(), flow_run.state.message
    assert ("/old?by=bo" in site.asked, "/new?by=bo" in site.asked) == (True, False)


@pytest.mark.usefixtures("deployed")
async def test_a_worker_without_a_tool_names_the_tool_and_its_module(prefect_server: Server, workplace: Workplace, tmp_path: Path) -> None:
    (tmp_path / "acme_tools.py").write_text(
        "from plan_adapter import tool\n\n@tool(effect='read')\ndef look(at: str) -> str:\n    '''Look.'''\n    return at\n"
    )
    plan = ExecutionPlan(name="tools", description="Look", options=ExecutionOptions(require_approval=False))
    plan.add_step("look", "Look", {"at": "it"})
    name = deploy_runbook(workplace, plan, tmp_path, PYTHONPATH=str(tmp_path), PLAN_ADAPTER_TOOLS="acme_tools:look")
    async with get_client() as client:
        deployment = await client.read_deployment_by_name(name)
        started = await client.create_flow_run_from_deployment(deployment.id)
        flow_run = await wait_for(lambda run: run.id == started.id and is_final(run), of_deployment(client, deployment), workplace.log)
    assert flow_run.state is not None
    assert flow_run.state.is_failed()
    message = flow_run.state.message or ""
    assert "`look`" in message
    assert (
        "install the missing tools where the worker runs: when the runbook was deployed, `look` was in the module `acme_tools`" in message
    )
