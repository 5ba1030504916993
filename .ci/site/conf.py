"""The site of the guide, which `make site` builds from the same Markdown files that `plan guide` prints."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GUIDE = "plan_adapter/guide"

PAGES = {
    "Start": ("tutorial", "recipes", "glossary"),
    "Write": ("plans", "expressions", "short-forms", "groups", "sub-plans", "questions", "goals", "finally", "concurrency", "validation"),
    "Tools and models": ("tools", "drafting", "agents", "testing", "json"),
    "Decide": ("approvals", "desk", "security", "attestations", "promises"),
    "Runbooks": ("runbooks", "deploying", "deployments", "alerts", "importing", "aster"),
    "Run": ("failures", "operating", "records", "audits", "secrets", "metrics", "scaling", "embedding"),
    "Reference": ("reference-cli", "reference-python", "reference-settings", "reference-problems", "compatibility", "benchmarks"),
    "Contribute": (
        *("contributing", "contributing/step-field", "contributing/plan-field", "contributing/tool", "contributing/verb"),
        *("contributing/importer", "contributing/gate-answer", "contributing/store-migration", "contributing/prefect-version"),
        *("contributing/page", "contributing/places"),
    ),
}
"""The contents of the site. A page that is not listed fails the build."""

project = "prefect-plan-adapter"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
copyright = "the authors of prefect-plan-adapter"  # the name that Sphinx reads
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", f"{GUIDE}/**.md"]
exclude_patterns = [".venv", ".matrix", ".git", ".hypothesis", ".pytest_cache", "dist", "site", "tests"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"{project} {release}"
html_show_sourcelink = False
suppress_warnings = ["misc.highlighting_failure"]  # a block may be a part of a file


def contents() -> str:
    """Return the tables of contents, one for each group of pages."""
    groups = {title: [f"{GUIDE}/{name}" for name in names] for title, names in PAGES.items()}
    groups["Contribute"] = ["CONTRIBUTING", *groups["Contribute"], "CHANGELOG", "SECURITY"]
    return "".join(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n{chr(10).join(pages)}\n```\n" for title, pages in groups.items())


def add_contents(_app: Any, name: str, source: list[str]) -> None:
    """Add the tables of contents to the first page."""
    if name == root_doc:
        source[0] += contents()


def write_index(app: Any, error: Exception | None) -> None:
    """Show the first page at the root of the site."""
    if error is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    """Register what this file adds to Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("build-finished", write_index)
