"""What a text looks like that differs from one run of a runbook to the next: a host, a path, a version, a date."""

import re
from collections.abc import Iterator

from plan_adapter.expressions.references import Code

VARYING_KEYS = frozenset(
    re.findall(
        r"\w+",
        "branch bucket cluster container database date day email env environment host hostname image instance machine namespace node "
        "queue region release server service site tag target tenant topic version zone",
    )
)
"""Last words of the names under which a single word stands that is another one in another run."""

CHINESE = {
    **{"主机": "host", "主机名": "host", "服务器": "server", "节点": "node", "域名": "host", "环境": "environment", "版本": "version"},
    **{"版本号": "version", "分支": "branch", "标签": "tag", "镜像": "image", "日期": "date", "邮箱": "email", "区域": "region"},
    **{
        "集群": "cluster",
        "服务": "service",
        "命名空间": "namespace",
        "数据库": "database",
        "文件": "file",
        "路径": "path",
        "目录": "folder",
    },
}
"""The same words where a name is Chinese, of whose letters no input can be called."""

_DOMAINS = "com|net|org|io|dev|app|cloud|cn|de|eu|uk|jp|internal|intranet|local|lan|corp|example|test|invalid|svc|arpa"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NO_HOSTS = re.compile(r"localhost|127\.0\.0\.1|0\.0\.0\.0|(?:utf|iso|sha|md|rfc|base|gb|x86|http)[-_].*", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/\s?#@]*@)?(?P<host>[^/\s?#:@\"'<>\\[\]]*)[^\s\"'<>]*")
_IN_TEXT = (
    ("email", re.compile(r"(?<![\w.%+-])[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}(?![\w-])", re.ASCII)),
    ("date", re.compile(r"(?<!\d)\d{4}-[01]\d-[0-3]\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\d)", re.ASCII)),
    ("host", re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\w)", re.ASCII)),
    ("version", re.compile(r"(?<![\w.-])(?:v\d+(?:\.\d+)+|\d+\.\d+\.\d+)(?:[-+][0-9A-Za-z.+-]*[0-9A-Za-z])?(?![\w-]|\.\w)", re.ASCII)),
    ("host", re.compile(rf"(?<![\w.@/-])(?:{_LABEL}\.)+(?:{_DOMAINS})(?![\w/-]|\.\w)", re.ASCII)),
)
_PATH = re.compile(r"(?<![\w./~-])~?/[\w.@%+-]*\w(?:/[\w.@%+-]+)+|(?<![\w./~-])~/[\w.@%+-]+")
_SYSTEM_PATH = re.compile(r"/(?:dev|proc|sys|bin|sbin|usr/(?:local/)?s?bin)(?:/|$)")
_WHOLE_PATH = re.compile(r"/[\w.@%+-]+/?|[A-Za-z]:\\[^\s\"*?<>|]+|[\w@+-][\w.@+-]*(?:/[\w.@+-]+)*\.[A-Za-z][A-Za-z0-9]{1,4}")
_MACHINE = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*-\d+")
_IMAGE = re.compile(r"(?:[A-Za-z0-9.-]+(?::\d+)?/)*[A-Za-z0-9._-]+:(?P<tag>[A-Za-z0-9_][\w.-]*)", re.ASCII)
_LONGEST = 200


def looks(pieces: list[str | Code], key: str) -> Iterator[tuple[str, str]]:
    """Yield (what it looks like, the text) for all that varies in a text in pieces, which stands under the name `key`."""
    if len(pieces) == 1 and isinstance(pieces[0], str) and (whole := _whole(pieces[0], key)):
        yield whole
        return
    for number, piece in enumerate(pieces):
        if isinstance(piece, str):
            ends = (number == 0, number == len(pieces) - 1)  # whether the text, and no expression, ends there
            yield from ((kind, piece[start:end]) for kind, start, end in _parts(piece) if _stands_alone(piece, start, end, ends))


def last_word(key: str) -> str:
    """Return the last word of a name: `sourceHost`, `source-host`, `SOURCE_HOST` and `源主机` give `host`."""
    chinese = [word for word in CHINESE if key.endswith(word)]
    if chinese:
        return CHINESE[max(chinese, key=len)]
    split = re.split(r"[\W_]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key))
    return next((word.casefold() for word in reversed(split) if word), "")


def _whole(text: str, key: str) -> tuple[str, str] | None:
    word = last_word(key)
    if "://" in text or not text.strip() or len(text) > _LONGEST:
        return None
    if (image := _IMAGE.fullmatch(text)) and (word in ("image", "container") or ("/" in text and not image["tag"].isdecimal())):
        return "image_tag", image["tag"]
    if _MACHINE.fullmatch(text) and not _NO_HOSTS.fullmatch(text):
        return "host", text
    if any(pattern.fullmatch(text) for _, pattern in _IN_TEXT):
        return None  # found by its pattern
    if _WHOLE_PATH.fullmatch(text) and not _SYSTEM_PATH.match(text):
        return "path", text
    if word in VARYING_KEYS and not re.search(r"[\s,;=]", text) and not _NO_HOSTS.fullmatch(text) and not text.startswith("-"):
        return word, text
    return None


def _parts(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, end) of what is found; where two overlap, the one whose pattern comes first."""
    taken: list[tuple[int, int]] = []
    urls = [match.span() for match in _URL.finditer(text)]
    for match in _URL.finditer(text):
        if match["host"] and not _NO_HOSTS.fullmatch(match["host"]):
            taken.append(match.span("host"))
            yield "host", *match.span("host")
    for kind, pattern in (*_IN_TEXT, ("path", _PATH)):
        for match in pattern.finditer(text):
            start, end = match.span()
            within = urls if kind in ("path", "host", "email") else []
            if any(start < last and first < end for first, last in (*taken, *within)):
                continue
            if (kind == "path" and _SYSTEM_PATH.match(match[0])) or (kind == "host" and _NO_HOSTS.fullmatch(match[0])):
                continue
            taken.append((start, end))
            yield kind, start, end


def _stands_alone(piece: str, start: int, end: int, ends: tuple[bool, bool]) -> bool:
    """Return whether no expression adjoins what was found: that would be half of a name."""
    return (start > 0 or ends[0]) and (end < len(piece) or ends[1])
