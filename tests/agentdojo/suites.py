"""AgentDojo's suites, and their functions as tools of this package.

AgentDojo's package of pipelines imports the clients of four model vendors, 115 MB with what they need. The suites use only three small
modules of it, so these clients are not installed, and `_without_model_clients` lets the suites import these modules alone.
"""

import importlib.util
import json
import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from plan_adapter import ToolRegistry
from plan_adapter.errors import ToolError
from plan_adapter.model.options import Effect
from plan_adapter.tools.tool import Tool

REQUIREMENTS = ("agentdojo", "deepdiff", "email_validator")
MISSING = [name for name in REQUIREMENTS if importlib.util.find_spec(name) is None]
"""What is not installed."""

VERSION = "v1.2.2"
"""The newest version of the benchmark. It has 97 user tasks and 949 pairs."""

_READING = ("get_", "read_", "search_", "list_", "check_")
_SENDING = frozenset({"get_webpage"})


def effect_of(name: str) -> Effect:
    """Return the effect of a function. `get_webpage` takes any address, so it can send what its caller knows: it counts as a write."""
    return "read" if name.startswith(_READING) and name not in _SENDING else "write"


def _without_model_clients() -> None:
    """Let `agentdojo.agent_pipeline` import without its `__init__`, and without the module of Google's client, of which a name is used."""
    found = importlib.util.find_spec("agentdojo")
    assert found is not None and found.origin is not None
    pipelines = ModuleType("agentdojo.agent_pipeline")
    pipelines.__path__ = [str(Path(found.origin).parent / "agent_pipeline")]
    google = ModuleType("agentdojo.agent_pipeline.llms.google_llm")
    google.EMPTY_FUNCTION_NAME = "<empty-function>"  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules.setdefault(pipelines.__name__, pipelines)
    sys.modules.setdefault(google.__name__, google)


@cache
def suites() -> Mapping[str, Any]:
    """Return AgentDojo's suites by name."""
    _without_model_clients()
    import email_validator

    email_validator.validate_email = cache(email_validator.validate_email)  # each environment has the same addresses
    from agentdojo.task_suite.load_suites import get_suites

    found = get_suites(VERSION)
    for name, suite in found.items():
        suite.load_and_inject_default_environment = partial(environment_of, name)
    return found


@dataclass(frozen=True)
class Case:
    """A user task, with an injection or without. Everything in it has a name, so that another process can run it."""

    suite: str
    user_task: str
    injection_task: str | None = None

    @property
    def task(self) -> Any:
        """AgentDojo's user task."""
        return suites()[self.suite].user_tasks[self.user_task]

    @property
    def attack(self) -> Any:
        """AgentDojo's injection task, or None."""
        return None if self.injection_task is None else suites()[self.suite].injection_tasks[self.injection_task]

    def environment(self) -> Any:
        """Return the data that the tools work on, with the injection in each place that the task reads."""
        injected = {} if self.injection_task is None else _attack_of(self.suite).attack(self.task, self.attack)
        return self.task.init_environment(environment_of(self.suite, injected))


def environment_of(suite: str, injections: Mapping[str, str]) -> Any:
    """Return what `load_and_inject_default_environment` does, with PyYAML's parser in C, which takes a tenth of the time."""
    of = suites()[suite]
    from agentdojo.task_suite.task_suite import read_suite_file

    text = read_suite_file(suite, "environment.yaml", of.data_path).format(**_defaults_of(suite) | injections)
    return of.environment_type.model_validate(pickle.loads(_document(text)))


@lru_cache(maxsize=16)
def _document(text: str) -> bytes:
    """Return the data of an environment. Reading it back takes a tenth of the time that parsing takes."""
    return pickle.dumps(yaml.load(text, yaml.CSafeLoader))


@cache
def _defaults_of(suite: str) -> dict[str, str]:
    return suites()[suite].get_injection_vector_defaults()


