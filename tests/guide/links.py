"""`python -m tests.guide.links`: check that every link between the pages of this repository has a target, with its anchor.

`make site` checks the same and more, and takes ten times as long.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.guide import GUIDE, ROOT

FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
TOPIC = re.compile(r"plan guide ([a-z]+(?:-[a-z]+)*)")


def pages() -> list[Path]:
    """Return every page."""
    return [*sorted(ROOT.glob("*.md")), *sorted(GUIDE.rglob("*.md"))]


def dead_links(page: Path) -> Iterator[str]:
    """Yield the links of a page without a target, and the topics that `plan guide` does not have."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for path, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", prose)):  # a link in code is a sample
        target = page.parent / path if path else page
        if not target.is_file():
            yield f"{path} is no file"
        elif anchor and anchor not in anchors(target):
            yield f"{path}#{anchor} is no heading"
    for topic in TOPIC.findall(prose):
        if not (GUIDE / f"{topic}.md").exists():
            yield f"`plan guide {topic}` is no page"


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


if __name__ == "__main__":
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in pages() for problem in dead_links(page)]
    sys.exit("\n".join(found) if found else 0)
