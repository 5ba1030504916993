"""Tests of the runbook certificate-rotation: hosts that are folders of one machine, behind a real SSH server, each with its TLS service."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from plan_adapter import PlanRun, PlanStore, ToolRegistry
from plan_adapter.documents import dump_plan
from plan_adapter.loading import load_plan
from plan_adapter.model.inventory import HostGroup
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.runs import aresume_run, arun_plan
from tests.deployments.conftest import RUNBOOKS, require_programs
from tests.deployments.tls import Service, make_ca, make_certificate
from tests.processes import Program
from tests.ssh import SshServer

DAYS = {"web-1": 10, "web-2": 10, "web-3": 400}
"""The hosts, and for how many days their certificates are valid."""

SYSTEMCTL = """#!/bin/sh
[ "$1 $2" = "reload app" ] || exit 5
readlink live >>reloads
[ ! -e "$(readlink live)/refused" ] && touch reload
"""
"""Notes that a service was reloaded, in the folder of its host."""


class Hosts:
    """Three hosts that serve TLS with old certificates, and the folder `certificates` with new ones."""

    def __init__(self, server: SshServer, folder: Path) -> None:
        self.folder, self.server = folder, server
        (server.folder / "bin").mkdir(exist_ok=True)
        (server.folder / "bin/systemctl").write_text(SYSTEMCTL)
        (server.folder / "bin/systemctl").chmod(0o755)
        (folder / "config").write_text(server.config.read_text().replace("web-1 127.0.0.1", " ".join(DAYS)))
        (folder / "certificates").mkdir()
        make_ca(folder)
        self.services: dict[str, Service] = {}
        for name, days in DAYS.items():
            (folder / name / "versions/old").mkdir(parents=True)
            (folder / name / "live").symlink_to("versions/old")
            make_certificate(folder, _tls_name(name), f"{name}/live/certificate.pem", f"{name}/live/key.pem", days=days)
            self.make_new(name)
            self.services[name] = Service(folder / name, _tls_name(name), ca=folder / "ca.pem")
        self.before = self.served()

    def make_new(self, name: str, *, tls_name: str = "", ca: str = "ca", days: int = 90) -> None:
        """Make the new certificate of a host."""
        files = f"certificates/{name}.pem", f"certificates/{name}.key"
        make_certificate(self.folder, tls_name or _tls_name(name), *files, ca=ca, days=days)

    def plan(self) -> ExecutionPlan:
        """Return the runbook for these hosts, without its approval and without waits."""
        plan = load_plan(RUNBOOKS / "certificate-rotation.yaml")
        own = {name: {"name": _tls_name(name), "folder": str(self.folder / name), "address": self.services[name].address} for name in DAYS}
        plan.hosts = {"web": HostGroup(hosts={**own}, vars={"service": "app", "ca": str(self.folder / "ca.pem")})}
        plan.options.require_approval = False
        for step in plan.all_steps:
            step.retry_delay_ms = 0
        return plan

    async def rotate(self, **inputs: str | int) -> PlanRun:
        """Run the runbook."""
        given = {"source": "certificates", "version": "new", **inputs}
        return await arun_plan(self.plan(), tools=ToolRegistry.with_builtins(), inputs=given, offline=True)

    def served(self) -> dict[str, str]:
        """Return the fingerprint that each host serves."""
        return {name: service.served() for name, service in self.services.items()}

    def renewed(self) -> list[str]:
        """Return the hosts that serve another certificate than before."""
        return [name for name, fingerprint in self.served().items() if fingerprint != self.before[name]]

    def reloads(self, name: str) -> list[str]:
        """Return the version with which the service of a host was reloaded, each time."""
        file = self.folder / name / "reloads"
        return [Path(line).name for line in file.read_text().splitlines()] if file.exists() else []

    def versions(self, name: str) -> list[str]:
        """Return the versions that are on a host."""
        return sorted(path.name for path in (self.folder / name / "versions").iterdir())


def _tls_name(host: str) -> str:
    return f"{host}.example.org"


@pytest.fixture
def hosts(ssh_server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    require_programs("openssl")
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(tmp_path))
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", str(tmp_path / "config"))
    made = Hosts(ssh_server, tmp_path)
    yield made
    for service in made.services.values():
        service.close()


async def test_a_host_with_a_wrong_key_keeps_its_certificate_and_the_others_get_new_ones(hosts: Hosts) -> None:
    keys = [(hosts.folder / f"certificates/{name}.key").read_bytes() for name in DAYS]
    (hosts.folder / "certificates/web-1.key").write_bytes(keys[1])

    ended = await hosts.rotate()

    assert (ended.status, ended.outputs) == (PlanStatus.PARTIAL, {"rotated": ["web-2"], "left_alone": ["web-3"]})
    assert "the certificate is for another key" in (ended.step("check").error or "")
    assert hosts.renewed() == ["web-2"]
    assert [hosts.reloads(name) for name in DAYS] == [[], ["new"], []]
    assert [hosts.versions(name) for name in DAYS] == [["old"], ["new", "old"], ["old"]]
    assert (hosts.folder / "web-2/live/key.pem").stat().st_mode & 0o777 == 0o600
    assert (hosts.folder / "web-2/previous").readlink() == Path("versions/old")
    records = [path for folder in (hosts.folder / "home", hosts.server.calls) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in records for key in keys for line in key.splitlines()[1:-1] if line in path.read_bytes()] == []
    assert records


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tls_name", "ca", "days", "error"),
    [
        ("other.example.org", "ca", 90, "hostname mismatch"),
        ("web-1.example.org", "other", 90, "unable to get local issuer certificate"),
        ("web-1.example.org", "ca", 5, "Certificate will expire"),
    ],
    ids=["name", "chain", "expires"],
)
async def test_a_certificate_that_does_not_fit_is_not_served(tls_name: str, ca: str, days: int, error: str, hosts: Hosts) -> None:
    make_ca(hosts.folder, "other")
    hosts.make_new("web-1", tls_name=tls_name, ca=ca, days=days)
    ended = await hosts.rotate(on="web-1")
    assert (ended.status, hosts.renewed(), hosts.reloads("web-1")) == (PlanStatus.PARTIAL, [], [])
    assert error in (ended.step("check").error or "")


@pytest.mark.thorough
async def test_a_host_whose_service_refuses_the_certificate_gets_the_old_one_back(hosts: Hosts) -> None:
    (hosts.folder / "web-1/versions/new").mkdir()
    (hosts.folder / "web-1/versions/new/refused").touch()
    ended = await hosts.rotate(on="web-1")
    assert (ended.status, hosts.renewed(), hosts.reloads("web-1")) == (PlanStatus.PARTIAL, [], ["new", "old"])
    assert hosts.versions("web-1") == ["old"]


@pytest.mark.thorough
async def test_a_second_run_changes_nothing_and_a_used_version_is_refused(hosts: Hosts) -> None:
    assert (await hosts.rotate(on="web-1,web-2")).outputs == {"rotated": ["web-1", "web-2"], "left_alone": []}
    again = await hosts.rotate(on="web-1,web-2")
    assert (again.outputs, again.step("switch").status) == ({"rotated": [], "left_alone": ["web-1", "web-2"]}, StepStatus.SKIPPED)
    refused = await hosts.rotate(on="web-1", min_days=365)
    assert "new already serves and expires too soon" in (refused.step("expiry").error or "")
    assert hosts.reloads("web-1") == ["new"]


RUN = """\
import os, signal, sys
from plan_adapter import ToolRegistry, run_plan
from plan_adapter.loading import load_plan
from plan_adapter.local import crash_points

