"""`desk_app`: the web application of `plan desk`. Its pages list what waits, show gates and runs, and take answers.

Nothing else writes to the store.
"""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hmac import compare_digest
from importlib.resources import files
from math import ceil
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plan_adapter.cli.approval_state import states_of
from plan_adapter.cli.desk.desk_answers import record_answer
from plan_adapter.cli.desk.gate_pages import Choices, listed_gates, shown_fields, shown_gate
from plan_adapter.cli.desk.protection import HEADERS, MAX_BODY_BYTES, MAX_HOOK_BYTES, FailedProofs, Protection, Session, Sessions, origin_of
from plan_adapter.cli.desk.sign_in import CALLBACK, OpenIdSignIn, SignIn, SignInError
from plan_adapter.cli.desk.slack import ACTIONS_PATH, Slack, SlackActions
from plan_adapter.cli.desk.webhooks import Webhooks
from plan_adapter.cli.verbs.gates import waiting_gates
from plan_adapter.cli.verbs.report import report_of
from plan_adapter.cli.verbs.show import shown_run
from plan_adapter.gates.gate import closing_message, request_of
from plan_adapter.gates.identity import DIGEST_BEGINNING, Identity
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import DELEGATE, GATE_ANSWERS, TAKE_BACK, Answer, Gate, GateAnswer
from plan_adapter.model.errors import InvalidAnswerError, NotApprovedError, PlanAdapterError, RunConflictError, RunNotFoundError
from plan_adapter.model.readable import moment, visible
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.text.html_parts import prose
from plan_adapter.text.report import report_html
from plan_adapter.validation.inputs import parse_json, read_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue
    from starlette.types import ASGIApp

    from plan_adapter.store.store import PlanStore

SHOWN_GATES = 500
SHOWN_RUNS = 100
MAX_FIELDS = 200
MAX_NOTE_CHARACTERS = 4000

_FIELD = "field."
"""The beginning of the names of the fields of a question in the form, which keeps them apart from ours."""

_ID = re.compile(r"[0-9a-zA-Z-]{8,64}")
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)


def desk_app(
    store: "PlanStore",
    settings: Settings,
    sign_in: SignIn | None,
    *,
    address: str,
    hosts: frozenset[str],
    slack: Slack | None = None,
    webhooks: Webhooks | None = None,
) -> "ASGIApp":
    """Return the application. `address` is where people reach it; requests may name one of `hosts`. `sign_in` None: a proof per answer.

    With `slack`, it takes what people press there, and with `webhooks` what other systems send.
    """
    app = FastAPI(title="plan desk", docs_url=None, redoc_url=None, openapi_url=None)
    desk = Desk(store, settings, sign_in, origin=origin_of(address))
    pages: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("GET", "/", desk.list_gates),
        ("GET", "/gates/{gate_id}", desk.show_gate),
        ("POST", "/gates/{gate_id}", desk.answer_gate),
        ("GET", "/runs", desk.list_runs),
        ("GET", "/runs/{run_id}", desk.show_run),
        ("POST", "/sign-out", desk.sign_out),
        ("GET", CALLBACK, desk.finish_sign_in),
        ("GET", "/desk.css", desk.style),
    ]
    signed = dict[str, int]()
    if slack is not None:
        pages.append(("POST", ACTIONS_PATH, SlackActions(slack, store, settings).receive))
        signed[ACTIONS_PATH] = MAX_BODY_BYTES
    if webhooks is not None:
        pages += [("POST", path, webhooks.receive) for path in webhooks.paths]
        signed |= dict.fromkeys(webhooks.paths, MAX_HOOK_BYTES)
    for method, path, page in pages:
        app.add_api_route(path, page, methods=[method], include_in_schema=False, response_model=None)
    app.add_exception_handler(SignInNeeded, desk.start_sign_in)
    app.add_exception_handler(PlanAdapterError, desk.report_error)
    app.add_exception_handler(404, desk.report_missing)
    return Protection(app, origin=origin_of(address), hosts=hosts, signed=signed)


