"""`http_get` and `http_send`: one HTTP request as a step."""

import base64
import codecs
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue
from typing_extensions import TypedDict

from plan_adapter.model.errors import ToolError, UnknownOutcomeError
from plan_adapter.model.readable import one_line, without_passwords
from plan_adapter.model.values import refuse_constant
from plan_adapter.tools.probing import Simulation
from plan_adapter.tools.tool import ToolContext, tool

if TYPE_CHECKING:
    import ssl

    import httpx

BODY_LIMIT = 4 * 1024 * 1024
"""How many bytes of a response's body are read. Longer text is cut there."""

MAX_REDIRECTS = 10
CONNECT_SECONDS = 30.0
READ_SECONDS = 60.0
"""How long a read waits for the next bytes if its step has no timeout."""

Header: TypeAlias = str | int | float | bool
Status: TypeAlias = Annotated[int, Field(ge=100, le=599)]
ExpectedStatus: TypeAlias = Status | list[Status] | None

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")


class HttpResponse(TypedDict):
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: JsonValue


@tool(effect="read")
async def http_get(
    url: str, context: ToolContext, headers: dict[str, Header] | None = None, expect_status: ExpectedStatus = None
) -> HttpResponse:
    """Fetch a URL. The result is {status, headers, body}; a JSON response is parsed.

    Any status other than 2xx fails the step, unless `expect_status` allows it. Redirects are followed, but never from https to http. After
    a redirect to another scheme, host or port, the headers, the user in the URL and all cookies are no longer sent.

    Args:
        url: An http or https URL.
        headers: Request headers, sent only to the origin of `url`.
        expect_status: The status, or a list of statuses, that counts as success instead of 2xx.
    """
    timeout = READ_SECONDS if context.deadline is None else None  # else the step's own timeout ends it
    return await _send(
        "GET", url, headers=_header_texts(headers), content=None, expect=expect_status, read_timeout=timeout, context=context
    )


def simulate_send(
    url: str,
    method: Literal["POST", "PUT", "PATCH", "DELETE"] = "POST",
    body: JsonValue = None,
    headers: dict[str, Header] | None = None,
) -> Simulation:
    """Show the request that `http_send` would send."""
    content, content_type = _encode_body(body)
    names = {*_header_texts(headers), "idempotency-key"} | ({"content-type"} if content_type else set[str]())
    lines = [f"{method} {without_passwords(url)}", f"headers: {', '.join(sorted(names))}", *([content.decode()] if content else [])]
    return Simulation("\n".join(lines))


@tool(effect="write", simulate=simulate_send)
async def http_send(
    url: str,
    context: ToolContext,
    method: Literal["POST", "PUT", "PATCH", "DELETE"] = "POST",
    body: JsonValue = None,
    headers: dict[str, Header] | None = None,
    expect_status: ExpectedStatus = None,
) -> HttpResponse:
    """Send a request that changes something. The result is {status, headers, body}.

    Any status other than 2xx fails the step, unless `expect_status` allows it. Redirects are not followed. Every attempt of a step sends
    the same `Idempotency-Key` header. The tool waits for the response until the step's timeout, because stopping earlier would leave the
    outcome unknown.

    Args:
        url: An http or https URL.
        method: The HTTP method.
        body: Text is sent as it is, any other value as JSON. Null sends no body.
        headers: Request headers. A content-type here overrides the one that follows from the body.
        expect_status: The status, or a list of statuses, that counts as success instead of 2xx.
    """
    content, content_type = _encode_body(body)
    request_headers = {"content-type": content_type} if content_type else {}
    request_headers |= {"idempotency-key": context.idempotency_key, **_header_texts(headers)}
    return await _send(method, url, headers=request_headers, content=content, expect=expect_status, read_timeout=None, context=context)


def _header_texts(headers: Mapping[str, Header] | None) -> dict[str, str]:
    texts = {name.lower(): str(value).lower() if isinstance(value, bool) else str(value) for name, value in (headers or {}).items()}
    wrong = [name for name, text in texts.items() if not _NAME.fullmatch(name) or not _VALUE.fullmatch(text)]
    if wrong:
        named = ", ".join(f"`{one_line(name)[:80]}`" for name in wrong)
        rule = "a name has letters, digits, - or _; a value is one line of ASCII without control characters or spaces around it"
        raise ToolError(f"{named} cannot be sent as a header: {rule}; encode other text, or send it in the body")
    return texts


def _encode_body(body: JsonValue) -> tuple[bytes | None, str | None]:
    if body is None:
        return None, None
    if isinstance(body, str):
        return body.encode(), "text/plain; charset=utf-8"
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode(), "application/json"


