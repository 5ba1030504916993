"""Tests of the runbook site-check against a real HTTP server."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from plan_adapter.errors import InvalidPlanError
from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, served


class Site(BaseHTTPRequestHandler):
    """A site that answers `/` and `/关于`, and `/flaky` from the second request on."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        known = self.path in ("/", "/%E5%85%B3%E4%BA%8E") or (self.path == "/flaky" and self.asked.count("/flaky") > 1)
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    Site.asked = []
    with served(Site) as url:
        yield url


async def test_a_site_whose_pages_answer_passes(run_runbook: RunRunbook, site: str) -> None:
    run = await run_runbook("site-check", site=site, paths=["/", "/关于"])

    assert run.status is PlanStatus.COMPLETED, run.steps
    assert run.outputs == {"checked": 2}
    assert run.approved_by == "author"


async def test_a_page_that_answers_on_the_second_try_passes(run_runbook: RunRunbook, site: str) -> None:
    run = await run_runbook("site-check", site=site, paths=["/flaky"])

    assert run.status is PlanStatus.COMPLETED
    assert Site.asked == ["/flaky", "/flaky"]


@pytest.mark.thorough
async def test_a_missing_page_fails_the_check_and_is_named(run_runbook: RunRunbook, site: str) -> None:
    run = await run_runbook("site-check", site=site, paths=["/", "/missing"])

    assert run.status is PlanStatus.FAILED
    assert "/missing" in (run.step("pages").error or "")


async def test_an_invalid_site_is_refused_before_any_request(run_runbook: RunRunbook) -> None:
    with pytest.raises(InvalidPlanError, match="site"):
        await run_runbook("site-check", site="ftp://example.com")
