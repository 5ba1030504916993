"""An issuer of OpenID Connect on loopback, which signs in whoever a test names, and sends the ID tokens that a test makes."""

import base64
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT, CLIENT_SECRET = "desk", "the-secret-of-the-client"

Claims = dict[str, Any]


@dataclass
class Issuer:
    """Answers as an issuer does. `change` changes the claims of the next ID tokens, `sign` how they are signed."""

    person: str = "ana@example.org"
    change: Callable[[Claims], Claims] = lambda claims: claims
    sign: "Callable[[Issuer, Claims], str] | None" = None
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one", "alg": "RS256"}))
    codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    exchanged: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Issuer":
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                match parts.path:
                    case "/.well-known/openid-configuration":
                        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
                        self._send({"issuer": issuer.url} | {name: f"{issuer.url}/{path}" for name, path in names.items()})
                    case "/jwks":
                        self._send({"keys": [issuer.key.as_dict(private=False)]})
                    case "/authorize":
                        asked = dict(parse_qsl(parts.query))
                        code = f"code-{len(issuer.codes)}"
                        issuer.codes[code] = {**asked, "person": issuer.person}
                        self.send_response(302)
                        self.send_header("Location", f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")
                        self.end_headers()
                    case _:
                        self.send_error(404)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                given = {name: values[0] for name, values in parse_qs(body).items()}
                asked = issuer.codes.pop(given.get("code", ""), None)
                secret = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
                if asked is None or self.headers["Authorization"] != f"Basic {secret}" or _challenge(given) != asked["code_challenge"]:
                    self._send({"error": "invalid_grant"}, 400)
                    return
                issuer.exchanged.append(given)
                self._send({"access_token": "t", "token_type": "Bearer", "id_token": issuer.id_token(asked)})

            def _send(self, value: object, status: int = 200) -> None:
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def id_token(self, asked: dict[str, str]) -> str:
        """Return the ID token for a sign-in."""
        now = int(time.time())
        times = {"iat": now, "exp": now + 600}
        names = {"sub": asked["person"], "email": asked["person"], "email_verified": True}
        claims = self.change({"iss": self.url, "aud": CLIENT, "nonce": asked["nonce"], **times, **names})
        return self.sign(self, claims) if self.sign is not None else jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)


def _challenge(given: dict[str, str]) -> str:
    digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned(_: Issuer, claims: Claims) -> str:
    """Return a token with the algorithm `none`."""
    return f"{_part({'alg': 'none'})}.{_part(claims)}."


def by_another_key(_: Issuer, claims: Claims) -> str:
    """Return a token that a key signed which the issuer does not publish."""
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims, RSAKey.generate_key(2048))


def by_the_client_secret(_: Issuer, claims: Claims) -> str:
    """Return a token that somebody signed who knows the secret of the client."""
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(CLIENT_SECRET + "-" * 32))


def by_the_public_key(issuer: Issuer, claims: Claims) -> str:
    """Return a token whose HMAC key is the text of the issuer's public key."""
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(issuer.key.as_dict(private=False)["n"]))


def altered(issuer: Issuer, claims: Claims) -> str:
    """Return a token whose claims were changed after it was signed."""
    head, _, signature = jwt.encode({"alg": "RS256", "kid": "one"}, claims, issuer.key).split(".")
    return f"{head}.{_part({**claims, 'email': 'bo@example.org'})}.{signature}"
