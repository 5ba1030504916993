"""Tests of the runbook tls-rotation with certificates of openssl, and a service that serves TLS."""

import hashlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, require_programs

HOST = "www.example.org"


class Service:
    """Serves TLS with the certificate that it read at its start, or when the file `reload` last appeared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._context = self._read()
        threading.Thread(target=self._serve, daemon=True).start()

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "live" / "certificate.pem", self.folder / "live" / "key.pem")
        return context

    def _serve(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                connection = self._listener.accept()[0]
                if (self.folder / "reload").exists():
                    (self.folder / "reload").unlink()
                    self._context = self._read()
                with suppress(OSError), self._context.wrap_socket(connection, server_side=True) as tls:
                    tls.recv(1)

    def served(self) -> str:
        """Return the fingerprint of the certificate that a client sees. The CA must have signed it."""
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        host, _, port = self.address.partition(":")
        with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=HOST) as tls:
            return hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Yield a service with a certificate of its own CA."""
    require_programs("openssl")
    (tmp_path / "versions" / "old").mkdir(parents=True)
    (tmp_path / "live").symlink_to("versions/old")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    own = ("-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Own CA")
    openssl(tmp_path, "req", "-x509", *key, *own, "-addext", "keyUsage=critical,keyCertSign")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", f"subjectAltName=DNS:{HOST}", "-addext", "basicConstraints=critical,CA:FALSE")
    openssl(tmp_path, "req", "-x509", *key, *signed, "-keyout", "live/key.pem", "-out", "live/certificate.pem", "-subj", f"/CN={HOST}")
    service = Service(tmp_path)
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
