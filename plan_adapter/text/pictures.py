"""`mermaid`: a plan as a Mermaid flowchart. Text of the plan can only appear as a label."""

import unicodedata
from collections.abc import Collection, Mapping, Sequence

from plan_adapter.model import graph
from plan_adapter.model.options import EFFECTS, Effect
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import counted, one_line

MAX_NODES = 60
"""How many steps are drawn one by one. A larger picture would not help."""

MAX_EDGES = 300
"""With more edges than this, steps are grouped by stage, too. Mermaid itself refuses 500."""

_LABEL_CHARACTERS = 40
# Mermaid parses labels again after it has decoded the numbers: for `\\n`, `$$ … $$` and `fa:fa-car`. An invisible character after these
# breaks them up.
_CHARACTERS_TO_SEPARATE = frozenset("\\$:")
_WORD_JOINER = "#8288;"
_ENTITY_CHARACTERS = frozenset("ﬂ¶")  # Mermaid uses these to encode entities
_STYLES: dict[Effect, str] = {
    "read": "fill:#e3eefb,stroke:#3b6ea5,color:#10263d",
    "idempotent_write": "fill:#fdf0d0,stroke:#b07a10,color:#3d2a05",
    "write": "fill:#fbdcd8,stroke:#b3261e,color:#410e0b,stroke-width:3px",
}


def mermaid(
    steps: Sequence[Step],
    reduced: Mapping[str, Collection[str]],
    *,
    effects: Mapping[str, Effect],
    gated: Collection[str],
    limit: int = MAX_NODES,
) -> str:
    """Return a flowchart of `steps`, in order: one node each, with an arrow from each dependency in the transitive reduction.

    A node's class is its step's effect. A step with its own gate is a hexagon. With more than `limit` steps, each node is a stage.
    """
    if len(steps) <= limit and sum(len(reduced[step.id]) for step in steps) <= MAX_EDGES:
        nodes = {step.id: f"s{number}" for number, step in enumerate(steps, start=1)}
        lines = [_step_node(nodes[step.id], step, effects[step.id], gate=step.id in gated) for step in steps]
        lines += [f"{nodes[before]} --> {nodes[step.id]}" for step in steps for before in reduced[step.id] if before in nodes]
    else:
        lines = _wave_lines(steps, reduced, effects, gated, limit)
    classes = [f"classDef {effect} {style}" for effect, style in _STYLES.items()]
    return "\n".join(["flowchart TD", *(f"  {line}" for line in [*lines, *classes])])


def _step_node(node: str, step: Step, effect: Effect, *, gate: bool) -> str:
    fallback = step.plan or "group" if step.ask is None else step.ask.question
    texts = [_label(step.id), _label(step.description or step.tool_name or step.goal or fallback)]
    return _node(node, [text for text in texts if text], effect, gate=gate)


def _node(node: str, texts: list[str], effect: Effect, *, gate: bool) -> str:
    opening, closing = ("{{", "}}") if gate else ("[", "]")
    return f'{node}{opening}"{"<br/>".join(texts)}"{closing}:::{effect}'


def _wave_lines(
    steps: Sequence[Step],
    reduced: Mapping[str, Collection[str]],
    effects: Mapping[str, Effect],
    gated: Collection[str],
    limit: int,
) -> list[str]:
    waves = graph.waves(reduced, [step.id for step in steps])
    # In a long chain, draw the start and the end, and combine the rest into one node.
    head = len(waves) if len(waves) <= limit else limit - limit // 3 - 1
    tail = 0 if head == len(waves) else limit // 3
    groups = [(f"stage {number}", wave) for number, wave in enumerate(waves, start=1)]
    if tail:
        between = [step for wave in waves[head:-tail] for step in wave]
        groups = [*groups[:head], (f"stages {head + 1} to {len(waves) - tail}", between), *groups[-tail:]]
    lines = [_wave_node(f"s{number}", *group, effects, gated) for number, group in enumerate(groups, start=1)]
    return lines + [f"s{number} --> s{number + 1}" for number in range(1, len(groups))]


def _wave_node(node: str, name: str, wave: Sequence[str], effects: Mapping[str, Effect], gated: Collection[str]) -> str:
    shown = 1 if len(wave) > 4 else len(wave)
    texts = [_label(text) for text in (f"{name} · {counted(len(wave), 'step')}", *wave[:shown])]
    if shown < len(wave):
        texts.append(_label(f"… {len(wave) - shown} more"))
    present = {effects[step] for step in wave}
    strongest: Effect = next(effect for effect in EFFECTS[::-1] if effect in present)
    return _node(node, texts, strongest, gate=any(step in gated for step in wave))


def _label(text: str) -> str:
    """Return the start of `text`, with everything except letters and digits encoded, so that Mermaid interprets nothing."""
    shown = one_line(text[: _LABEL_CHARACTERS * 4])
    cut = shown if len(shown) <= _LABEL_CHARACTERS else shown[: _LABEL_CHARACTERS - 1].rstrip() + "…"
    return "".join(map(_encode_character, cut))


def _encode_character(character: str) -> str:
    if character in _ENTITY_CHARACTERS:
        return "".join(map(_encode_character, f"\\u{ord(character):04x}"))
    if character == " " or unicodedata.category(character)[0] in "LN":
        return character
    joined = _WORD_JOINER if character in _CHARACTERS_TO_SEPARATE else ""
    return f"#{ord(character)};{joined}"
