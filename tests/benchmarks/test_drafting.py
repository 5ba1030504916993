"""Benchmark of drafting with a hundred tools: our own CPU time per round, against encoding the request and decoding the answer as JSON."""

import json
import statistics
import time
from typing import Any, cast

import pytest

from plan_adapter.agent.completions import Completion
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.model.drafts import PlanRequest, Usage
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool

pytestmark = pytest.mark.benchmark

TOOLS, STEPS, CORRECTIONS, TIMES = 100, 20, 5, 7
TARGET_MS, MAX_RATIO = 20, 3.0


def make_tool(number: int) -> Tool[..., Any]:
    def act(
        host: str, port: int = 443, labels: dict[str, str] | None = None, tags: list[str] | None = None, force: bool = False, note: str = ""
    ) -> dict[str, Any]:
        """Change one host, and tell what was changed.

        Args:
            host: The name of the host, as the inventory has it.
            port: The port to speak to.
            labels: What the host is labelled with afterwards.
            tags: What it is tagged with.
            force: Whether to do it although somebody works on it.
            note: What the log of changes says.
        """
        return {"host": host, "port": port, "labels": labels, "tags": tags, "force": force, "note": note}

    return Tool(act, effect="write", name=f"change_{number:03}")


def answer(*, wrong: int) -> str:
    """Return the model's answer: a chain of steps. The last `wrong` steps have an unknown tool."""
    steps = [
        {
            "id": f"s{number}",
            "tool_name": f"change_{number:03}" if number < STEPS - wrong else f"chang_{number:03}",
            "description": "Change it",
            "parameters": {"host": f"web-{number}", "labels": {"a": "b"}},
            "depends_on": [f"s{number - 1}"] if number else [],
        }
        for number in range(STEPS)
    ]
    return json.dumps({"action": "plan_done", "speak": "Done.", "reason": "", "description": "Change all", "steps": steps})


class InstantModel(OpenAIModel):
    """Answers without a server. Building requests and reading answers is real."""

    def __init__(self) -> None:
        super().__init__("m", base_url="http://127.0.0.1:9/v1")
        self.requests: list[dict[str, Any]] = []

    async def _read_whole_answer(self, request: dict[str, Any]) -> Completion:
        self.requests.append(request)
        text = answer(wrong=CORRECTIONS - len(self.requests) + 1)
        return Completion(text, finish="stop", usage=Usage(1, 1), model="m")


async def test_a_round_takes_little_cpu_time() -> None:
    tools, model = ToolRegistry(make_tool(number) for number in range(TOOLS)), InstantModel()
    planner = Planner(model, tools)

    async def ours() -> float:
        model.requests.clear()
        began = time.process_time()
        draft = await planner.drafted(PlanRequest("Change all hosts", constraints=("one after the other",)))
        took = time.process_time() - began
        assert draft.plan is not None
        assert len(draft.calls) == CORRECTIONS + 1
        return took / len(draft.calls) * 1000

    def floor() -> float:
        began = time.process_time()
        for request in model.requests:
            json.dumps(request, ensure_ascii=False).encode()
            json.loads(cast("str", answer(wrong=0)))
        return (time.process_time() - began) / len(model.requests) * 1000

    await ours()
    rounds = [(await ours(), floor()) for _ in range(TIMES)]
    each, ratio = [statistics.median(column) for column in zip(*rounds, strict=True)], statistics.median(a / b for a, b in rounds)
    size = len(json.dumps(model.requests[0])) // 1024
    print(f"\n{TOOLS} tools, {STEPS} steps, {size} KiB: {each[0]:.1f} ms CPU a round (target: {TARGET_MS}), JSON alone {each[1]:.1f} ms")
    print(f"ratio {ratio:.2f} (at most {MAX_RATIO})")
    assert ratio <= MAX_RATIO
