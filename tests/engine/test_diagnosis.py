"""Tests of the findings of `plan doctor`: each says what was found and how to fix it."""

import importlib.metadata
import socket
from pathlib import Path

import pytest
from prefect.settings import temporary_settings

from plan_adapter.engine.connection import Server, server_version
from plan_adapter.engine.diagnosis import Finding, diagnose
from plan_adapter.local.settings import Settings


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]


def test_a_healthy_installation_has_no_bad_finding_and_creates_nothing(tmp_path: Path) -> None:
    found = diagnose(Settings(home=tmp_path / "new" / "home"))
    assert bad(found) == []
    assert [finding.what.split()[0] for finding in found] == ["Python", "prefect-plan-adapter", "fastapi", "prefect", "home", "no"]
    assert found[-1].what == "no API URL is set: a local Prefect server is started when a run needs one"
    assert not (tmp_path / "new").exists()


def test_an_incompatible_fastapi_version_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "fastapi-0.165.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: fastapi\nVersion: 0.165.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (finding,) = bad(diagnose(Settings(home=tmp_path)))
    assert finding.what == "fastapi 0.165.0"
    assert "pip install 'fastapi<0.151,>=0.139'" in finding.hint


def test_an_unwritable_home_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = bad(diagnose(Settings(home=tmp_path / "file" / "home")))
    assert finding == Finding(
        ok=False, what=f"home {tmp_path}/file/home cannot be written", hint="set PLAN_ADAPTER_HOME to a writable folder"
    )


def test_the_findings_include_the_callers_checks(tmp_path: Path) -> None:
    store = Finding(ok=False, what="the store's schema is stale", hint="plan store upgrade")
    assert store in diagnose(Settings(home=tmp_path), checks=[lambda: store])


def test_a_forbidden_local_server_is_found_if_no_other_is_configured(tmp_path: Path) -> None:
    (finding,) = bad(diagnose(Settings(home=tmp_path, local_server="never")))
    assert finding.hint == "set PREFECT_API_URL, or run with --offline"


def test_a_configured_server_that_answers_is_reported_with_its_source(prefect_server: Server, tmp_path: Path) -> None:
    findings = diagnose(Settings(home=tmp_path))
    assert bad(findings) == []
    lines = [finding.what for finding in findings]
    assert f"Prefect server {prefect_server.api_url} answers (set by the environment variable PREFECT_API_URL)" in lines
    assert lines[-1] == "the Prefect server demands no authentication"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [("127.0.0.1", True), ("[::1]", True), (socket.gethostname(), True), ("192.0.2.1", False), ("no-such-host.invalid", False)],
)
def test_a_server_is_on_this_machine_if_its_address_is(host: str, is_here: bool) -> None:
    assert Server(f"http://{host}:4200/api", None).is_on_this_machine is is_here


def test_the_versions_of_client_and_server_are_compared(prefect_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = importlib.metadata.version("prefect")
    for tested, verdict in (((here,), "is tested"), (("3.0.0",), "is not tested")):
        monkeypatch.setattr("plan_adapter.engine.diagnosis.TESTED_PREFECT", tested)
        pair = next(found for found in diagnose(Settings(home=tmp_path)) if " on the server" in found.what)
        assert (pair.ok, pair.what) == (True, f"Prefect {here} here, {server_version()} on the server: this pair {verdict}")
    assert pair.hint.startswith("tested are 3.0.0, each with each")


def test_an_unreachable_configured_server_is_found(tmp_path: Path) -> None:
    with temporary_settings({"api.url": "http://127.0.0.1:1/api"}):
        (finding,) = bad(diagnose(Settings(home=tmp_path)))
    assert "the Prefect server http://127.0.0.1:1/api cannot be used: ConnectError" in finding.what
