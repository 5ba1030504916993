"""Tests of the runbook fleet-upgrade: hosts that are folders of one machine, behind a real SSH server."""

import hashlib
import io
import shutil
import tarfile
from pathlib import Path

import pytest

from plan_adapter import PlanRun, ToolRegistry
from plan_adapter.loading import load_plan
from plan_adapter.model.inventory import HostGroup
from plan_adapter.model.status import PlanStatus
from plan_adapter.runs import arun_plan
from tests.deployments.conftest import RUNBOOKS
from tests.ssh import SshServer

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")

NAMES = ("web-1", "web-2", "web-3")

SYSTEMCTL = """#!/bin/sh
echo "$1 $2 $(readlink current)" >>restarts
test ! -e current/broken
"""
"""Notes that a service was restarted, in the folder of its host. A broken release does not start."""


class Hosts:
    """Three hosts that serve the release 1.3, and the archive of 1.4."""

    def __init__(self, server: SshServer, folder: Path) -> None:
        self.folder, self.bin = folder, server.folder / "bin"
        self.bin.mkdir(exist_ok=True)
        (self.bin / "systemctl").write_text(SYSTEMCTL)
        (self.bin / "systemctl").chmod(0o755)
        for name in NAMES:
            (folder / name / "releases/1.3").mkdir(parents=True)
            (folder / name / "releases/1.3/health").write_text("1.3")
            (folder / name / "current").symlink_to("releases/1.3")
        text = server.config.read_text().replace("web-1 127.0.0.1", " ".join(NAMES))
        (folder / "config").write_text(text)

    def archive(self, *files: str) -> str:
        """Write the archive with `files`, and return its digest."""
        with tarfile.open(self.folder / "app.tar", "w") as archive:
            for file in files:
                archive.addfile(tarfile.TarInfo(file), io.BytesIO())
        return f"sha256:{hashlib.sha256((self.folder / 'app.tar').read_bytes()).hexdigest()}"

    async def upgrade(self, digest: str, **inputs: str) -> PlanRun:
        """Run the runbook."""
        plan = load_plan(RUNBOOKS / "fleet-upgrade.yaml")
        variables = {name: {"folder": str(self.folder / name), "health": f"file://{self.folder / name}/current/health"} for name in NAMES}
        plan.hosts = {"web": HostGroup(hosts={name: {**own} for name, own in variables.items()}, vars={"service": "app"})}
        plan.options.require_approval = False
        for step in plan.all_steps:
            step.retry_delay_ms = 0
        given = {"archive": "app.tar", "digest": digest, "release": "1.4", **inputs}
        return await arun_plan(plan, tools=ToolRegistry.with_builtins(), inputs=given, offline=True)

    def serves(self) -> list[str]:
        """Return the release of each host."""
        return [(self.folder / name / "current").readlink().name for name in NAMES]

    def restarts(self, name: str) -> list[str]:
        """Return the release with which the service of a host was restarted, each time."""
        file = self.folder / name / "restarts"
        return [line.rpartition("/")[2] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def hosts(ssh_server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(tmp_path))
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", str(tmp_path / "config"))
    return Hosts(ssh_server, tmp_path)


@pytest.mark.thorough  # 20 s
async def test_every_host_serves_the_release_and_a_second_run_changes_nothing_else(hosts: Hosts) -> None:
    digest = hosts.archive("health")
    for _ in range(2):
        ended = await hosts.upgrade(digest)
        assert (ended.status, hosts.serves(), ended.outputs) == (PlanStatus.COMPLETED, ["1.4"] * 3, {"upgraded": [*NAMES]})
    assert (hosts.folder / "web-1/previous").readlink().name == "1.3"


@pytest.mark.parametrize(
    "files", [("health", "broken"), pytest.param(("other",), marks=pytest.mark.thorough)], ids=["does-not-start", "does-not-answer"]
)
async def test_a_host_that_does_not_serve_the_release_gets_the_old_one_back(files: tuple[str, ...], hosts: Hosts) -> None:
    ended = await hosts.upgrade(hosts.archive(*files), on="web-2,web-3")
    assert (ended.status, hosts.serves()) == (PlanStatus.FAILED, ["1.3"] * 3)
    assert (hosts.restarts("web-2"), hosts.restarts("web-3")) == (["1.4", "1.3"], [])


async def test_another_archive_than_the_approved_one_changes_nothing(hosts: Hosts) -> None:
    digest = hosts.archive("health")
    hosts.archive("health", "more")
    ended = await hosts.upgrade(digest, on="web-1")
    assert "it was not copied" in (ended.step("copy").error or "")
    assert not (hosts.folder / "web-1/releases/1.4").exists()
