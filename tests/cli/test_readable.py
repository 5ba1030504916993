"""Tests of readable text: durations, escaping for terminals and Markdown, and redaction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from plan_adapter.model.readable import (
    as_text,
    code,
    duration,
    fenced,
    is_secret_name,
    one_line,
    plain,
    prose,
    redacted,
    secret_parameters,
    visible,
    without_passwords,
    words,
)

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
MARKS = "`|\\*_[]()<>!#-+=~&;:/.@w1a \n\t"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (350, "350 ms"),
        (2500, "2.5 s"),
        (59_940, "59.9 s"),
        (60_000, "1 min"),
        (125_000, "2 min 5 s"),
        (3_780_000, "1 h 3 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("部署到生产环境", "部署到生产环境"),
        ("red \x1b[31m", r"red \x1b[31m"),
        ("a\u202eb", r"a\u202eb"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("over\rwritten", r"over\x0dwritten"),
        ("👩‍💻", "👩‍💻"),
        ("a\u3164b", r"a\u3164b"),
    ],
)
def test_characters_that_could_hide_text_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_one_line_returns_at_most_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


@given(st.text())
def test_text_cannot_close_its_inline_code(text: str) -> None:
    shown = code(text)
    ticks = len(shown) - len(shown.lstrip("`"))
    assert "`" * ticks not in shown[ticks:-ticks]


@given(st.text())
def test_text_cannot_close_its_code_fence(text: str) -> None:
    first, *inside, last = fenced(text).split("\n")
    assert first == last
    assert not any(line.strip() == last for line in inside)


def test_prose_is_not_interpreted_as_markdown_or_html() -> None:
    assert prose("# no heading <script> ![x](y)\n\n- item") == r"\# no heading \<script> !\[x\]\(y) - item"
    assert prose("``` open") == r"\`\`\` open"
    assert prose("`b` failed & *that* is my_text") == r"`b` failed & *that* is my_text"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://a.example/q.", "see `https://a.example/q.`"),
        ("www.a.example and a.b@c.example, not @ana or a@b", "`www.a.example` and `a.b@c.example,` not @ana or a@b"),
        ("`curl http://a` then ``http://b ` c``", "`curl http://a` then ``http://b ` c``"),
        ("one ` http://a", r"one \` `http://a`"),
        ("`a`http://b`c`", "`a` `http://b` `c`"),
        ("```http://a``` b", "```http://a``` b"),
        ("``` `a` http://b", r"\`\`\` `a` `http://b`"),
        ("**http://a** [b](http://c)", r"`**http://a**` `[b](http://c)`"),
        ("given (ana@example.org approved), then", "given (`ana@example.org` approved), then"),
    ],
)
def test_an_address_in_prose_becomes_code(text: str, shown: str) -> None:
    assert prose(text) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [("web-1", "web-1"), ("5", '"5"'), (5, "5"), ("true", '"true"'), (True, "true"), ("", '""'), ("两个 词", "两个 词"), ([1], "[1]")],
)
def test_text_is_shown_without_quotes_if_it_is_unambiguous(value: object, text: str) -> None:
    assert as_text(value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Write the new `nginx` configuration", "Write the new `nginx` configuration"),
        ("# no heading <b> ![x](y)", r"\# no heading \<b> !\[x\]\(y)"),
        ("1. one\n- two", r"1\. one - two"),
        ("see https://evil.example or ana@evil.example", "see `https://evil.example` or `ana@evil.example`"),
        ("snake_case and _this_", r"snake_case and \_this\_"),
        ("`a``b`", "`a` `b`"),
        ("&lt; & more", r"\&lt; & more"),
        ("部署到 *生产* 环境", r"部署到 \*生产\* 环境"),
    ],
)
def test_words_keeps_inline_code_and_escapes_other_markdown(text: str, shown: str) -> None:
    assert words(text) == shown


@given(st.text() | st.text(alphabet=MARKS))
def test_words_and_code_cannot_break_out_of_their_line(text: str) -> None:
    tokens = MARKDOWN.parse(f"> {words(text)}\n\n- {code(text)}\n")
    kinds = [token.type for outer in tokens for token in [outer, *(outer.children or [])]]
    assert not {"link_open", "image", "html_inline", "html_block", "em_open", "strong_open", "s_open", "heading_open", "hr"} & {*kinds}
    assert not {"table_open", "ordered_list_open", "code_block", "fence"} & {*kinds}
    assert kinds.count("bullet_list_open") == kinds.count("list_item_open") == kinds.count("blockquote_open") == 1


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "DB_PASSWORD",
        "dbPassword",
        "api-key",
        "apiKey",
        "API_KEY",
        "Authorization",
        "access_token",
        "accesstoken",
        "token",
        "private_key",
        "client-secret",
        "X-Auth-Token",
        "Set-Cookie",
        "credentials",
        "数据库密码",
        "ｐａｓｓｗｏｒｄ",
    ],
)
def test_secret_names_are_recognized_in_every_spelling(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["host", "author", "key", "path", "tokenizer", "compass", "authority"])
def test_other_names_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


def test_secrets_are_redacted_at_any_depth_and_nothing_else_is() -> None:
    value = {
        "max_tokens": 100,
        "use_token": True,
        "password": "${{ secrets.db }}",
        "header": [{"Authorization": "Bearer ${{ inputs.t }}"}, {"name": "DB_PASSWORD", "value": "x"}, {"name": "LANG", "value": "C"}],
        "pin_token": 4711,
        "secrets": {"a": "x"},
        "url": "postgres://me:word@db/x",
        "note": "uses abcd twice: abcd",
        "empty_token": "",
    }
    assert redacted(value, hidden=["abcd", "x"]) == {
        "max_tokens": 100,
        "use_token": True,
        "password": "${{ secrets.db }}",
        "header": [{"Authorization": "***${{ inputs.t }}"}, {"name": "DB_PASSWORD", "value": "***"}, {"name": "LANG", "value": "C"}],
        "pin_token": "***",
        "secrets": "***",
        "url": "postgres://me:***@db/x",
        "note": "uses *** twice: ***",
        "empty_token": "",
    }
    assert redacted({"password": "${{ not an expression any more }}"}, expressions=False) == {"password": "***"}


def test_secrets_of_a_schema_are_found_through_references_and_unions() -> None:
    secret = {"type": "string", "format": "password"}
    schema = {
        "$defs": {"Login": {"properties": {"user": {"type": "string"}, "word": {"writeOnly": True}}}, "Loop": {"$ref": "#/$defs/Loop"}},
        "properties": {
            "login": {"$ref": "#/$defs/Login"},
            "words": {"type": "array", "items": {"anyOf": [secret, {"type": "null"}]}},
            "pin": {"anyOf": [secret, {"type": "null"}]},
            "by_name": {"additionalProperties": secret},
            "loop": {"$ref": "#/$defs/Loop"},
        },
    }
    value = {"login": {"user": "ana", "word": "w"}, "words": ["a", None], "pin": "1", "by_name": {"k": "v"}, "loop": "l"}
    hidden = {"login": {"user": "ana", "word": "***"}, "words": ["***", None], "pin": "***", "by_name": {"k": "***"}, "loop": "l"}
    assert redacted(value, schema=schema) == hidden
    assert secret_parameters(schema) == {"pin"}


def test_the_password_of_a_url_is_redacted_up_to_its_end() -> None:
    assert without_passwords("see https://a:b:c@h/x, ftp://u:p@h") == "see https://a:***@h/x, ftp://u:***@h"
    assert without_passwords("https://h/a:b c@d") == "https://h/a:b c@d"


@pytest.mark.parametrize("text", ["://a:" * 40_000 + "@", "`" * 200_000, "` " * 100_000, "www" * 60_000, "${{" * 60_000])
def test_no_text_takes_quadratic_time(text: str) -> None:
    redacted({"password": text, "other": text})
    code(text)
    fenced(text)
    prose(text)
    words(text)  # quadratic time would exceed pytest's timeout


@pytest.mark.parametrize(
    "text", ["--yes", "<b>web</b>", "a [link](/x)", "1 < 2 & 3 > 2 &amp;", r"C:\temp\*", "`a` and `` `b` ``", "请重启 *all*"]
)
def test_unescaping_prose_returns_the_text(text: str) -> None:
    assert plain(prose(text)) == text


def test_inline_code_keeps_its_backslashes() -> None:
    assert plain("\\--x " + code(r"a\<b") + " \\<c") == "--x " + code(r"a\<b") + " <c"


def test_plain_text_drops_the_marks_of_markdown_and_keeps_what_they_mark() -> None:
    document = (
        "## Approve **x**?\n\n> a \\<b\n- **1. `a` \\[b\\]** (**write**): `x **y**`\n"
        + fenced("# 1\n- 2", "sh")
        + "\nrm **/*.py and **/*.md"
    )
    assert plain(document) == "Approve x?\n\n│ a <b\n- 1. `a` [b] (write): `x **y**`\n│ # 1\n│ - 2\nrm **/*.py and **/*.md"
