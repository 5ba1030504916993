"""The parts of our HTML files, which need no network, no script and no other file, and print."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from html import escape

from plan_adapter.model.language import spoken
from plan_adapter.model.readable import visible

STYLE = """\
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif,'Noto Sans CJK SC';max-width:1080px;margin:0 auto;padding:16px;color:#222;background:#fff;
overflow-wrap:anywhere}
h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 8px;border-bottom:1px solid #8884}
header{border-left:8px solid #888;padding:6px 14px;background:#8881}
.m-done{border-color:#1e7e34}.m-failed{border-color:#b3261e}.m-undone{border-color:#7b3fa0}.m-unknown,.m-waiting{border-color:#b07a10}
.m-running{border-color:#0b7394}
.left{color:#8a5a00;font-weight:600}.dim{color:#666}code,pre{font:13px ui-monospace,Menlo,Consolas,'Noto Sans Mono CJK SC',monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:8px;margin:4px 0;border-radius:4px}
table{border-collapse:collapse}td,th{white-space:pre-line;text-align:left;vertical-align:top;padding:2px 12px 2px 0;overflow-wrap:anywhere}
details{border-bottom:1px solid #8883;padding:3px 0}summary{cursor:pointer}.wide{overflow-x:auto}
@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}.dim{color:#aaa}.left{color:#e8b84a}}
@media print{body{max-width:none}details>summary{list-style:none}.wide{overflow:visible}svg{max-width:100%;height:auto}}
"""


def page(title: str, body: Iterable[str], *, style: str = "") -> str:
    """Return an HTML document. The lines of `body` are HTML; `style` is added to `STYLE`."""
    parts = [
        f'<!doctype html>\n<html lang="{spoken()}"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{text(title)}</title><style>{STYLE}{style}</style></head><body>",
        *body,
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a section. `title` and `lines` are HTML."""
    yield f"<section><h2>{title}</h2>"
    yield from lines
    yield "</section>"


def rows(cells: Iterable[Sequence[str]], *, headings: Sequence[str] = ()) -> str:
    """Return a table of texts, under their headings if there are any. Without headings, the first text of a row is its name."""
    head = f"<tr>{''.join(f'<th>{text(name)}</th>' for name in headings)}</tr>" if headings else ""
    first = "td" if headings else "th"
    body = [f"<tr><{first}>{text(row[0])}</{first}>{''.join(f'<td>{text(cell)}</td>' for cell in row[1:])}</tr>" for row in cells]
    return f"<table>{head}{''.join(body)}</table>"


def bullets(texts: Iterable[str]) -> list[str]:
    """Return a list of texts, one in a line."""
    return ["<ul>", *(f"<li>{text(line)}</li>" for line in texts), "</ul>"]


def prose(value: str) -> str:
    """Return a text of ours, with its commands and names as code."""
    return _CODE.sub(r"<code>\1</code>", text(value))


_CODE = re.compile("`([^`]+)`")


@lru_cache(maxsize=1000)  # a page of many runs repeats most of its texts
def text(value: str) -> str:
    """Return `value` as it is shown: escaped, with every character that could hide or move text written out."""
    return escape("\n".join(visible(line) for line in value.split("\n")))
