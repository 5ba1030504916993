"""Certificates of openssl, and a service that serves TLS with them."""

import hashlib
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Service:
    """Serves TLS with the certificate that it read at its start, or when the file `reload` last appeared."""

    def __init__(self, folder: Path, host: str, *, ca: Path) -> None:
        self.folder, self.host, self.ca = folder, host, ca
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._context = self._read()
        threading.Thread(target=self._serve, daemon=True).start()

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "live" / "certificate.pem", self.folder / "live" / "key.pem")
        return context

    def _serve(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                connection = self._listener.accept()[0]
                if (self.folder / "reload").exists():
                    (self.folder / "reload").unlink()
                    self._context = self._read()
                with suppress(OSError), self._context.wrap_socket(connection, server_side=True) as tls:
                    tls.recv(1)

    def served(self) -> str:
        """Return the fingerprint of the certificate that a client sees. The CA must have signed it."""
        context = ssl.create_default_context(cafile=self.ca)
        host, _, port = self.address.partition(":")
        with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=self.host) as tls:
            return hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def openssl(folder: Path, *arguments: str) -> None:
    """Run openssl in a folder."""
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_ca(folder: Path, name: str = "ca") -> None:
    """Make the certificate and the key of a CA, `NAME.pem` and `NAME.key`."""
    files = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", "/CN=Own CA")
    openssl(folder, "req", "-x509", *KEY, *files, "-addext", "keyUsage=critical,keyCertSign")


def make_certificate(folder: Path, host: str, certificate: str, key: str, *, days: int = 30, ca: str = "ca") -> None:
    """Make a key and a certificate for `host`, signed by the CA `ca` of the folder."""
    signed = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-days", str(days))
    extensions = ("-addext", f"subjectAltName=DNS:{host}", "-addext", "basicConstraints=critical,CA:FALSE")
    openssl(folder, "req", "-x509", *KEY, *signed, *extensions, "-keyout", key, "-out", certificate, "-subj", f"/CN={host}")
