"""`plan guide`."""

import sys
from importlib.resources import files

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.model.problems import did_you_mean


def guide(topic: str | None = None, /, *, json: bool = False) -> int:
    """Read the handbook.

    Args:
        topic: The page to read; without one, all pages are listed.
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
        raise UsageError(f"the guide has no page `{topic}`", hint=did_you_mean(topic, list(pages)))
    if json:
        output.json_line("guide_page", {"topic": topic, "text": pages[topic]})
    elif output.is_terminal(sys.stdout):
        _render(pages[topic])
    else:
        output.document(pages[topic])
    return ExitCode.DONE


def _pages() -> dict[str, str]:
    """Return the Markdown text of every page by its topic."""
    found = sorted((page for page in files("plan_adapter").joinpath("guide").iterdir()), key=lambda page: page.name)
    return {page.name.removesuffix(".md"): page.read_text(encoding="utf-8") for page in found if page.name.endswith(".md")}


def _render(text: str) -> None:
    from rich.markdown import Markdown  # only for a terminal

    with output.writing_to_stdout():
        output.console(sys.stdout).print(Markdown(text))
