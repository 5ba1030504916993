"""Tests of tools as functions of another agent: every call has a run, a gate and a receipt."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import pytest
from pydantic import Field, JsonValue, TypeAdapter

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.agent import as_functions
from plan_adapter.errors import NotApprovedError, ToolError
from plan_adapter.gates import ApprovalRequest, CallbackApprover
from plan_adapter.gates.policy import Policy
from plan_adapter.model.approvals import Decision
from plan_adapter.model.errors import UnknownOutcomeError
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.store.policies import NewPolicy
from plan_adapter.tools import ToolContext


@tool(effect="read")
def find(city: str, limit: Annotated[int, Field(ge=1)] = 3) -> list[str]:
    """Find places.

    Args:
        city: Where to look.
        limit: How many to return.
    """
    return [city] * limit


posted = list[str]()


@tool
async def post(text: str, context: ToolContext) -> dict[str, JsonValue]:
    """Post a message."""
    posted.append(text)
    if text == "fails":
        raise ToolError("the channel is closed")
    if text == "lost":
        raise UnknownOutcomeError("the connection broke")
    return {"id": len(posted), "key": bool(context.idempotency_key)}


@tool(literal_parameters=["command"])
def execute(command: str) -> str:
    """Execute a command."""
    posted.append(command)
    return command


@pytest.fixture(autouse=True)
def _clear_posted() -> None:
    posted.clear()


MakeFunctions = Callable[..., dict[str, Callable[..., Any]]]


@pytest.fixture
def make_functions(store: PlanStore) -> MakeFunctions:
    def functions(answer: Callable[[ApprovalRequest], Any], **options: Any) -> dict[str, Callable[..., Any]]:
        approver = CallbackApprover(answer, by="ana")
        made = as_functions(ToolRegistry([find, post, execute]), approver=approver, store=store, offline=True, **options)
        return {function.__name__: function for function in made}

    return functions


def agree(_request: ApprovalRequest) -> bool:
    return True


def refuse(_request: ApprovalRequest) -> tuple[Decision, str]:
    return "reject", "not on a Friday"


def test_a_function_has_the_signature_of_its_tool(make_functions: MakeFunctions) -> None:
    function = make_functions(refuse)["find"]
    assert inspect.iscoroutinefunction(function)
    assert str(inspect.signature(make_functions(refuse)["post"])) == "(text: str) -> Any"
    assert "Where to look" in (function.__doc__ or "")
    assert get_type_hints(function) == {"city": str, "limit": int, "return": Any}
    function_type: Any = function
    schema = TypeAdapter[Any](function_type).json_schema()
    assert schema["properties"]["limit"] == {"default": 3, "minimum": 1, "title": "Limit", "type": "integer"}


@pytest.mark.parametrize("where", ["approval", "settings", "store"])
async def test_a_gated_read_that_nobody_can_approve_is_refused_at_once(
    where: str, store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    policy = ApprovalPolicy(effects=["read"]) if where == "approval" else None
    if where == "settings":
        monkeypatch.setenv("PLAN_ADAPTER_GATE_EFFECTS", "read")
    if where == "store":
        await store.policy.set(NewPolicy(Policy(allow_unapproved=False), 1, "ana", "os_user"))
    [function] = as_functions(ToolRegistry([look]), store=store, offline=True, approval=policy)
    with pytest.raises(
        NotApprovedError, match="`look` was not called: the policy asks a person before this read, and nobody can approve it"
    ):
        await function()
    assert await store.runs() == []
    [asking] = as_functions(ToolRegistry([look]), store=store, offline=True, approval=policy, approver=CallbackApprover(agree))
    assert await asking() == "seen"


async def test_tools_that_write_and_that_nobody_can_approve_are_refused_when_they_are_built(store: PlanStore) -> None:
    with pytest.raises(NotApprovedError, match="nobody can approve `execute`, `post`, which can write: pass an `approver`"):
        as_functions(ToolRegistry([find, post, execute]), store=store, offline=True)


async def test_a_read_needs_no_approval_and_has_a_run(make_functions: MakeFunctions, store: PlanStore) -> None:
    functions = make_functions(refuse, agent="concierge")
    assert await functions["find"]("东京", limit=2) == ["东京", "东京"]
    [run] = await store.runs()
    assert (run.name, run.status.value) == ("concierge: find", "completed")
    assert [receipt.result for receipt in await store.receipts(run.id)] == [["东京", "东京"]]


async def test_a_write_waits_for_an_approval_of_exactly_this_call(make_functions: MakeFunctions, store: PlanStore) -> None:
    seen = list[str]()

    def answer(request: ApprovalRequest) -> bool:
        seen.append(request.text)
        return True

    assert await make_functions(answer)["post"]("Good morning, 早上好") == {"id": 1, "key": True}
    assert len(seen) == 1
    assert "Good morning, 早上好" in seen[0]
    [run] = await store.runs()
    [approval] = await store.approvals(run.id)
    assert (approval.by, approval.decision) == ("ana", "approve")


async def test_a_rejection_raises_with_its_reason_and_calls_nothing(make_functions: MakeFunctions) -> None:
    with pytest.raises(NotApprovedError, match=r"`post` was not called: rejected by ana.*: not on a Friday"):
        await make_functions(refuse)["post"]("Hello")
    assert posted == []


async def test_only_the_named_approvers_count(make_functions: MakeFunctions) -> None:
    with pytest.raises(NotApprovedError):
        await make_functions(agree, approval=ApprovalPolicy(approvers=["bo"]))["post"]("Hello")
    assert posted == []


async def test_failures_raise_errors_that_the_agent_can_read(make_functions: MakeFunctions) -> None:
    functions = make_functions(agree)
    with pytest.raises(ToolError, match="the channel is closed"):
        await functions["post"]("fails")
    with pytest.raises(UnknownOutcomeError, match="the outcome of `post` is unknown: the connection broke; see `plan show "):
        await functions["post"]("lost")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("find", {"city": "Oslo", "limit": 0}, "greater than or equal to 1"),
        ("find", {"town": "Oslo"}, "arguments do not fit `find`"),
        ("post", {}, "missing a required argument: 'text'"),
        ("execute", {"command": "echo ${{ secrets.token }}"}, "`command` of `execute` is code"),
    ],
)
async def test_invalid_arguments_are_refused_before_anybody_is_asked(
    make_functions: MakeFunctions, name: str, arguments: dict[str, Any], message: str
) -> None:
    asked = list[ApprovalRequest]()
    with pytest.raises(ToolError, match=message):
        await make_functions(asked.append)[name](**arguments)
    assert (asked, posted) == ([], [])


async def test_an_expression_in_an_argument_stays_text(make_functions: MakeFunctions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_SECRET_TOKEN", "s3cret-value")
    text = "${{ secrets.token }} ${{ inputs.arguments.text }}"
    await make_functions(agree)["post"](text)
    assert posted == [text]


@tool(effect="read", permissions=["allow_reorder"])
def reorder() -> str:
    """Put things into another order."""
    return "done"


async def test_a_tool_is_called_only_with_its_permission(store: PlanStore) -> None:
    [refused] = as_functions(ToolRegistry([reorder]), store=store, offline=True)
    with pytest.raises(ToolError, match="allow_reorder"):
        await refused()
    assert await store.runs() == []
    [allowed] = as_functions(ToolRegistry([reorder]), store=store, offline=True, permissions=["allow_reorder"])
    assert await allowed() == "done"
