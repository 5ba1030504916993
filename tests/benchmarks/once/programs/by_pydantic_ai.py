"""pydantic-ai: a tool that requires approval, whose deferred request and message history are stored in a file before the answer is used.

As the page "Deferred tools" of its documentation tells. The model is scripted.
"""

import trials
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.messages import TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

CALLS = ("check", "charge", "tell")


def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Call the next tool that has no result yet."""
    done = {part.tool_name for message in messages for part in message.parts if isinstance(part, ToolReturnPart)}
    for number, name in enumerate(CALLS):
        if name not in done:
            return ModelResponse(parts=[ToolCallPart(name, {"order": trials.ORDER}, tool_call_id=f"call-{number}")])
    return ModelResponse(parts=[TextPart("It is charged.")])


agent = Agent(FunctionModel(model), output_type=[str, DeferredToolRequests])
agent.tool_plain(trials.check)
agent.tool_plain(requires_approval=True)(trials.charge)
agent.tool_plain(trials.tell)


def work(trial: trials.Trial) -> None:
    """Start the order, or resume it."""
    messages, decision = trial.folder / "messages.json", trial.folder / "approved"
    if not messages.exists():
        result = agent.run_sync("Charge the order.")
        assert isinstance(result.output, DeferredToolRequests)
        trials.store(messages.name, result.all_messages_json().decode())
    history = ModelMessagesTypeAdapter.validate_json(messages.read_bytes())
    waiting = [part.tool_call_id for part in history[-1].parts if isinstance(part, ToolCallPart)]
    if not decision.exists():
        trial.ask()
        decision.touch()
    agent.run_sync(message_history=history, deferred_tool_results=DeferredToolResults(approvals=dict.fromkeys(waiting, True)))


if __name__ == "__main__":
    trials.serve(work)
