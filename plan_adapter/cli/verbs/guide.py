"""`plan guide`."""

import sys
from importlib.resources import files

from plan_adapter.cli import output
from plan_adapter.cli.examples import EXAMPLES
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.model.problems import did_you_mean


def guide(topic: str | None = None, section: str | None = None, /, *, json: bool = False) -> int:
    """Read the handbook.

    Args:
        topic: The page to read; without one, all pages are listed.
        section: Only the part under this heading: `plan guide reference-python answer_gate`.
        json: Print one JSON object per page; for a named page with its Markdown text.
    """
    pages = _pages()
    if topic is None:
        rows = [(name, text.splitlines()[0].lstrip("# ")) for name, text in pages.items()]
        if json:
            for name, title in rows:
                output.json_line("guide_page", {"topic": name, "title": title})
        else:
            output.table(("TOPIC", "TITLE"), rows)
        return ExitCode.DONE
    if topic not in pages:
        verb = EXAMPLES.get(topic)
        hint = did_you_mean(topic, list(pages)) if verb is None else f"`plan guide {verb.page}` is about `plan {topic}`"
        raise UsageError(f"the guide has no page `{topic}`", hint=hint)
    text = pages[topic] if section is None else _section(pages[topic], section, topic)
    if json:
        output.json_line("guide_page", {"topic": topic, "text": text})
    elif output.is_terminal(sys.stdout):
        _render(text)
    else:
        output.document(text)
    return ExitCode.DONE


def _section(page: str, section: str, topic: str) -> str:
    """Return the part of a page under a heading, with the parts inside it. Raises UsageError if the page has no such heading."""
    lines = page.splitlines(keepends=True)
    headings = dict[str, tuple[int, int]]()  # by text: line, level
    is_code, ends = False, list[tuple[int, int]]()
    for number, line in enumerate(lines):
        is_code ^= line.startswith("```")
        level = len(line) - len(line.lstrip("#"))
        if level and not is_code:
            headings.setdefault(line.strip("#` \n").casefold(), (number, level))
            ends.append((number, level))
    if (found := headings.get(section.strip("` ").casefold())) is None:
        raise UsageError(f"the page `{topic}` has no heading `{section}`", hint=did_you_mean(section.casefold(), list(headings)))
    start, level = found
    end = next((number for number, other in ends if number > start and other <= level), len(lines))
    return "".join(lines[start:end]).rstrip() + "\n"


def _pages() -> dict[str, str]:
    """Return the Markdown text of every page by its topic."""
    found = sorted((page for page in files("plan_adapter").joinpath("guide").iterdir()), key=lambda page: page.name)
    return {page.name.removesuffix(".md"): page.read_text(encoding="utf-8") for page in found if page.name.endswith(".md")}


def _render(text: str) -> None:
    from rich.markdown import Markdown  # only for a terminal

    with output.writing_to_stdout():
        output.console(sys.stdout).print(Markdown(text))
