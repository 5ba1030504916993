import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.tools.imports import import_object
from plan_adapter.tools.registry import ToolRegistry, as_registry, import_tool
from plan_adapter.tools.tool import ToolContext, as_tool, tool
from tests.tools import offered


def test_a_registry_takes_tools_functions_lists_registries_and_import_strings() -> None:
    registry = ToolRegistry([offered.plain, "tests.tools.offered:several", [offered.whisper]])
    assert registry.names() == ["plain", "shout", "whisper"]
    assert registry.get("shout") is offered.shout
    assert registry.get("nothing") is None
    assert "plain" in registry and "nothing" not in registry
    assert len(registry) == 3
    assert [known.name for known in registry] == registry.names()


def test_a_function_without_a_declared_effect_is_a_write() -> None:
    assert import_tool("tests.tools.offered:plain").effect == "write"


def test_two_tools_of_one_name_are_refused_and_both_are_named() -> None:
    @tool(name="shout")
    def other() -> None: ...

    with pytest.raises(ToolDefinitionError) as error:
        ToolRegistry([offered.shout, other])
    assert "tests.tools.offered:shout (read)" in str(error.value)
    assert "test_two_tools_of_one_name_are_refused_and_both_are_named.<locals>.other (write)" in str(error.value)


def test_a_tool_can_be_added_twice_but_not_with_another_effect() -> None:
    assert len(ToolRegistry([offered.plain, as_tool(offered.plain), "tests.tools.offered:plain"])) == 1
    with pytest.raises(ToolDefinitionError, match="two tools are called `plain`"):
        ToolRegistry([offered.plain, as_tool(offered.plain, effect="read")])


def test_a_subset_contains_only_the_named_tools() -> None:
    registry = ToolRegistry.with_builtins()
    assert registry.subset("bash", "http_get").names() == ["bash", "http_get"]
    with pytest.raises(ToolDefinitionError, match=r"no such tool: `http_gt` \(did you mean `http_get`\?\)"):
        registry.subset("http_gt")


def test_the_built_in_tools_and_their_effects() -> None:
    assert {known.name: known.effect for known in ToolRegistry.with_builtins([offered.plain])} == {
        "bash": "write",
        "copy_from": "idempotent_write",
        "copy_to": "idempotent_write",
        "http_get": "read",
        "http_send": "write",
        "plain": "write",
        "python": "write",
        "read_file": "read",
        "run_command": "write",
        "run_deployment": "idempotent_write",
        "sql_execute": "write",
        "sql_query": "read",
        "ssh": "write",
        "write_file": "idempotent_write",
    }


def test_every_built_in_tool_and_parameter_has_a_description() -> None:
    for known in ToolRegistry.with_builtins().definitions():
        assert known["description"], known["name"]
        parameters = known["parameters"]
        assert isinstance(parameters, dict) and isinstance(parameters["properties"], dict)
        for name, described in parameters["properties"].items():
            assert isinstance(described, dict) and described.get("description"), f"{known['name']}.{name}"


@pytest.mark.parametrize(
    ("import_string", "message"),
    [
        ("tests.tools/offered", "is not an import string: write `package.module:name`, or `package.module` for a module"),
        ("tests.tools.ofered", "there is no module `tests.tools.ofered`; did you mean `tests.tools.offered`?"),
        ("tests.tools", "the module `tests.tools` has no tools: decorate its functions with `@tool`"),
        (":shout", "is not an import string"),
        ("tests.tools.offered:", "is not an import string"),
        ("tests.tools.ofered:shout", "there is no module `tests.tools.ofered`; did you mean `tests.tools.offered`?"),
        ("nowhere_at_all.x:y", "there is no module `nowhere_at_all`; it is neither installed nor in the current folder"),
        ("tests.tools.offered:shot", "`tests.tools.offered` has no `shot`; did you mean `shout`?"),
        ("tests.tools.offered:registri", "`tests.tools.offered` has no `registri`; did you mean `registry`?"),
        ("tests.tools.offered:severall", "did you mean `several`?"),
        ("tests.tools.offered:number", "3 cannot be a tool"),
        ("tests.tools.offered:several", "names 3 tools where one is needed"),
    ],
)
def test_the_error_for_a_wrong_import_string_suggests_a_fix(import_string: str, message: str) -> None:
    with pytest.raises(ToolDefinitionError) as error:
        import_tool(import_string)
    assert message in str(error.value)


def test_the_error_for_a_failed_import_names_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_tools.py").write_text("1 / 0")
    (tmp_path / "needy_tools.py").write_text("import not_installed_here")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ToolDefinitionError, match="`broken_tools` cannot be imported: ZeroDivisionError: division by zero"):
        import_object("broken_tools:x")
    with pytest.raises(ToolDefinitionError, match="`needy_tools` needs the module `not_installed_here`, which is not installed"):
        import_object("needy_tools:x")


def test_modules_in_the_current_folder_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools_of_this_folder.py").write_text("def greet(name: str) -> str:\n    return name\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    assert import_tool("tools_of_this_folder:greet").name == "greet"


