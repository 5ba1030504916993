"""Who uses the desk: OpenID Connect, or a trusted proxy that signs people in. Without either, each answer needs its own proof."""

import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from plan_adapter.cli.desk.protection import PendingSignIn, Session
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.gates.identity import Identity, SignInProof, identity_of_sign_in
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.readable import one_line, visible

if TYPE_CHECKING:
    from fastapi import Request

    from plan_adapter.local.settings import Settings

MAX_NAME_CHARACTERS = 200
MIN_SECRET_CHARACTERS = 32
PROXY_SECRET_HEADER = "X-Desk-Proxy-Secret"  # noqa: S105  # the name of a header
CALLBACK = "/sign-in/callback"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The signatures of ID tokens that count: never `none`, and none whose key is the client secret."""

METADATA_SECONDS = 3600.0
LEEWAY_SECONDS = 60


class SignInError(NotApprovedError):
    """A person or a proxy could not prove who they are. Nothing of it is a secret."""


class SignIn(Protocol):
    """Tells who sends a request."""

    @property
    def known_by(self) -> SignInProof:
        """How the people who sign in are known."""
        ...

    def identify(self, request: "Request", session: Session) -> Identity | None:
        """Return the identity of the sender, or None if they have to sign in first. Raises SignInError."""
        ...


@dataclass(frozen=True, slots=True)
class ProxySignIn:
    """People sign in to a proxy in front of the desk, which names them in a header and proves itself by a secret."""

    header: str
    secret: str = field(repr=False)
    known_by: SignInProof = field(default="proxy", init=False)

    def identify(self, request: "Request", session: Session) -> Identity:
        """Return whom the proxy names. Raises SignInError for a request that does not come from the proxy, or names nobody."""
        given, names = request.headers.getlist(PROXY_SECRET_HEADER), request.headers.getlist(self.header)
        if len(given) != 1 or not hmac.compare_digest(given[0].encode("latin-1"), self.secret.encode()):
            raise SignInError("this request did not come through the proxy that signs people in")
        if len(names) != 1:
            raise SignInError(f"the proxy must name one person in the header `{self.header}`, and named {len(names)}")
        return identity_of_sign_in(person_name(names[0].encode("latin-1").decode("utf-8", errors="replace")), self.known_by)


@dataclass(slots=True)
class OpenIdSignIn:
    """People sign in at an issuer of OpenID Connect: authorization code flow with PKCE, `state` and `nonce`."""

    issuer: str
    client_id: str
    client_secret: str | None = field(repr=False)
    claim: str
    redirect_uri: str
    known_by: SignInProof = field(default="sign_in", init=False)
    _metadata: dict[str, Any] = field(default_factory=dict[str, Any], init=False)
    _read_at: float = field(default=0.0, init=False)

    def identify(self, request: "Request", session: Session) -> Identity | None:
        """Return the identity of the person who signed in to this session, or None."""
        return session.identity

    async def begin(self, session: Session, page: str) -> str:
        """Return the address at the issuer at which to sign in; `page` is shown afterwards. Raises SignInError."""
        state, pending = secrets.token_urlsafe(32), PendingSignIn(secrets.token_urlsafe(32), secrets.token_urlsafe(48), page)
        async with self._client() as client:
            metadata = await self._read_metadata(client)
            address, _ = client.create_authorization_url(
                str(metadata["authorization_endpoint"]), state=state, nonce=pending.nonce, code_verifier=pending.verifier
            )
        session.add_sign_in(state, pending)
        return str(address)

    async def finish(self, session: Session, *, state: str, code: str) -> tuple[Identity, str]:
        """Return the identity that signed in, and the page to show. Each sign-in of a session finishes once. Raises SignInError."""
        pending = session.sign_ins.pop(state, None)
        if pending is None:
            raise SignInError("this sign-in was not started in this browser, or is over")
        async with self._client() as client:
            metadata = await self._read_metadata(client)
            try:
                answer = await client.fetch_token(
                    str(metadata["token_endpoint"]), grant_type="authorization_code", code=code, code_verifier=pending.verifier
                )
            except Exception as error:  # authlib raises several kinds for an answer that it cannot read
                raise SignInError(f"the issuer did not exchange the code: {type(error).__name__}") from error
            token, keys = cast("dict[str, Any]", answer).get("id_token"), await self._read_json(client, str(metadata["jwks_uri"]))
        if not isinstance(token, str):
            raise SignInError("the issuer sent no ID token")
        return self._identity_in(token, keys, metadata, nonce=pending.nonce), pending.page

    def _identity_in(self, token: str, keys: Mapping[str, Any], metadata: Mapping[str, Any], *, nonce: str) -> Identity:
        """Return whom an ID token names, after verifying its signature, issuer, audience, times and nonce. Raises SignInError."""
        from authlib.oidc.core import CodeIDToken  # pyright: ignore[reportMissingTypeStubs]
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        options = {"iss": {"essential": True, "value": self.issuer}, "aud": {"essential": True, "value": self.client_id}}
        try:
            decoded = jwt.decode(token, KeySet.import_key_set(cast("Any", keys)), algorithms=[*ALGORITHMS])
            claims: Any = CodeIDToken(decoded.claims, decoded.header, options, {"nonce": nonce, "client_id": self.client_id})
            claims.validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise SignInError(f"the ID token of the issuer is not valid: {type(error).__name__}") from error
        if self.claim == "email" and decoded.claims.get("email_verified") is not True:
            raise SignInError("the issuer has not verified this email address")
        name = decoded.claims.get(self.claim)
        if not isinstance(name, str):
            raise SignInError(f"the ID token has no claim `{self.claim}`: PLAN_ADAPTER_DESK_OIDC_CLAIM names the one that counts")
        return identity_of_sign_in(person_name(name), self.known_by)

    def _client(self) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client  # pyright: ignore[reportMissingTypeStubs]

        return AsyncOAuth2Client(
            self.client_id,
            self.client_secret,
            token_endpoint_auth_method="none" if self.client_secret is None else "client_secret_basic",
            scope="openid email profile",
            redirect_uri=self.redirect_uri,
            code_challenge_method="S256",
        )

    async def _read_metadata(self, client: Any) -> dict[str, Any]:
        if not self._metadata or time.monotonic() - self._read_at > METADATA_SECONDS:
            found = await self._read_json(client, f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != self.issuer:
                raise SignInError("the issuer calls itself otherwise than PLAN_ADAPTER_DESK_OIDC_ISSUER does")
            endpoints = [str(found.get(name)) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
            if unsafe := [address for address in endpoints if not is_safe_address(address)]:
                raise SignInError(f"the issuer names an address without HTTPS: {one_line(unsafe[0])[:MAX_NAME_CHARACTERS]}")
            self._metadata, self._read_at = found, time.monotonic()
        return self._metadata

    async def _read_json(self, client: Any, address: str) -> dict[str, Any]:
        try:
            response = await client.request("GET", address, withhold_token=True)
            response.raise_for_status()
            found: object = response.json()
        except Exception as error:  # of httpx or httpx2, whichever authlib uses, or of JSON
            raise SignInError(f"the issuer cannot be used now: {type(error).__name__}") from error
        if not isinstance(found, dict):
            raise SignInError("the issuer did not answer with a JSON object")
        return cast("dict[str, Any]", found)


def sign_in_of(settings: "Settings", *, address: str) -> SignIn | None:
    """Return how people sign in to the desk at `address`, or None if the settings name neither way. Raises UsageError."""
    issuer, client_id, header, secret = (
        settings.desk_oidc_issuer,
        settings.desk_oidc_client_id,
        settings.desk_proxy_header,
        settings.desk_proxy_secret,
    )
    if (issuer or client_id) and (header or secret):
        raise UsageError("PLAN_ADAPTER_DESK_OIDC_… and PLAN_ADAPTER_DESK_PROXY_… are both set: choose one way to sign in")
    if (header is None) != (secret is None):
        raise UsageError("PLAN_ADAPTER_DESK_PROXY_HEADER and PLAN_ADAPTER_DESK_PROXY_SECRET belong together: set both")
    if header is not None and secret is not None:
        value = secret.get_secret_value()
        if len(value) < MIN_SECRET_CHARACTERS or not (value.isascii() and value.isprintable()):
            raise UsageError("PLAN_ADAPTER_DESK_PROXY_SECRET needs 32 or more printable ASCII characters: `openssl rand -hex 32` makes it")
        return ProxySignIn(header, value)
    if (issuer is None) != (client_id is None):
        raise UsageError("PLAN_ADAPTER_DESK_OIDC_ISSUER and PLAN_ADAPTER_DESK_OIDC_CLIENT_ID belong together: set both")
    if issuer is None or client_id is None:
        return None
    if not is_safe_address(issuer):
        raise UsageError("PLAN_ADAPTER_DESK_OIDC_ISSUER must be an https:// address")
    client_secret = settings.desk_oidc_client_secret
    return OpenIdSignIn(
        issuer, client_id, None if client_secret is None else client_secret.get_secret_value(), settings.desk_oidc_claim, address + CALLBACK
    )


def is_safe_address(address: str) -> bool:
    """Return whether nobody on the way can read what is sent to an address: HTTPS, or HTTP to this machine."""
    try:
        parts = urlsplit(address)
        return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


def person_name(text: str) -> str:
    """Return the name of a person. Raises SignInError for one that could be taken for another."""
    if not text or text != text.strip() or len(text) > MAX_NAME_CHARACTERS or visible(text) != text or not text.isprintable():
        raise SignInError("the name of the person who signed in is empty, too long, or has invisible characters")
    return text
