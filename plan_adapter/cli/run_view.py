"""How `plan show` lays out the facts of a run: the outcome, the cause and what to type first, then one line for each step and item."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from plan_adapter.cli import output
from plan_adapter.cli.approval_state import age
from plan_adapter.cli.output import Line
from plan_adapter.model.language import tr
from plan_adapter.model.readable import counted
from plan_adapter.model.record import MIN_END_CHARACTERS
from plan_adapter.text.commands import ANY_RESOLUTION, resolutions_in_words
from plan_adapter.text.run_facts import ASCII_SHAPES, NOTHING_LEFT, SHAPES, ItemFacts, Mark, RunAccount, StepFacts, started_text

STYLES: Mapping[Mark, str] = {
    Mark.DONE: "green",
    Mark.FAILED: "red",
    Mark.UNDONE: "magenta",
    Mark.UNKNOWN: "bold yellow",
    Mark.RUNNING: "cyan",
    Mark.WAITING: "yellow",
    Mark.SKIPPED: "yellow",
    Mark.PENDING: "dim",
}

MAX_NAME_CELLS = 24
"""How wide the column of steps or items may be. A longer name has a line of its own."""

MAX_COMMAND_CELLS = 40
"""How wide the column of commands to type may be."""

SHOWN_ITEMS = 20
"""How many items of a step are shown. The failed and the unfinished ones come first."""

_COMMAND = re.compile(r"`(plan [^`]+)`")

SHOWN_CALLS = 8
"""How many calls a line about what is left behind names."""

SHOWN_APPROVALS = 5
"""How many approvals and answers of a run are shown, the newest ones. `--all` shows all of them."""


def shapes(*, is_unicode: bool) -> Mapping[Mark, str]:
    """Return the shape of each mark, in characters that the stream has."""
    return SHAPES if is_unicode else ASCII_SHAPES


def run_lines(run: RunAccount) -> list[Line]:
    """Return the view of a run for stdout, line by line."""
    view = _RunView(run, shapes(is_unicode=output.is_unicode(sys.stdout)))
    return [*view.head(), *view.about(), Line(""), *view.steps(), *view.end()]


class _RunView:
    def __init__(self, run: RunAccount, marks: Mapping[Mark, str]) -> None:
        self._run, self._facts, self._marks = run, run.facts, marks

    def head(self) -> Iterator[Line]:
        """Yield what a person needs at once."""
        facts = self._facts
        ended = tr(", {age} ago", age=age(self._run.now, facts.ended_at)) if facts.ended_at is not None else ""
        yield Line(f"{self._marks[facts.mark]} {self._run.state}: {facts.full_name}{ended}", style=f"bold {STYLES[facts.mark]}")
        if facts.cause is not None:
            yield Line(facts.cause, indent=2)
        for text in self._run.asked:
            yield Line(text, indent=2)
        for name, value in facts.outputs.items():
            yield Line(f"{name}: {value}", indent=2)
        for left in facts.left_behind:
            yield Line(left.text(SHOWN_CALLS), indent=2, style=STYLES[Mark.UNKNOWN])
        if facts.is_undone:
            yield Line(tr(NOTHING_LEFT), indent=2)
        if self._run.next_text is not None:
            yield from self._next(self._run.next_text)

    def _next(self, text: str) -> Iterator[Line]:
        """Yield what to type: in a file the whole hint, on a terminal each command on a line of its own, short enough to read and copy."""
        if not sys.stdout.isatty():
            yield Line(tr("next: {what}", what=text), indent=2, style="bold")
            return
        if self._facts.cause is not None and text.startswith(self._facts.cause):  # which stands above
            before, _, after = text.partition("`plan ")
            text = before.rpartition(": ")[2] + "`plan " + after
        first, *rest = _COMMAND.split(text.replace(self._facts.id, self._facts.id[-MIN_END_CHARACTERS:]))
        yield Line(tr("next: {what}", what=first.rstrip(" ,;:")).rstrip(), indent=2, style="bold")
        typed = list[tuple[str, str]]()
        for command, after in zip(rest[::2], rest[1::2], strict=True):
            inside = re.match(r" \(([^()]*)\)", after)
            about = inside[1] if inside is not None else after.partition(";")[0] if after.startswith(" ") else ""
            if command.startswith("plan resume ") and not about.strip():
                about = tr("then continues the run here")
            typed += _answers(command, about.strip())
        width = _column([command for command, _ in typed], MAX_COMMAND_CELLS)
        for command, effect in typed:
            yield Line(f"# {effect}", indent=4, label=command, width=width, style="dim") if effect else Line(command, indent=4)

    def about(self) -> Iterator[Line]:
        """Yield when, by whom, with what and approved by whom."""
        facts = self._facts
        yield Line("")
        yield Line(f"{tr('run {id}', id=facts.id)}, {started_text(facts)}", indent=2, style="dim")
        if facts.inputs:
            given = "; ".join(f"{name}={value}" for name, value in facts.inputs.items())
            yield Line(tr("inputs: {inputs}", inputs=given), indent=2, style="dim")
        earlier = len(self._run.approvals) - SHOWN_APPROVALS
        if earlier > 0:
            yield Line(tr("{count} earlier: `{command}`", count=earlier, command=f"plan show {facts.id} --all"), indent=2, style="dim")
        for text in self._run.approvals[-SHOWN_APPROVALS:]:
            yield Line(text, indent=2, style="dim")

    def steps(self) -> Iterator[Line]:
        """Yield a line for each step and item."""
        width = _column([step.id for step in self._facts.steps])
        for step in self._facts.steps:
            yield from self._step(step, width)

    def _step(self, step: StepFacts, width: int) -> Iterator[Line]:
        indent = 2 * step.depth
        what = step.detail or (tr("running") if step.mark is Mark.RUNNING else step.what)
        style = "" if step.mark is Mark.DONE else STYLES[step.mark]
        yield Line(what, indent=indent, label=step.id, width=width, mark=(self._marks[step.mark], STYLES[step.mark]), style=style)
        order = sorted(step.items, key=lambda item: item.mark is Mark.DONE) if len(step.items) > SHOWN_ITEMS else step.items
        labels = _column([item.label for item in order[:SHOWN_ITEMS]])
        for item in order[:SHOWN_ITEMS]:
            yield self._item(item, indent + 4, labels)
        if len(order) > SHOWN_ITEMS:
            rest = order[SHOWN_ITEMS:]
            done = sum(item.mark is Mark.DONE for item in rest)
            yield Line(
                tr("{items}, {count} of them done", items=counted(len(rest), "more item"), count=done), indent=indent + 4, style="dim"
            )

    def _item(self, item: ItemFacts, indent: int, width: int) -> Line:
        mark, style = (self._marks[item.mark], STYLES[item.mark]), "" if item.mark is Mark.DONE else STYLES[item.mark]
        return Line(item.text(self._marks), indent=indent, label=item.label, width=width, mark=mark, style=style)

    def end(self) -> Iterator[Line]:
        """Yield what else there is to know."""
        for text in self._run.notes:
            yield Line(text, indent=2)
        yield Line("")
        more = tr("`--all` shows parameters, results and every attempt")
        yield Line(f"{self._facts.progress}; {more}", style="dim")


def _answers(command: str, about: str) -> list[tuple[str, str]]:
    """Return a command with what it does. One that takes an answer about an unknown outcome becomes one command for each answer."""
    if ANY_RESOLUTION not in command:
        return [(command, about)]
    answers = resolutions_in_words(is_rollback="--rollback" in command)
    return [(command.replace(ANY_RESOLUTION, answer), effect) for answer, effect in answers.items()]


def _column(names: Sequence[str], most: int = MAX_NAME_CELLS) -> int:
    from rich.cells import cell_len  # only for tables

    return min(max((cell_len(name) for name in names), default=0), most)
