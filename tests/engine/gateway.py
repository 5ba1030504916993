"""A reverse proxy such as teams put in front of a Prefect server: it demands credentials, and uses TLS if it has a certificate."""

import base64
import datetime
import http.client
import http.server
import ipaddress
import ssl
import threading
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

BASIC = "Basic " + base64.b64encode(b"ana:pw").decode()


class Gateway:
    """Accepts requests from `ana` with the password `pw`, or with the header `X-Gate: open`. `url` is the API behind it."""

    def __init__(self, api_url: str, *, certificate: Path | None = None) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(urlsplit(api_url).netloc))
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._server.server_port}/api"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> "Gateway":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(upstream: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if self.headers.get("Authorization") != BASIC and self.headers.get("X-Gate") != "open":
                self._answer(401, b"{}")
                return
            connection = http.client.HTTPConnection(upstream, timeout=30)
            connection.request(self.command, self.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            self._answer(response.status, response.read())
            connection.close()

        do_GET = do_POST

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

    return Handler


def self_signed(path: Path) -> Path:
    """Write a key and a self-signed certificate for 127.0.0.1 to `path`, and return it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gate")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path