def desk_server(app: "ASGIApp") -> uvicorn.Server:
    """Return the server of the application. It trusts no header about the address of a client."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, lifespan="off", timeout_graceful_shutdown=3
    )
    return uvicorn.Server(config)


class SignInNeeded(Exception):  # no error: it leads to the issuer
    """The person has to sign in before this page is shown."""

    def __init__(self, session: Session) -> None:
        """Continue in `session`."""
        super().__init__()
        self.session = session


@dataclass(frozen=True, slots=True)
class Visit:
    """One request: its session, and who sends it."""

    session: Session
    identity: Identity | None


class BadFormError(PlanAdapterError):
    """A form that no page of the desk sends."""


class Desk:
    """The pages of the desk."""

    def __init__(self, store: "PlanStore", settings: Settings, sign_in: SignIn | None, *, origin: str) -> None:
        """Show and answer the gates of `store`."""
        self._store = store
        self._settings = settings
        self._sign_in = sign_in
        self._sessions = Sessions()
        self._failed = FailedProofs()
        self._is_secure = origin.startswith("https:")
        self._cookie = "__Host-desk" if self._is_secure else "desk"
        loader = PackageLoader("plan_adapter.cli.desk", "pages")
        self._pages = Environment(autoescape=True, loader=loader, undefined=StrictUndefined, finalize=_shown, trim_blocks=True)
        self._pages.filters["prose"] = _prose_html
        self._style = files("plan_adapter.cli.desk").joinpath("pages/desk.css").read_text(encoding="utf-8")

    async def list_gates(self, request: Request) -> Response:
        """List what waits."""
        visit = self._visit(request)
        gates, now = await waiting_gates(self._store, self._settings, with_texts=True), await self._store.now()
        listed = listed_gates(gates, visit.identity, now)
        return self._page(visit, "gates", gates=listed[:SHOWN_GATES], more=max(0, len(listed) - SHOWN_GATES))

    async def show_gate(self, request: Request) -> Response:
        """Show one gate, with the form that answers it, or how it was answered."""
        return await self._gate_page(self._visit(request), await self._gate_of(request))

    async def answer_gate(self, request: Request) -> Response:
        """Record an answer, and show the gate again."""
        visit, form = await self._visit_with_form(request)
        gate = await self._gate_of(request)
        tries = visit.identity.by if visit.identity is not None else request.client.host if request.client is not None else ""
        if wait := self._failed.count(tries):
            page = await self._gate_page(visit, gate, 429, error="too many proofs failed; try again later", typed=form)
            page.headers["retry-after"] = str(ceil(wait))
            return page
        try:
            answer = self._read_answer(form, gate, visit.identity)
            visit.session.notice = await record_answer(answer, gate, visit.identity, self._store, self._settings)
        except RunConflictError as error:
            self._failed.forgive(tries)
            return await self._closed_page(visit, gate, error)
        except InvalidAnswerError as error:
            self._failed.forgive(tries)
            return await self._gate_page(visit, gate, 422, error=str(error), typed=form)
        except NotApprovedError as error:
            return await self._gate_page(visit, await self._store.gates.get(gate.id), 403, error=str(error), typed=form)
        self._failed.forgive(tries)
        return self._redirect(visit.session, f"/gates/{gate.id}")

    async def list_runs(self, request: Request) -> Response:
        """List the newest runs."""
        visit = self._visit(request)
        runs = await self._store.runs(SHOWN_RUNS)
        states = await states_of(runs, self._store, self._settings)
        rows = [(run, states[run.id], moment(run.created_at)) for run in runs]
        return self._page(visit, "runs", rows=sorted(rows, key=lambda row: not row[1].is_waiting))

    async def show_run(self, request: Request) -> Response:
        """Show the report of a run."""
        visit = self._visit(request)
        found = await shown_run(self._id_in(request, "run_id"), self._store, self._settings)
        if found.state.gates:  # the link to the gate, not what the account of the desk could type
            found = replace(found, next_text=None)
        above = self._pages.get_template("above_report.html").render(gates=found.state.gates)
        html = report_html(await report_of(found, self._store), above=[above])
        hashes = " ".join(f"'sha256-{_hash(style)}'" for style in _STYLE.findall(html))
        policy = HEADERS["content-security-policy"].replace("style-src 'self'", f"style-src {hashes}")
        return self._with_cookie(HTMLResponse(html, headers={"content-security-policy": policy}), visit.session)

    async def style(self, _request: Request) -> Response:
        """Return the style sheet."""
        return Response(self._style, media_type="text/css")

    async def start_sign_in(self, request: Request, needed: Exception) -> Response:
        """Send the person to the issuer."""
        assert isinstance(needed, SignInNeeded)
        assert isinstance(self._sign_in, OpenIdSignIn)
        if request.method != "GET":
            return self._error_page(needed.session, 403, "You are not signed in any more. Nothing was recorded: open the page again.")
        try:
            return self._redirect(needed.session, await self._sign_in.begin(needed.session, request.url.path))
        except SignInError as error:
            return self._error_page(needed.session, 503, f"Nobody can sign in: {error}.")

    async def finish_sign_in(self, request: Request) -> Response:
        """Take the person back from the issuer, into a new session."""
        session = self._sessions.find(request.cookies.get(self._cookie))
        if not isinstance(self._sign_in, OpenIdSignIn):
            return self._error_page(session, 404, "There is no such page.")
        if session is None:
            return self._error_page(session, 403, "You are not signed in: this sign-in was not started in this browser, or is over.")
        given = request.query_params
        if "error" in given:
            session.sign_ins.pop(given.get("state", ""), None)
            return self._error_page(session, 403, "The issuer did not sign you in.")
        try:
            identity, page = await self._sign_in.finish(session, state=given.get("state", ""), code=given.get("code", ""))
        except SignInError as error:
            return self._error_page(session, 403, f"You are not signed in: {error}.")
        self._sessions.end(session)
        return self._redirect(self._sessions.begin(identity), page)

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        visit, _ = await self._visit_with_form(request)
        self._sessions.end(visit.session)
        return self._error_page(None, 200, "You are signed out.")

    async def report_error(self, request: Request, error: Exception) -> Response:
        """Show an error of ours."""
        status = 403 if isinstance(error, SignInError | BadFormError) else 404 if isinstance(error, RunConflictError) else 503
        return self._error_page(self._sessions.find(request.cookies.get(self._cookie)), status, f"{error}")

    async def report_missing(self, request: Request, _error: Exception) -> Response:
        """Say that there is no such page."""
        return self._error_page(self._sessions.find(request.cookies.get(self._cookie)), 404, "There is no such page.")

    def _visit(self, request: Request, *, begins: bool = True) -> Visit:
        """Return the session and the identity of a request. Raises SignInError, and SignInNeeded where the person can sign in.

        A session belongs to one person. With `begins`, a request without one gets a new one.
        """
        session = self._sessions.find(request.cookies.get(self._cookie))
        if session is None and not begins and not isinstance(self._sign_in, OpenIdSignIn):
            why = "your session is over" if self._cookie in request.cookies else "this browser sent no cookie of the desk"
            raise BadFormError(f"{why}: open the page again" + (", over https" if self._is_secure else ""))
        session = session or self._sessions.begin()
        identity = None if self._sign_in is None else self._sign_in.identify(request, session)
        if identity is None and self._sign_in is not None:
            raise SignInNeeded(session)
        if session.identity != identity:  # the proxy names another person than before
            self._sessions.end(session)
            session = self._sessions.begin(identity)
        return Visit(session, identity)

    async def _visit_with_form(self, request: Request) -> tuple[Visit, dict[str, str]]:
        """Return the visit and the form that it sends. Raises BadFormError for a form of another session."""
        visit, form = self._visit(request, begins=False), _read_form(await request.body(), request)
        if not _same(form.get("token", ""), visit.session.token):
            raise BadFormError("this form is not from your session: open the page again")
        return visit, form

    async def _gate_of(self, request: Request) -> Gate:
        return await self._store.gates.get(self._id_in(request, "gate_id"))

    def _id_in(self, request: Request, name: str) -> str:
        given = str(request.path_params[name])
        if not _ID.fullmatch(given):
            raise RunNotFoundError("there is no such page")
        return given

    def _read_answer(self, form: "Mapping[str, str]", gate: Gate, identity: Identity | None) -> Answer:
        """Return the answer in a form. Raises InvalidAnswerError if it is incomplete, and NotApprovedError if it proves nobody."""
        known: tuple[GateAnswer, ...] = (*GATE_ANSWERS[gate.kind], DELEGATE)
        decision: GateAnswer | None = (
            TAKE_BACK if "take_back" in form else next((each for each in known if form.get("decision") == each), None)
        )
        note = form.get("note", "").replace("\r\n", "\n").strip()
        digest = form.get("digest", "")
        if decision is None:
            raise InvalidAnswerError("choose an answer")
        if not DIGEST_BEGINNING.fullmatch(digest):
            raise InvalidAnswerError("the form does not say which content it answers: open the page again")
        if len(note) > MAX_NOTE_CHARACTERS:
            raise InvalidAnswerError(f"the note has more than {MAX_NOTE_CHARACTERS} characters")
        if decision == "request_changes" and not note:
            raise InvalidAnswerError("the note is empty: say in it what to change")
        if decision == DELEGATE and not form.get("to", "").strip():
            raise InvalidAnswerError("the name of the person who answers instead is missing")
        code, signature = form.get("code", "").strip() or None, form.get("signature", "").replace("\r\n", "\n").strip() or None
        by = form.get("by", "").strip() if identity is None else identity.by
        if not by:
            raise InvalidAnswerError("your name is missing")
        if identity is None and code is None and signature is None:
            raise NotApprovedError("a name alone proves nothing: add your one-time code, or sign the answer")
        return Answer(
            "approve" if decision == "answer" else decision,
            by,
            note=note,
            code=code,
            signature=None if signature is None else signature + "\n",
            result=_read_result(form, gate, decision),
            digest=digest,
            to=form.get("take_back" if decision == TAKE_BACK else "to", "").strip(),
        )

    async def _closed_page(self, visit: Visit, gate: Gate, error: RunConflictError) -> Response:
        """Show who was first, or the content that replaced what was answered."""
        now = await self._store.gates.get(gate.id)
        if now.end != "superseded":
            return await self._gate_page(visit, now, 409, error=f"Your answer was not recorded: {error}.")
        others = await self._store.gates.find(run_id=gate.run_id)
        newer = [each for each in others if (each.step_id, each.item, each.kind) == (gate.step_id, gate.item, gate.kind)]
        why = "The content changed, so your answer was not recorded. Read the new content, then answer."
        return await self._gate_page(visit, newer[-1] if newer else now, 409, error=why)

    async def _gate_page(
        self, visit: Visit, gate: Gate, status: int = 200, *, error: str = "", typed: "Mapping[str, str] | None" = None
    ) -> Response:
        store, typed = self._store, typed or {}
        answers = GateAnswers(store, self._settings)
        gate_policy = await answers.policy_of(request_of(gate))
        run = await store.run(gate.run_id)
        shown = shown_gate(gate, gate_policy, run, visit.identity, await store.now())
        if gate.end is not None:
            closing = closing_message(gate, await store.gates.answer_to(gate.id), await answers.resolution_at(gate))
            shown["closing"] = f"{closing}, {moment(gate.closed_at)}"
            shown["choices"] = Choices((), (), asks_name=False, takes_code=False, takes_signature=False)
        own = {name.removeprefix(_FIELD): text for name, text in typed.items() if name.startswith(_FIELD)}
        fields = [*shown_fields(gate.fields, own)] if gate.kind == "question" else []
        kept = {name: typed.get(name, "") for name in ("note", "by", "result", "to")}
        return self._page(visit, "gate", status=status, error=error, fields=fields, typed=kept, **({"closing": ""} | shown))

    def _page(self, visit: Visit, name: str, *, status: int = 200, **shown: Any) -> Response:
        notice, visit.session.notice = visit.session.notice, ""
        who = {"identity": visit.identity, "token": visit.session.token, "can_sign_out": isinstance(self._sign_in, OpenIdSignIn)}
        html = self._pages.get_template(f"{name}.html").render(notice=notice, **who, **shown)
        return self._with_cookie(HTMLResponse(html, status_code=status), visit.session)

    def _error_page(self, session: Session | None, status: int, message: str) -> Response:
        html = self._pages.get_template("error.html").render(notice="", identity=None, message=message)
        response = HTMLResponse(html, status_code=status)
        return response if session is None else self._with_cookie(response, session)

    def _redirect(self, session: Session, address: str) -> Response:
        return self._with_cookie(RedirectResponse(address, status_code=303), session)

    def _with_cookie(self, response: Response, session: Session) -> Response:
        response.set_cookie(self._cookie, session.id, path="/", secure=self._is_secure, httponly=True, samesite="lax")
        return response


def _read_form(body: bytes, request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises BadFormError."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise BadFormError("this is not a form of the desk")
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise BadFormError("this is not a form of the desk") from error
    if len({name for name, _ in pairs}) < len(pairs):
        raise BadFormError("the form has a field twice")
    return dict(pairs)


def _read_result(form: "Mapping[str, str]", gate: Gate, decision: GateAnswer) -> "JsonValue":
    """Return the answer to a question, or what a call returned that was done by hand. Raises InvalidAnswerError."""
    if decision == "answer":
        texts = {name: form[_FIELD + name] for name in gate.fields if form.get(_FIELD + name)}
        values, problems = read_values(gate.fields, texts, from_text=True, what="field")
        if problems:
            raise InvalidAnswerError("; ".join(f"`{problem.at.removeprefix('fields.')}`: {problem.message}" for problem in problems))
        return values
    text = form.get("result", "").strip()
    if decision != "done" or not text:
        return None
    try:
        return parse_json(text)
    except ValueError as error:
        raise InvalidAnswerError(f'the result is not JSON ({error}); put text in quotes, as in "v3"') from None


def _same(one: str, other: str) -> bool:
    return compare_digest(one.encode(), other.encode())


def _hash(style: str) -> str:
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


def _prose_html(text: str) -> Markup:
    """Return a text of ours as HTML, with its commands and names as code."""
    return Markup(prose(text))  # noqa: S704  # escaped there


def _shown(value: object) -> object:
    """Return a value as pages show it: with every character that could hide or move text written out."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "\n".join(visible(line) for line in value.split("\n"))
