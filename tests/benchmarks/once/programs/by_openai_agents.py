"""OpenAI Agents SDK: a tool with `needs_approval`, and a `RunState` that is stored at the interruption and after the approval.

As the page "Human in the loop" of its documentation tells. The model is scripted.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import trials
from agents import Agent, Model, ModelResponse, RunConfig, Runner, RunState, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

CALLS = ("check", "charge", "tell")


class Scripted(Model):
    """Calls the next tool that has no result yet."""

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:  # its name there
        """Return the next call, or the end."""
        items = [] if isinstance(input, str) else input
        done = sum(1 for item in items if item.get("type") == "function_call_output")
        if done < len(CALLS):
            arguments = json.dumps({"order": trials.ORDER})
            call = ResponseFunctionToolCall(arguments=arguments, call_id=f"call-{done}", name=CALLS[done], type="function_call")
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = ResponseOutputText(annotations=[], text="It is charged.", type="output_text")
        message = ResponseOutputMessage(id="end", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Refuse: nothing here streams."""
        raise NotImplementedError


check, tell = function_tool(trials.check), function_tool(trials.tell)
charge = function_tool(trials.charge, needs_approval=True)
agent = Agent(name="cashier", model=Scripted(), tools=[check, charge, tell])
CONFIG = RunConfig(tracing_disabled=True)


def work(trial: trials.Trial) -> None:
    """Start the order, or resume it."""
    asyncio.run(_work(trial, trial.folder / "state.json"))


async def _work(trial: trials.Trial, file: Path) -> None:
    if file.exists():
        state = await RunState.from_json(agent, json.loads(file.read_bytes()))
    else:
        result = await Runner.run(agent, "Charge the order.", run_config=CONFIG)
        state = result.to_state()
        _store(state, file.name)
    decision = file.with_name("approved")
    if not decision.exists():
        trial.ask()
        for interruption in state.get_interruptions():
            state.approve(interruption)
        _store(state, file.name)
        decision.touch()
    await Runner.run(agent, state, run_config=CONFIG)


def _store(state: RunState[Any, Any], name: str) -> None:
    trials.store(name, json.dumps(state.to_json()))


if __name__ == "__main__":
    trials.serve(work)