def test_the_current_folder_is_searched_after_the_installed_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools_at_the_end.py").write_text("def greet(name: str) -> str:\n    return name\n", encoding="utf-8")
    (tmp_path / "calendar.py").write_text("def greet(name: str) -> str:\n    return name\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    import_tool("tools_at_the_end:greet")
    assert sys.path[-1] == str(tmp_path)
    with pytest.raises(
        ToolDefinitionError, match=r"this is the installed module .*, which takes precedence over \./calendar\.py: rename that file"
    ):
        import_tool("calendar:greet")


def test_tools_of_installed_packages_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"plan_adapter.tools": [EntryPoint("acme", "tests.tools.offered:registry", "plan_adapter.tools")]}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points.get(group, []))
    registry = ToolRegistry.from_settings(["tests.tools.offered:plain"])
    assert {"shout", "plain", "bash"} <= set(registry.names())
    points["plan_adapter.tools"].append(EntryPoint("bad", "tests.tools.offered:gone", "plan_adapter.tools"))
    with pytest.raises(ToolDefinitionError, match=r"the entry point `bad = tests.tools.offered:gone` of the package `.*` cannot be loaded"):
        ToolRegistry.from_settings([])


def test_prefect_tasks_and_flows_can_be_tools(context: ToolContext) -> None:
    from prefect import flow, task

    @task(name="Add numbers", timeout_seconds=2.5)
    def add(a: int, b: int = 1) -> int:
        return a + b

    @flow(name="greet-flow")
    async def greet(name: str) -> str:
        """Greet somebody."""
        return name

    registry = ToolRegistry([add, as_tool(greet, effect="read")])
    added, greeted = registry.get("Add numbers"), registry.get("greet-flow")
    assert added is not None and greeted is not None
    assert (added.fn, added.task) == (add.fn, add), "the task's function, so that no task run is made inside the step's"
    assert (added.timeout_seconds, greeted.task) == (2.5, None)
    assert greeted.fn is greet, "the flow itself, so that it is seen as a subflow"
    assert (added.effect, greeted.effect, greeted.is_async, greeted.description) == ("write", "read", True, "Greet somebody.")
    assert added.fn(**added.bind({"a": 2}, context)) == 3


def test_a_flow_without_a_name_of_its_own_is_called_as_its_function() -> None:
    from prefect import flow

    def restart_web_node() -> None: ...

    assert [as_tool(flow(restart_web_node)).name, as_tool(flow(name="a_b-c")(restart_web_node)).name] == ["restart_web_node", "a_b-c"]


def test_the_error_for_a_task_with_retries_names_the_equivalent_step_options() -> None:
    from prefect import task
    from prefect.cache_policies import INPUTS

    def act() -> None: ...

    with pytest.raises(ToolDefinitionError) as refused:
        ToolRegistry([task(retries=3, cache_policy=INPUTS)(act)])
    assert "has retries=3" in str(refused.value) and "write `max_retries: 3` on its steps" in str(refused.value)
    assert str(refused.value).endswith("Pass it with `with_options(retries=0, persist_result=False)`")
    assert len(ToolRegistry([task(retries=3, cache_policy=INPUTS)(act).with_options(retries=0, persist_result=False)])) == 1


@pytest.mark.parametrize(
    "options",
    [{"persist_result": True}, {"cache_key_fn": lambda *_: "k"}, {"result_storage_key": "k"}, {"result_serializer": "json"}],
    ids=lambda options: next(iter(options)),
)
def test_a_task_that_persists_results_is_refused(options: dict[str, Any]) -> None:
    from prefect import task

    def act() -> None: ...

    with pytest.raises(ToolDefinitionError, match="it persists results"):
        as_tool(task(**options)(act))


def test_importing_the_registry_loads_no_heavy_library() -> None:
    import subprocess

    heavy = "httpx", "sqlalchemy", "prefect", "griffe"
    code = f"import sys, plan_adapter.tools.registry as r; r.ToolRegistry.with_builtins(); print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_module_stands_for_the_tools_and_registries_among_its_public_names() -> None:
    assert ToolRegistry([offered]).names() == ToolRegistry(["tests.tools.offered"]).names() == ["shout", "whisper"]
    assert as_registry(offered).names() == as_registry([offered.plain, offered]).names()[1:] == ["shout", "whisper"]


def test_a_module_with_all_offers_only_those_names() -> None:
    module = ModuleType("acme_tools")
    vars(module).update(shout=offered.shout, whisper=offered.whisper, __all__=["whisper"])
    assert as_registry(module).names() == ["whisper"]


def test_a_registry_is_used_as_it_is_and_an_iterable_once() -> None:
    known = ToolRegistry([offered.shout])
    assert as_registry(known) is known
    assert as_registry(function for function in (offered.plain, offered.shout)).names() == ["plain", "shout"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "`tools` is None: pass a ToolRegistry, a list of tools or functions, or a module"),
        (3, "`tools` is 3: pass"),
        ({"shout": offered.shout}, "`tools` is a mapping: pass a ToolRegistry"),
        (offered.shout, r"`tools` is one tool: pass a list, `tools=\[shout\]`"),
        (offered.plain, r"`tools` is one tool: pass a list, `tools=\[plain\]`"),
        ("tests.tools.offered", r"`tools` is the text 'tests.tools.offered': pass a list, `tools=\['tests.tools.offered'\]`, to import"),
    ],
)
def test_what_holds_no_tools_is_refused_with_what_to_pass(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        as_registry(given)
