"""Payloads that something might interpret. Whatever interprets one creates a file or computes PRODUCT."""

import base64
import os
import pickle
from pathlib import Path

MARKER = "text-was-interpreted"
"""The file that an interpreted payload creates, in the working folder or the one above."""

PRODUCT = "62710561"
"""The number that an interpreted payload computes."""


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {MARKER}",)


PAYLOADS: dict[str, str] = {
    "jinja": "{{ 7919*7919 }}",
    "jinja block": "{% for n in (7919*7919,) %}{{ n }}{% endfor %}",
    "jinja code": "{{ cycler.__init__.__globals__.os.popen('touch " + MARKER + "').read() }}",
    "expression": "${{ 7919*7919 }}",
    "expression in text": "it is ${{ 7919*7919 }} or ${{ steps.give.status }}",
    "secret": "${{ secrets.token }}",
    "unclosed": "${{ 7919*7919",
    "prefect kind": '{"__prefect_kind": "jinja", "template": "{{ 7919*7919 }}"}',
    "command substitution": f"$(touch {MARKER})",
    "backticks": f"`touch {MARKER}`",
    "separators": f"; touch {MARKER} & touch {MARKER} | touch {MARKER} #",
    "quotes": f"' ; touch {MARKER} ; ' \" ; touch {MARKER} ; \"",
    "variables": "$HOME ${PATH} $((7919*7919)) ~",
    "option": "--version",
    "parent folder": f"../{MARKER}",
    "printf": "%s %n %d %(name)s %%",
    "format": "{0.__class__.__mro__} {run.id!r} {} {{}}",
    "f-string": "{7919*7919}",
    "pickle": base64.b64encode(pickle.dumps(_Evil())).decode(),
    "python of YAML": f"!!python/object/apply:os.system ['touch {MARKER}']",
    "YAML": "&a [*a, {<<: *a}]\n---\n- ? x: y\n",
    "ANSI": "\x1b[2J\x1b[31mred\x1b[0m",
    "OSC": "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07\x9b31m",
    "bidi": "safe\u202elmth.exe\u2066 \u200b\u3164",
    "NUL": "before\0after",
    "carriage return": "all is well\rall is lost\x08\x08\x7f",
    "new header": "a\r\nX-Evil: 1",
    "Markdown": "# Head\n| a | b |\n|---|---|\n```\n[x](javascript:alert(1)) ![p](http://evil.example/p.png)\n",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>&lt;",
    "entities": "safe &#x202e;lmth.exe &lt;b&gt; &NewLine;&Tab;",
    "markup": "[red]x[/red] [link=http://evil.example]y[/link] :smile:",
    "Mermaid": 'x"] --> y; click x "javascript:alert(1)"\n%% end',
    "SQL": "x'); DROP TABLE notes; --",
    "JSON": '"} , {"status": "completed", "n": 1e999',
    "empty": "",
    "blanks": "  \t\n ",
    "Chinese": "重启 web-1，“好的” 𠮷 👩‍💻",
}

HIDING = frozenset(chr(code) for code in [*range(9), 11, 12, *range(14, 32), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x200B, 0x3164])
"""Control and invisible characters, which must not reach a terminal."""


def nothing_was_interpreted(*folders: Path) -> bool:
    """Return whether no payload has created its file in `folders`, below them, or in the folder above."""
    return not any(list(folder.rglob(MARKER)) or (folder.parent / MARKER).exists() for folder in folders)
