"""Tests of the runbook tls-rotation with certificates of openssl, and a service that serves TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, require_programs
from tests.deployments.tls import Service, make_ca, make_certificate

HOST = "www.example.org"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Yield a service with a certificate of its own CA."""
    require_programs("openssl")
    (tmp_path / "versions" / "old").mkdir(parents=True)
    (tmp_path / "live").symlink_to("versions/old")
    make_ca(tmp_path)
    make_certificate(tmp_path, HOST, "live/certificate.pem", "live/key.pem")
    service = Service(tmp_path, HOST, ca=tmp_path / "ca.pem")
    yield service
    service.close()


def inputs(service: Service, *reload: str) -> dict[str, object]:
    folder = service.folder
    files = {"folder": str(folder), "ca": str(folder / "ca.pem"), "ca_key": str(folder / "ca.key")}
    return {"host": HOST, "address": service.address, **files, "reload": list(reload)}


async def test_the_service_serves_a_new_certificate(run_runbook: RunRunbook, service: Service) -> None:
    before = service.served()

    run = await run_runbook("tls-rotation", **inputs(service, "touch", str(service.folder / "reload")))

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    assert service.served() != before
    assert [fingerprint(run.outputs[name]) for name in ("before", "now")] == [before, service.served()]
    assert (service.folder / "live" / "key.pem").stat().st_mode & 0o777 == 0o600


async def test_the_old_certificate_is_restored_if_the_service_cannot_be_reloaded(run_runbook: RunRunbook, service: Service) -> None:
    before = service.served()
    script = 'touch "$0/reload"; test "$(readlink "$0/live")" = versions/old || { echo "cannot load the key" >&2; exit 1; }'

    run = await run_runbook("tls-rotation", **inputs(service, "sh", "-c", script, str(service.folder)))

    assert run.status is PlanStatus.PARTIAL
    assert "cannot load the key" in (run.step("reload").error or "")
    assert service.served() == before
    assert (service.folder / "live").readlink() == Path("versions/old")
    assert [path.name for path in (service.folder / "versions").iterdir()] == ["old"]


async def test_a_ca_that_cannot_sign_leaves_no_files(run_runbook: RunRunbook, service: Service) -> None:
    (service.folder / "ca.key").write_bytes((service.folder / "live" / "key.pem").read_bytes())

    run = await run_runbook("tls-rotation", **inputs(service, "false"))

    assert run.status is PlanStatus.FAILED
    assert "CA private key do not match" in (run.step("make").error or "")
    assert [path.name for path in (service.folder / "versions").iterdir()] == ["old"]


def fingerprint(text: object) -> str:
    """Return the hexadecimal digits of a fingerprint that openssl printed."""
    return str(text).partition("=")[2].replace(":", "").lower()