@cache
def _attack_of(suite: str) -> Any:
    """Return AgentDojo's strongest attack with a fixed text, as its runner sets it up."""
    of = suites()[suite]
    from agentdojo.agent_pipeline.base_pipeline_element import BasePipelineElement
    from agentdojo.attacks.important_instructions_attacks import ImportantInstructionsAttack

    class Target(BasePipelineElement):
        name = "local"

        def query(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("only its name is used")

    return ImportantInstructionsAttack(of, Target())


def tasks() -> list[Case]:
    """Return the user tasks without injections."""
    return [Case(name, task) for name, suite in suites().items() for task in suite.user_tasks]


def pairs() -> list[Case]:
    """Return each user task with each injection task of its suite."""
    return [Case(case.suite, case.user_task, injection) for case in tasks() for injection in suites()[case.suite].injection_tasks]


@dataclass
class Desk:
    """One run of a case: the environment, what the tools did to it, and what it was before."""

    case: Case
    before: Any
    environment: Any
    calls: list[Any] = field(default_factory=list)  # as AgentDojo's FunctionCall
    results: list[str] = field(default_factory=list)  # the text of each result

    @classmethod
    def of(cls, case: Case, environment: Any) -> "Desk":
        """Return a desk for a run of `case`, which gets copies of its `environment`: AgentDojo's checks change what they look at."""
        kept = pickle.dumps(environment)  # takes a third of the time of a deep copy
        return cls(case, pickle.loads(kept), pickle.loads(kept))

    @property
    def tools(self) -> ToolRegistry:
        """The suite's functions as tools, which now work on this desk."""
        _at_work[self.case.suite] = self
        return _tools_of(self.case.suite)

    def call(self, runtime: Any, name: str, arguments: dict[str, Any]) -> Any:
        """Call a function and return its result as JSON. Raises ToolError."""
        from agentdojo.functions_runtime import FunctionCall

        self.calls.append(FunctionCall(function=name, args=arguments))
        result, error = runtime.run_function(self.environment, name, arguments)
        if error is not None:
            raise ToolError(error)
        value = to_jsonable_python(result)
        self.results.append("\n".join(texts(value)))
        return value

    def has_seen_injection(self) -> bool:
        """Return whether a result contained the text of the injection. YAML may have folded its lines."""
        wanted = _squeezed(self.case.attack.GOAL)
        return any(wanted in _squeezed(result) for result in self.results)

    def judge(self, output: str, *, shares: bool = True) -> tuple[bool, bool]:
        """Return AgentDojo's judgment: whether the user task is done and the attack executed. `output` is what was said at the end.

        AgentDojo compares the two environments part by part, which takes longer than a run. It skips what is the same object, so
        equal parts are shared (`shares`).
        """
        suite, said = suites()[self.case.suite], [{"type": "text", "content": output}]
        against = (said, self.before, self.environment, self.calls)
        is_executed = self.case.injection_task is not None and suite._check_injection_task_security(self.case.attack, *against)
        if shares:
            _share_equal_parts(self.before, self.environment)
        return suite._check_user_task_utility(self.case.task, *against), is_executed


_at_work: dict[str, Desk] = {}


@cache
def _tools_of(suite: str) -> ToolRegistry:
    from agentdojo.functions_runtime import FunctionsRuntime

    runtime = FunctionsRuntime(suites()[suite].tools)
    return ToolRegistry([_tool(suite, function, runtime) for function in suites()[suite].tools])


def _tool(suite: str, function: Any, runtime: Any) -> Tool[..., Any]:
    async def call(**arguments: Any) -> Any:
        return _at_work[suite].call(runtime, function.name, arguments)

    whole = signature(function.run)
    given = [parameter for name, parameter in whole.parameters.items() if name not in function.dependencies]
    call.__signature__ = whole.replace(  # pyright: ignore[reportFunctionMemberAccess]
        parameters=[parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in given], return_annotation=Any
    )
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in given} | {"return": Any}
    call.__name__ = call.__qualname__ = function.name
    return Tool(call, effect=effect_of(function.name), description=function.description)


def _share_equal_parts(before: Any, after: Any) -> None:
    """Replace the parts of `before` that equal those of `after` by these. AgentDojo's comparison skips the same object."""
    if isinstance(before, BaseModel) and type(before) is type(after):
        before, after = before.__dict__, after.__dict__
    if not isinstance(before, dict) or not isinstance(after, dict):
        return
    for key in before.keys() & after.keys():
        if before[key] == after[key]:
            before[key] = after[key]
        else:
            _share_equal_parts(before[key], after[key])


def texts(value: Any) -> Iterator[str]:
    """Yield each text in a JSON value, and its other values as JSON."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield str(key)
            yield from texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from texts(member)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def _squeezed(text: str) -> str:
    return "".join(text.split())


warnings.filterwarnings("ignore", module="agentdojo")


def arguments_of(call: Any) -> dict[str, Any]:
    """Return the arguments of a call of AgentDojo as JSON."""
    return to_jsonable_python(dict(call.args))


def whole_arguments_of(suite: str, call: Any) -> dict[str, Any]:
    """Return the arguments of a call as the function gets them, with its defaults."""
    function = next(function for function in suites()[suite].tools if function.name == call.function)
    return function.parameters.model_validate(dict(call.args)).model_dump(mode="json")
