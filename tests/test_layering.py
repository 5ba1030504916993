"""Tests of the layers of the package and of its third-party imports, read from its source.

A module imports only from rows below its own (ROWS lists the lowest first), not from other members of its row. Each third-party library is
imported only by the modules listed in IMPORTERS. Imports under `if TYPE_CHECKING:` do not count.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "plan_adapter"

# From the lowest to the highest. A name is a module, or a package with everything in it.
ROWS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "public_names twins",
        "model",
        "local",
        "expressions documents",
        "tools",
        "validation",
        "text",
        "gates",
        "execution",
        "engine store agent",
        "runs",
        "loading",
        "checks runner rehearsal",
        "waiting_runs tool_calls replay",
        "runbooks testing importers session tool_functions plan_defaults",
        "cli blocks pytest_plugin plans errors integrations",
        "flows deployed",
    )
)

# Library -> the modules that may import it. No module may import other libraries.
IMPORTERS: dict[str, tuple[str, ...]] = {
    "prefect": ("engine", "blocks", "flows", "deployed", "tools.deployment"),
    "sqlalchemy": ("store", "tools.sql"),
    "alembic": ("store",),
    "yaml": ("documents",),
    "cel_expr_python": ("expressions",),
    "rfc8785": ("model.canonical",),
    "httpx": ("tools.http", "engine", "cli.desk"),
    "griffe": ("tools",),
    "cyclopts": ("cli",),
    "rich": ("cli",),
    "uuid_utils": ("model.plan",),
    "pyotp": ("gates.totp",),
    "cryptography": ("gates.totp", "local.attestation_key"),
    "openai": ("agent.openai_model",),
    "json_repair": ("agent.answer_text",),
    "anyio": ("tools", "execution", "engine"),
    "opentelemetry": ("local.telemetry",),
    "pydantic": ("",),
    "pydantic_core": ("",),
    "typing_extensions": ("tools",),
    "uvicorn": ("engine.server_process", "cli.desk"),
    "fastapi": ("cli.desk",),
    "jinja2": ("cli.desk",),
    "markupsafe": ("cli.desk",),
    "markdown_it": ("cli.desk",),
    "authlib": ("cli.desk.sign_in",),
    "joserfc": ("cli.desk.sign_in",),
    "packaging": ("engine.diagnosis",),
    "prefect_dask": ("engine.dask",),
    "dask": ("engine.dask_process",),
    "distributed": ("engine.dask", "engine.dask_process"),
    "mcp": ("cli.mcp.server",),
    "pytest": ("pytest_plugin",),
    "pydantic_ai": ("integrations.pydantic_ai",),
    "langgraph": ("integrations.langgraph",),
    "langchain_core": ("integrations.langgraph",),
    "agents": ("integrations.openai_agents",),
    "cronsim": ("model.run_window",),
    "icalendar": ("gates.calendars",),
    "recurring_ical_events": ("gates.calendars",),
}

# Names of several modules, which play the same part in their rooms. Any other name is that of one module, and of its verb in `cli/verbs`.
SHARED_NAMES = {
    "approvals": "the values in model, their table in store",
    "drafts": "the values in model, their table in store",
    "errors": "the classes in model, their public names",
    "operator_requests": "their table in store, what they do to a run in runs",
    "plans": "the public names of plans, their table in store",
    "standing": "their table in store, their use in runs, and the verb",
}

# Declared in pyproject.toml, but not imported.
NOT_IMPORTED = {
    "aiosqlite",  # SQLAlchemy's drivers, named in the store's URLs
    "asyncpg",
}
IMPORT_NAMES = {
    "pyyaml": "yaml",
    "markdown_it_py": "markdown_it",
    "opentelemetry_api": "opentelemetry",
    "pydantic_ai_slim": "pydantic_ai",
    "openai_agents": "agents",
}
PINNED_BY = {"pydantic_core": "pydantic"}  # which requires exactly one version


@cache
def modules() -> dict[str, Path]:
    """Return the file of every module of the package, by its name in the package: `execution.step`, or `""` for the package."""
    found = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for parts, path in sorted(found.items())}


@cache
def imported(path: Path) -> frozenset[str]:
    """Return every name that `path` imports at the top or inside a function, such as `plan_adapter.model.plan.Step` or `anyio`."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"), filename=str(path))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


def module_of(name: str) -> str | None:
    """Return the module of the package that `name` comes from, or None for other names."""
    if name != "plan_adapter" and not name.startswith("plan_adapter."):
        return None
    parts = name.split(".")[1:]
    while ".".join(parts) not in modules():
        parts.pop()
    return ".".join(parts)


def part(module: str) -> str:
    """Return the member of a row to which `module` belongs."""
    return module.split(".", maxsplit=1)[0]


def row(module: str) -> int:
    """Return the row number of `module`, from the lowest."""
    return next(number for number, members in enumerate(ROWS) if part(module) in members)


def within(module: str, importer: str) -> bool:
    """Return whether `module` is `importer` or inside it."""
    return importer == "" or module == importer or module.startswith(f"{importer}.")


LAYERED = [module for module in modules() if module]


def test_every_module_has_a_row() -> None:
    assert {module for module in LAYERED if part(module) not in frozenset().union(*ROWS)} == set(), "these modules have no row in ROWS"


def test_a_module_imports_only_from_rows_below_its_own() -> None:
    found = dict[str, list[str]]()
    for module in LAYERED:
        others = {name for name in map(module_of, imported(modules()[module])) if name is not None and part(name) != part(module)}
        found[f"{module} (row {row(module)})"] = sorted(name for name in others if not name or row(name) >= row(module))
    assert {module: wrong for module, wrong in found.items() if wrong} == {}


def test_a_name_belongs_to_one_module_and_its_verb() -> None:
    found = Counter(
        module.rpartition(".")[2] for module, path in modules().items() if path.stem != "__init__" and not module.startswith("cli.verbs.")
    )
    assert {name for name, count in found.items() if count > 1} == set(SHARED_NAMES)


def test_the_package_has_no_import_cycle() -> None:
    graph = {module: {name for name in map(module_of, imported(modules()[module])) if name and name != module} for module in LAYERED}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_each_library_is_imported_only_by_its_listed_modules() -> None:
    found = dict[str, list[str]]()
    for module in modules():
        libraries = {name.split(".")[0] for name in imported(modules()[module])} - sys.stdlib_module_names - {"plan_adapter"}
        found[module] = sorted(
            library for library in libraries if not any(within(module, importer) for importer in IMPORTERS.get(library, ()))
        )
    assert {module: wrong for module, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("folder", ["flows", "blocks", "deployments"])
def test_folders_outside_the_package_import_only_the_package_and_prefect(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        roots = {name.split(".")[0] for name in imported(path)} - sys.stdlib_module_names
        assert roots <= {"plan_adapter", "prefect", "pydantic", folder}, f"{path.name} imports {sorted(roots)}"


def test_every_imported_library_is_declared_and_every_declared_library_is_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = [line for extra in project["optional-dependencies"].values() for line in extra]
    names = {line.split(">")[0].split("[")[0].replace("-", "_") for line in [*project["dependencies"], *optional]}
    declared = {IMPORT_NAMES.get(name, name) for name in names}
    used = {name.split(".")[0] for module in modules() for name in imported(modules()[module])} - sys.stdlib_module_names - {"plan_adapter"}
    assert declared - NOT_IMPORTED == {PINNED_BY.get(name, name) for name in used}