def die(point, detail):
    if [point, detail] == sys.argv[2:]:
        os.kill(os.getpid(), signal.SIGKILL)

crash_points.listener = die
inputs = {"source": "certificates", "version": "new", "on": "web-1"}
run_plan(load_plan(sys.argv[1]), tools=ToolRegistry.with_builtins(), inputs=inputs, offline=True)
"""


@pytest.mark.parametrize(
    ("point", "effect"),
    [
        ("after-effect", "write"),
        *(
            pytest.param(point, effect, marks=pytest.mark.thorough)
            for effect in ("idempotent_write", "write")
            for point in ("before-intent", "after-intent", "after-effect")
            if (point, effect) != ("after-effect", "write")
        ),
    ],
)
async def test_a_run_that_was_killed_resumes_and_reloads_the_service_once(point: str, effect: str, hosts: Hosts) -> None:
    document = hosts.folder / "plan.yaml"
    document.write_text(dump_plan(hosts.plan()), encoding="utf-8")
    assert await asyncio.to_thread(Program(RUN, document, point, effect, env={**os.environ}).wait) == -signal.SIGKILL
    async with PlanStore() as store:
        (run,) = await store.runs()
        resumed = await aresume_run(run.id, tools=ToolRegistry.with_builtins(), store=store, offline=True)
    assert (resumed.status, resumed.outputs) == (PlanStatus.COMPLETED, {"rotated": ["web-1"], "left_alone": []})
    assert (hosts.renewed(), hosts.reloads("web-1")) == (["web-1"], ["new"])