async def _send(
    method: str,
    url: str,
    *,
    headers: dict[str, str],
    content: bytes | None,
    expect: ExpectedStatus,
    read_timeout: float | None,
    context: ToolContext,
) -> HttpResponse:
    """Send the request and return the answer, or raise ToolError. No message contains the query or user part of a URL."""
    import httpx  # only for a call

    target, credentials = _parse_url(url)
    if credentials and "authorization" not in headers:
        headers["authorization"] = credentials
    what = f"{method} {_url_without_query(target)}"
    timeout = httpx.Timeout(read_timeout, connect=CONNECT_SECONDS)
    try:
        async with httpx.AsyncClient(timeout=timeout, verify=_certificates()) as client:
            request = client.build_request(method, target, headers=headers, content=content)
            response = await _send_following_redirects(client, request, may_follow=method == "GET")
            body, is_cut = await _read_body(response, BODY_LIMIT + 1 + 4 * _secret_reach(context))  # a character has at most four bytes
    except (httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise ToolError(f"{what}: no connection in time") from error
    except (httpx.TimeoutException, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
        reason = "no answer in time" if isinstance(error, httpx.TimeoutException) else _error_text(error, target)
        raise UnknownOutcomeError(f"{what}: {reason}, after the request was sent") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError, ValueError) as error:
        raise ToolError(f"{what}: {_error_text(error, target)}") from error
    text = _body_text(response, body, context)
    if not _is_expected(response.status_code, expect):
        raise ToolError(_unexpected_status_message(what, response, text) + _other_origin_note(target, response.url))
    if is_cut and _is_json(response) and method == "GET":  # a request that changed something was still done: keep its text
        raise ToolError(f"{what}: the response is JSON of more than {BODY_LIMIT} bytes; fetch it with a command that writes a file")
    return {
        "status": response.status_code,
        "headers": dict(response.headers.items()),
        "body": _parse_json(text) if _is_json(response) else text,
    }


@cache
def _certificates() -> "ssl.SSLContext":
    import httpx  # only for a call

    return httpx.create_ssl_context()  # takes tens of milliseconds, so once for all requests


def _parse_url(url: str) -> "tuple[httpx.URL, str | None]":
    """Return the URL without its user part, and the user part as a header. httpx logs whole URLs."""
    import httpx  # only for a call

    try:
        target = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(f"this is not a URL: {error}") from error
    if target.scheme not in ("http", "https") or not target.host:
        raise ToolError("the URL must start with http:// or https:// and name a host")
    if not target.userinfo:
        return target, None
    credentials = base64.b64encode(f"{target.username}:{target.password}".encode()).decode()
    return target.copy_with(userinfo=b""), f"Basic {credentials}"


def _url_without_query(url: "httpx.URL") -> str:
    return str(url.copy_with(query=None, fragment=None, userinfo=b""))


def _error_text(error: Exception, url: "httpx.URL") -> str:
    query = url.query.decode("ascii", "replace")
    text = str(error) or type(error).__name__
    return text.replace(query, "…") if query else text


async def _send_following_redirects(client: "httpx.AsyncClient", request: "httpx.Request", *, may_follow: bool) -> "httpx.Response":
    """Return the response at the end of a chain of redirects, its body unread. Closing the client closes it.

    The request's headers may contain credentials, so only its own origin receives them. After the first redirect to another scheme, host or
    port, no later request carries them, even one that leads back.
    """
    first = request
    for _ in range(MAX_REDIRECTS + 1):
        response = await client.send(request, stream=True)
        following = response.next_request
        if following is None or not may_follow:
            return response
        await response.aclose()
        target = following.url.copy_with(userinfo=b"")  # ignore credentials that a server puts into a URL
        if target.scheme not in ("https", request.url.scheme):
            raise ToolError(f"{request.method} {_url_without_query(request.url)} redirects to {target.scheme}, which is not followed")
        if _origin(target) == _origin(request.url):
            following.url = target
        else:
            client.cookies.clear()  # cookies do not record the scheme or port that they came from
            following = client.build_request("GET", target)
        request = following
    raise ToolError(f"{first.method} {_url_without_query(first.url)} redirects more than {MAX_REDIRECTS} times")


def _origin(url: "httpx.URL") -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port  # httpx leaves out a scheme's default port


async def _read_body(response: "httpx.Response", limit: int) -> tuple[bytes, bool]:
    """Return the body up to `limit`, and whether it is larger than BODY_LIMIT."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            await response.aclose()
            break
    return bytes(body[:limit]), len(body) > BODY_LIMIT


def _body_text(response: "httpx.Response", body: bytes, context: ToolContext) -> str:
    """Return the body as text without secrets. A body that is too large is cut after a whole character, with a note.

    The bytes read beyond the limit show whether a secret spans it.
    """
    try:
        decoder = codecs.getincrementaldecoder(response.charset_encoding or "utf-8")
    except LookupError:
        decoder = codecs.getincrementaldecoder("utf-8")
    is_cut = len(body) > BODY_LIMIT
    # PostgreSQL cannot store a NUL in a text.
    text = context.redact(decoder("replace").decode(body, final=not is_cut).replace("\0", "\ufffd"))
    if not is_cut:
        return text
    kept = len(decoder("replace").decode(body[:BODY_LIMIT]))
    return f"{text[: min(kept, max(0, len(text) - _secret_reach(context)))]}\n… cut after {BODY_LIMIT} bytes"


def _secret_reach(context: ToolContext) -> int:
    """Return how many characters before the end of a text may be the start of a secret."""
    return 0 if context.redaction is None else context.redaction.longest


def _is_json(response: "httpx.Response") -> bool:
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _parse_json(text: str) -> JsonValue:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text  # the content type says JSON, but the body is not


def _other_origin_note(requested: "httpx.URL", answered: "httpx.URL") -> str:
    """Return a note if redirects led to another origin, which may be the reason for the refusal."""
    if _origin(requested) == _origin(answered):
        return ""
    return f" (after a redirect to {_url_without_query(answered)}: headers and credentials of the step are not sent to another origin)"


def _is_expected(status: int, expect: ExpectedStatus) -> bool:
    if expect is None:
        return 200 <= status < 300
    return status in (expect if isinstance(expect, list) else [expect])


def _unexpected_status_message(what: str, response: "httpx.Response", text: str) -> str:
    message = f"{what} answered {response.status_code} {response.reason_phrase}".rstrip()
    if response.has_redirect_location:
        return f"{message}: a redirect, and this tool does not follow redirects"
    beginning = " ".join(text.split())
    return f"{message}: {beginning[:300]}{'…' if len(beginning) > 300 else ''}" if beginning else message
