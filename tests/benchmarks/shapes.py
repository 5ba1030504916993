"""The shapes of the benchmarks' plans, with the ideal duration of each."""

import heapq
import random
from dataclasses import dataclass

from plan_adapter.model import graph
from plan_adapter.model.plan import ExecutionPlan


@dataclass(frozen=True)
class Shape:
    """Steps as `{id: (dependencies, milliseconds of sleep)}`, and how many may run at once."""

    name: str
    steps: dict[str, tuple[list[str], int]]
    limit: int

    @property
    def ideal_ms(self) -> float:
        """The best list schedule: longest path first, no cost between steps."""
        edges = {step: dependencies for step, (dependencies, _) in self.steps.items()}
        weights = {step: float(ms) for step, (_, ms) in self.steps.items()}
        tail = graph.path_lengths(edges, graph.topological_order(edges), weights)
        after, missing = graph.successors(edges), {step: len(dependencies) for step, dependencies in edges.items()}
        ready = [(-tail[step], step) for step, count in missing.items() if not count]
        heapq.heapify(ready)
        running: list[tuple[float, str]] = []
        now = 0.0
        while ready or running:
            while ready and len(running) < self.limit:
                step = heapq.heappop(ready)[1]
                heapq.heappush(running, (now + weights[step], step))
            now, step = heapq.heappop(running)
            for successor in after[step]:
                missing[successor] -= 1
                if not missing[successor]:
                    heapq.heappush(ready, (-tail[successor], successor))
        return now

    def plan(self, tool: str = "work") -> ExecutionPlan:
        """Return the shape as a plan whose steps call `tool(ms=…)`."""
        plan = ExecutionPlan(description=self.name)
        plan.options.require_approval = False
        plan.options.allow_parallel, plan.options.max_parallel_steps = self.limit > 1, self.limit
        for step, (dependencies, ms) in self.steps.items():
            plan.add_step(tool, step, {"ms": ms}, id=step, depends_on=list(dependencies))
        return plan


def chain(count: int) -> Shape:
    """Return a chain of steps."""
    return Shape(f"chain-{count}", {f"s{n}": ([f"s{n - 1}"] if n else [], 0) for n in range(count)}, 10)


def fanout(count: int) -> Shape:
    """Return independent steps."""
    return Shape(f"fanout-{count}", {f"s{n}": ([], 0) for n in range(count)}, 10)


def layered(layers: int, width: int) -> Shape:
    """Return layers of steps. Each step depends on three steps of the layer before."""
    dice, steps, previous = random.Random(7), dict[str, tuple[list[str], int]](), list[str]()
    for layer in range(layers):
        current = [f"l{layer}n{place}" for place in range(width)]
        for step in current:
            steps[step] = (sorted(dice.sample(previous, min(3, len(previous)))), 0)
        previous = current
    return Shape(f"layered-{layers * width}", steps, 10)


def sleepfan() -> Shape:
    """Return 50 independent steps of 50 ms, 10 at a time."""
    return Shape("sleepfan-50", {f"s{n}": ([], 50) for n in range(50)}, 10)


def unequal() -> Shape:
    """Return short-long and long-short pairs. A scheduler that runs in waves takes the time of two long steps."""
    steps: dict[str, tuple[list[str], int]] = {}
    for n in range(10):
        steps |= {f"a{n}": ([], 10), f"b{n}": ([f"a{n}"], 200), f"c{n}": ([], 200), f"d{n}": ([f"c{n}"], 10)}
    return Shape("unequal-40", steps, 20)


def zigzag() -> Shape:
    """Return ten chains of six steps that alternate between 10 and 100 ms, with every other chain shifted."""
    steps: dict[str, tuple[list[str], int]] = {}
    for n in range(10):
        for depth in range(6):
            steps[f"z{n}_{depth}"] = ([f"z{n}_{depth - 1}"] if depth else [], 100 if (depth + n) % 2 else 10)
    return Shape("zigzag-60", steps, 10)
