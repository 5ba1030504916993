"""Tests of our tools in graphs of LangGraph: what the model reads, and that a call that is repeated has one effect."""

from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.integrations.langgraph import plan_tools
from tests.integrations.conftest import SECRET, Desk


def graph_that_calls(desk: Desk, *calls: tuple[str, dict[str, Any]], turns: int = 1, fails_after_calls: bool = False) -> Any:
    """Return a graph whose model makes these calls in each of its first `turns` turns, and then says `done`.

    With `fails_after_calls`, the first time that the calls are done, the node that made them fails, and its checkpoint is not written.
    """
    node, failures = ToolNode(plan_tools(desk.tools, **desk.options())), [fails_after_calls]

    def answer(state: MessagesState) -> dict[str, list[AnyMessage]]:
        if sum(isinstance(message, AIMessage) for message in state["messages"]) >= turns:
            return {"messages": [AIMessage("done")]}
        made = [{"name": name, "args": given, "id": f"call_{number}"} for number, (name, given) in enumerate(calls)]
        return {"messages": [AIMessage("", tool_calls=made)]}

    async def make_calls(state: MessagesState, config: RunnableConfig) -> Any:
        made = await node.ainvoke(state, config)
        if failures.pop() if failures else False:
            raise ConnectionError("the process is cut off after the calls")
        return made

    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", answer)
    graph.add_node("tools", make_calls)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition, ["tools", END])
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=InMemorySaver())


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def returns(state: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the results that the model got for its calls: the status, and the content."""
    return [(message.status, message.content) for message in state["messages"] if isinstance(message, ToolMessage)]


async def test_the_model_reads_results_failures_and_rejections(desk: Desk) -> None:
    calls = [("post", {"text": "hi"}), ("post", {"text": "fails"}), ("post", {"text": "reject me"}), ("purge", {}), ("post", {"txt": "hi"})]
    state = await graph_that_calls(desk, *calls).ainvoke({"messages": ["Post"]}, thread("1"))
    assert state["messages"][-1].content == "done"
    result, failure, rejection, refusal, misfit = returns(state)
    assert result in [("success", '{"id": 1}'), ("success", '{"id": 2}')]
    assert failure == ("error", "the channel refuses the key ***")
    assert rejection == ("error", "`post` was not called: rejected by ana: not on a Friday")
    assert refusal[0] == "error" and "needs the permission `allow_purge`" in refusal[1]
    assert misfit[0] == "error" and "the arguments do not fit `post`" in misfit[1]
    assert sorted(desk.posted) == ["fails", "hi"]


async def test_a_result_that_is_text_is_not_quoted_and_has_no_secret(desk: Desk) -> None:
    state = await graph_that_calls(desk, ("look", {"city": "Oslo"})).ainvoke({"messages": ["Look"]}, thread("1"))
    assert returns(state) == [("success", "Oslo knows ***")]
    assert SECRET not in str(state)


async def test_an_unknown_outcome_ends_the_graph(desk: Desk) -> None:
    graph = graph_that_calls(desk, ("post", {"text": "lost"}))
    for given in ({"messages": ["Post"]}, None):  # None resumes it
        with pytest.raises(UnknownOutcomeError, match="the outcome of `post` is unknown: the connection broke"):
            await graph.ainvoke(given, thread("1"))
    assert desk.posted == ["lost"]


async def test_a_graph_that_is_resumed_from_a_checkpoint_makes_no_second_effect(desk: Desk) -> None:
    graph = graph_that_calls(desk, ("post", {"text": "hi"}), fails_after_calls=True)
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"messages": ["Post"]}, thread("1"))
    assert desk.posted == ["hi"]
    state = await graph.ainvoke(None, thread("1"))
    assert returns(state) == [("success", '{"id": 1}')]
    assert desk.posted == ["hi"]
    assert len(await desk.store.runs()) == 1


async def test_another_turn_and_another_thread_make_their_own_calls_with_the_same_ids(desk: Desk) -> None:
    graph = graph_that_calls(desk, ("post", {"text": "hi"}), turns=2)
    states = [await graph.ainvoke({"messages": ["Post"]}, thread(name)) for name in ("1", "2")]
    assert [content for state in states for _, content in returns(state)] == ['{"id": 1}', '{"id": 2}', '{"id": 3}', '{"id": 4}']


class Unidentified(TypedDict):
    """A state whose messages get no ids."""

    messages: list[AnyMessage]


async def test_a_call_that_nothing_identifies_is_a_new_one(desk: Desk) -> None:
    graph: Any = StateGraph(Unidentified)
    graph.add_node("tools", ToolNode(plan_tools(desk.poster, **desk.options())))
    graph.add_edge(START, "tools")
    asked = AIMessage("", tool_calls=[{"name": "post", "args": {"text": "hi"}, "id": "call_0"}])
    states = [await graph.compile().ainvoke({"messages": [asked]}) for _ in range(2)]
    assert [content for state in states for _, content in returns(state)] == ['{"id": 1}', '{"id": 2}']


def test_the_model_gets_the_schema_of_a_tool(desk: Desk) -> None:
    [post] = plan_tools(desk.poster, **desk.options())
    schema: Any = post.tool_call_schema
    assert (post.name, post.description) == ("post", "Post a message.")
    assert {name: field.get("description") for name, field in schema["properties"].items()} == {
        "text": "What to post.",
        "channel": "Where; by default everywhere.",
    }
