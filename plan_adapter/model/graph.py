"""Graph algorithms on `{id: dependencies}`: order, critical path, cycles, reachability, transitive reduction. Independent of plans.

Every function takes a mapping of ids to the ids that they depend on. Unknown dependencies are ignored here; validation reports them.
"""

import heapq
from collections.abc import Collection, Hashable, Mapping
from typing import TypeAlias, TypeVar

Node = TypeVar("Node", bound=Hashable)
Graph: TypeAlias = Mapping[str, Collection[str]]


def successors(graph: Mapping[Node, Collection[Node]]) -> dict[Node, list[Node]]:
    """Return for each id the ids that depend on it, in the order of `graph`."""
    after: dict[Node, list[Node]] = {node: [] for node in graph}
    for node, dependencies in graph.items():
        for dependency in dependencies if len(dependencies) < 2 else dict.fromkeys(dependencies):
            if dependency in after:
                after[dependency].append(node)
    return after


def topological_order(graph: Graph) -> list[str]:
    """Return the ids in topological order, and otherwise in the order of `graph`. Ids in a cycle, or behind one, are left out."""
    if _is_in_order(graph):
        return list(graph)
    position = {node: index for index, node in enumerate(graph)}
    after = successors(graph)
    missing = {node: len({d for d in dependencies if d in position}) for node, dependencies in graph.items()}
    ready = [position[node] for node, count in missing.items() if count == 0]
    heapq.heapify(ready)
    nodes, order = list(graph), list[str]()
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for successor in after[node]:
            missing[successor] -= 1
            if missing[successor] == 0:
                heapq.heappush(ready, position[successor])
    return order


def find_cycle(graph: Graph) -> list[str]:
    """Return one cycle as a path that ends where it starts (`[a, b, a]`), or an empty list."""
    acyclic = set(topological_order(graph))
    rest = {node: [d for d in dict.fromkeys(graph[node]) if d in graph and d not in acyclic] for node in graph if node not in acyclic}
    if not rest:
        return []
    # Every remaining id has a dependency that also remains, so following dependencies must lead into a cycle.
    walk, seen = [next(node for node, ds in rest.items() if ds)], dict[str, int]()
    while walk[-1] not in seen:
        seen[walk[-1]] = len(walk) - 1
        walk.append(rest[walk[-1]][0])
    return walk[seen[walk[-1]] :]


def waves(graph: Graph, order: Collection[str]) -> list[list[str]]:
    """Return `order` grouped by depth: each group depends only on earlier groups. For display; nothing runs in waves."""
    depth: dict[str, int] = {}
    groups: list[list[str]] = []
    for node in order:
        depth[node] = 1 + max((depth[d] for d in graph[node] if d in depth), default=-1)
        if depth[node] == len(groups):
            groups.append([])
        groups[depth[node]].append(node)
    return groups


def path_lengths(graph: Graph, order: Collection[str], weights: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return for each id the weight of the heaviest path from it to an end, including the id. The default weight is 1."""
    below = dict.fromkeys(order, 0.0)  # the heaviest path of its dependents
    length: dict[str, float] = {}
    for node in reversed(list(order)):
        length[node] = own = below[node] + (1.0 if weights is None else weights.get(node, 1.0))
        for dependency in graph[node]:
            if below.get(dependency, own) < own:
                below[dependency] = own
    return length


def transitive_reduction(graph: Graph, order: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return `graph` without the dependencies that another dependency already implies.

    Sets of ancestors are integers used as bit sets: 10,000 ids with dense edges take well under a second.
    """
    if not _may_imply(graph, order):
        return {node: tuple(graph[node]) for node in order}
    bit = {node: 1 << index for index, node in enumerate(order)}
    above: dict[str, int] = {}
    reduced: dict[str, tuple[str, ...]] = {}
    for node in order:
        direct = [d for d in dict.fromkeys(graph[node]) if d in bit]
        implied = 0
        for dependency in direct:
            implied |= above[dependency]
        reduced[node] = tuple(d for d in direct if not bit[d] & implied)
        above[node] = implied
        for dependency in direct:
            above[node] |= bit[dependency]
    return reduced


def _is_in_order(graph: Graph) -> bool:
    """Return whether each id comes after its dependencies, as in most plans."""
    before = set[str]()
    for node, dependencies in graph.items():
        if not before.issuperset(dependencies):
            return False
        before.add(node)
    return True


def _may_imply(graph: Graph, order: Collection[str]) -> bool:
    """Return whether an id may have redundant dependencies. Only dependencies at different depths can imply each other."""
    depth: dict[str, int] = {}
    for node in order:
        dependencies, above = graph[node], -1
        for dependency in dependencies:
            found = depth.get(dependency, -1)
            if found < 0 or (above >= 0 and found != above):
                return True
            above = found
        if len(dependencies) > 1 and len(set(dependencies)) < len(dependencies):
            return True
        depth[node] = above + 1
    return False


def ancestors_of(graph: Graph) -> dict[str, frozenset[str]]:
    """Return for each id everything that it depends on, directly or indirectly. Ids in a cycle are left out."""
    above: dict[str, frozenset[str]] = {}
    for node in topological_order(graph):
        direct = [dependency for dependency in graph[node] if dependency in above]
        above[node] = frozenset(direct).union(*(above[dependency] for dependency in direct))
    return above


def reachable(graph: Graph, starts: Collection[str]) -> set[str]:
    """Return `starts` and every id reachable from them in `graph`."""
    found, pending = set[str](), list(starts)
    while pending:
        node = pending.pop()
        if node in graph and node not in found:
            found.add(node)
            pending += graph[node]
    return found
