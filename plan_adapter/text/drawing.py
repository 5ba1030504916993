"""`graph_svg`: a graph of steps as an SVG picture, in layers from top to bottom. A long edge goes around the steps between its ends."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from plan_adapter.model import graph
from plan_adapter.model.readable import visible
from plan_adapter.text.gate_text import columns_of, in_columns
from plan_adapter.text.plan_graph import FINAL_LABEL, GraphNode, PlanGraph
from plan_adapter.text.run_facts import SHAPES

CELL, LINE, PAD = 7, 16, 8  # pixels: a column of 12-pixel type, a line of it, the padding of a box
GAP_X, GAP_Y = 18, 34
MIN_COLUMNS, MAX_COLUMNS = 14, 34
MAX_PER_ROW = 8
"""How many steps stand beside each other. A wider layer has several rows."""
MAX_ROWS = 10
"""How many items or inner steps a box lists."""
MAX_BENDS = 4000
"""Above this number of bends, long edges are drawn straight."""
SWEEPS = 4

STYLE = """\
svg{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'Noto Sans Mono CJK SC',monospace}
.b{fill:#fff;stroke:#888;stroke-width:1.5}.t{fill:#222}.s{fill:#666}.e{fill:none;stroke:#999;stroke-width:1.2}
.asks{stroke-dasharray:5 3}.write{stroke-width:3}
.done{fill:#e6f4ea;stroke:#1e7e34}.failed{fill:#fbdcd8;stroke:#b3261e;stroke-width:2.5}.undone{fill:#f1e6fa;stroke:#7b3fa0}
.unknown{fill:#fff1cc;stroke:#b07a10;stroke-width:2.5}.running{fill:#e0f3fb;stroke:#0b7394}.waiting{fill:#fff7e0;stroke:#b07a10}
.skipped{fill:#f2f2f2;stroke:#999;stroke-dasharray:2 3}.pending{fill:#fff;stroke:#bbb;stroke-dasharray:2 3}
@media(prefers-color-scheme:dark){.b{fill:#222;stroke:#777}.t{fill:#eee}.s{fill:#aaa}.e{stroke:#777}
.done{fill:#12351c;stroke:#4caf6a}.failed{fill:#4a1512;stroke:#f0776c}.undone{fill:#33203f;stroke:#b98ad8}
.unknown{fill:#3d3005;stroke:#e0b040}.running{fill:#0b2f3b;stroke:#4fb3d4}.waiting{fill:#3d3005;stroke:#e0b040}
.skipped{fill:#2a2a2a;stroke:#888}.pending{fill:#222;stroke:#666}}
"""


ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#999"/></marker></defs>'
)


@dataclass(slots=True)
class _Box:
    """A step in the picture, or a bend of a long edge, which has no node."""

    id: str
    node: GraphNode | None = None
    lines: list[str] = field(default_factory=list[str])
    width: int = 0
    height: int = 0
    x: float = 0  # of its middle
    y: float = 0  # of its top


def graph_svg(plan_graph: PlanGraph) -> str:
    """Return the picture as one SVG element with its styles: light and dark, readable without color, with a title for each step."""
    layers, edges = _layers(plan_graph)
    _order(layers, edges)
    width, height = _place(layers, edges)
    boxes = {box.id: box for layer in layers for box in layer}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_text(plan_graph.name)}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">',
        f"<style>{STYLE}</style>",
        ARROW,
        *(_edge(boxes[before], boxes[name]) for name, others in edges.items() for before in others),
        *(line for box in boxes.values() if box.node is not None for line in _drawn(box, box.node)),
        *_final_label(boxes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _final_label(boxes: Iterable[_Box]) -> Iterator[str]:
    finals = [box for box in boxes if box.node is not None and box.node.is_final]
    if finals:
        left, top = min(box.x - box.width / 2 for box in finals), min(box.y for box in finals)
        yield f'<text class="s" x="{left:.0f}" y="{top - 8:.0f}">{FINAL_LABEL}</text>'


def _layers(plan_graph: PlanGraph) -> tuple[list[list[_Box]], dict[str, list[str]]]:
    """Return the boxes of each layer, with a bend wherever an edge crosses a layer, and the edges between neighboring layers."""
    nodes = {node.id: node for node in plan_graph.inside(None)}
    waves, names = list[list[str]](), {name: node.after for name, node in nodes.items()}
    for is_final in (False, True):
        part = {name: names[name] for name, node in nodes.items() if node.is_final is is_final}
        for wave in graph.waves(part, graph.topological_order(part)):
            waves += [wave[start : start + MAX_PER_ROW] for start in range(0, len(wave), MAX_PER_ROW)]
    rank = {name: number for number, wave in enumerate(waves) for name in wave}
    layers = [[_box_of(nodes[name], plan_graph) for name in wave] for wave in waves]
    bends = sum(max(rank[name] - rank[before] - 1, 0) for name in rank for before in names[name] if before in rank)
    edges = dict[str, list[str]]()
    for name, own_rank in rank.items():
        for before in (other for other in names[name] if other in rank):
            last = before
            for number in range(rank[before] + 1, own_rank) if bends <= MAX_BENDS else ():
                bend = f"{before}\n{name}\n{number}"
                layers[number].append(_Box(bend))
                edges[bend] = [last]
                last = bend
            edges.setdefault(name, []).append(last)
    return layers, edges


def _box_of(node: GraphNode, plan_graph: PlanGraph) -> _Box:
    shape = f"{SHAPES[node.mark]} " if node.mark is not None else ""
    lines = [f"{shape}{node.id}", node.detail or node.title]
    if node.items:
        rows = [" ".join([SHAPES[item.mark], f"{item.label} ", *(SHAPES[call.mark] for call in item.calls)]) for item in node.items]
    else:
        rows = [f"{SHAPES[inner.mark] if inner.mark is not None else '·'} {inner.id}" for inner in plan_graph.inside(node.id)]
    lines += rows[:MAX_ROWS] + ([f"… {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else [])
    lines = [in_columns(visible(line), MAX_COLUMNS) for line in lines if line]
    columns = min(max(MIN_COLUMNS, *map(columns_of, lines)), MAX_COLUMNS)
    return _Box(node.id, node, lines, columns * CELL + 2 * PAD, len(lines) * LINE + 2 * PAD)


def _order(layers: Sequence[list[_Box]], edges: Mapping[str, Sequence[str]]) -> None:
    """Order each layer by the middle of its neighbors, so that few edges cross."""
    after = graph.successors({box.id: edges.get(box.id, ()) for layer in layers for box in layer})
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbors: Mapping[str, Sequence[str]] = edges if down else after
        place = {box.id: number for layer in layers for number, box in enumerate(layer)}
        for layer in layers if down else reversed(layers):
            keys = {box.id: _mean([place[name] for name in neighbors.get(box.id, ())], place[box.id]) for box in layer}
            layer.sort(key=lambda box: keys[box.id])
            place |= {box.id: number for number, box in enumerate(layer)}


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _place(layers: Sequence[Sequence[_Box]], edges: Mapping[str, Sequence[str]]) -> tuple[float, float]:
    """Give each box its place, near what it waits for, and return the size of the picture."""
    placed, top = dict[str, _Box](), float(PAD)
    for layer in layers:
        right = float("-inf")
        for box in layer:
            least = right + GAP_X + box.width / 2
            box.x = max(_mean([placed[name].x for name in edges.get(box.id, ())], max(least, 0)), least)
            right = box.x + box.width / 2
            box.y = top
            placed[box.id] = box
        wanted = [_mean([placed[name].x for name in edges.get(box.id, ())], box.x) for box in layer]
        shift = _mean([want - box.x for want, box in zip(wanted, layer, strict=True)], 0)  # a crowded layer grows to both sides
        for box in layer:
            box.x += shift
        top += max((box.height for box in layer), default=0) + GAP_Y
    left = min((box.x - box.width / 2 for box in placed.values()), default=0) - PAD
    for box in placed.values():
        box.x -= left
    return max((box.x + box.width / 2 for box in placed.values()), default=0) + PAD, top - GAP_Y + PAD


def _edge(before: _Box, box: _Box) -> str:
    begin, end = before.y + before.height, box.y
    middle = (begin + end) / 2
    curve = f"M{before.x:.0f} {begin:.0f}C{before.x:.0f} {middle:.0f} {box.x:.0f} {middle:.0f} {box.x:.0f} {end:.0f}"
    arrow = ' marker-end="url(#arrow)"' if box.node is not None else ""
    return f'<path class="e" d="{curve}"{arrow}/>'


def _drawn(box: _Box, node: GraphNode) -> Iterator[str]:
    left = box.x - box.width / 2
    kinds = [
        "b",
        *([node.mark.value] if node.mark is not None else []),
        *(["asks"] if node.asks else []),
        *(["write"] if node.effect == "write" else []),
    ]
    facts = [node.id, node.title, *([node.detail] if node.detail else []), *(["asks first"] if node.asks else [])]
    yield f"<g><title>{_text(': '.join(facts))}</title>"
    yield f'<rect class="{" ".join(kinds)}" x="{left:.0f}" y="{box.y:.0f}" width="{box.width}" height="{box.height}" rx="5"/>'
    for number, line in enumerate(box.lines):
        kind = "t" if number == 0 else "s"
        weight = ' font-weight="600"' if number == 0 else ""
        yield f'<text class="{kind}"{weight} x="{left + PAD:.0f}" y="{box.y + PAD + 12 + number * LINE:.0f}">{_text(line)}</text>'
    yield "</g>"


def _text(text: str) -> str:
    return escape(visible(text))
