"""LangGraph: an interrupt in a node of its own, a SQLite checkpointer with `durability="sync"`, and `invoke(None)` after a crash.

As the pages "Interrupts" and "Durable execution" of its documentation tell. The write stands after the interrupt, in another node.
"""

import sqlite3
from typing import Any, TypedDict

import trials
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict, total=False):
    """The state of an order."""

    order: str
    found: str
    is_approved: bool
    receipt: str
    told: str


def build(saver: SqliteSaver) -> Any:
    """Return the graph."""
    graph = StateGraph(State)
    graph.add_node("check", lambda state: {"found": trials.check(state["order"])})
    graph.add_node("gate", lambda state: {"is_approved": interrupt({"question": f"Charge {state['order']}?"})})
    graph.add_node("charge", lambda state: {"receipt": trials.charge(state["order"])})
    graph.add_node("tell", lambda state: {"told": trials.tell(state["order"])})
    graph.add_edge(START, "check")
    graph.add_edge("check", "gate")
    graph.add_conditional_edges("gate", lambda state: "charge" if state["is_approved"] else END, ["charge", END])
    graph.add_edge("charge", "tell")
    graph.add_edge("tell", END)
    return graph.compile(checkpointer=saver)


def work(trial: trials.Trial) -> None:
    """Start the order, or resume it."""
    with sqlite3.connect(trial.folder / "checkpoints.db", check_same_thread=False) as connection:
        graph = build(SqliteSaver(connection))
        config = {"configurable": {"thread_id": trials.ORDER}}
        found = graph.get_state(config)
        if not found.values:
            graph.invoke({"order": trials.ORDER}, config, durability="sync")
        elif found.next and not found.interrupts:
            graph.invoke(None, config, durability="sync")
        if graph.get_state(config).interrupts:
            trial.ask()
            graph.invoke(Command(resume=True), config, durability="sync")


if __name__ == "__main__":
    trials.serve(work)
