"""The ed25519 keys of attestations: the one of this installation, other SSH keys, and the public keys that verify them."""

import base64
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter.local.private_files import create_once, make_folder, read_private
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import SigningKeyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_FILE = "attestation_key"
"""The name of the installation's key in the home folder. Its public key is in the file with `.pub`."""

MAX_KEY_BYTES = 64 * 1024

_MAKE_ONE = "make one with `ssh-keygen -t ed25519 -N '' -f FILE`"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies attestations."""

    text: str  # as in an OpenSSH .pub file, without a comment
    path: Path  # the file that it was read from, or that of its private key
    _key: "Ed25519PublicKey" = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """The fingerprint that `ssh-keygen -l` prints: `SHA256:…`."""
        blob = base64.b64decode(self.text.split()[1])
        return f"SHA256:{base64.b64encode(sha256(blob).digest()).decode('ascii').rstrip('=')}"

    def has_signed(self, content: bytes, signature: bytes) -> bool:
        """Return whether the private half of this key made `signature` of exactly `content`."""
        from cryptography.exceptions import InvalidSignature  # only for an attestation

        try:
            self._key.verify(signature, content)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key that signs attestations."""

    public: PublicKey
    _key: "Ed25519PrivateKey" = field(repr=False)

    def sign(self, content: bytes) -> bytes:
        """Return the signature of `content`: 64 bytes."""
        return self._key.sign(content)


def installation_key(settings: Settings) -> SigningKey:
    """Return this installation's key. At first use it is created, with its public key in a file next to it."""
    path = _installation_path(settings)
    try:
        make_folder(path.parent)
        if not path.exists():
            create_once(path, _new_key())
    except OSError as error:
        raise SigningKeyError(f"{path} cannot be created: {error.strerror or error}") from None
    key = read_signing_key(path)
    public, line = path.with_name(f"{path.name}.pub"), f"{key.public.text}\n".encode()
    try:
        create_once(public, line)
        is_same = public.read_bytes() == line
    except OSError as error:
        raise SigningKeyError(f"{public} cannot be written: {error.strerror or error}") from None
    if not is_same:
        raise SigningKeyError(f"{public} is not the public key of {path}: remove it, and it is written again")
    return key


def installation_public_key(settings: Settings) -> PublicKey:
    """Return the public key of this installation. Raises SigningKeyError if it has none yet."""
    path = _installation_path(settings).with_name(f"{KEY_FILE}.pub")
    if not path.exists():
        raise SigningKeyError("this installation has no key that it signs attestations with: name the public key of the signer with --key")
    return read_public_key(path)


def read_signing_key(path: Path) -> SigningKey:
    """Return the OpenSSH ed25519 private key in a file. Raises SigningKeyError for anything else."""
    # Only for an attestation.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        content = read_private(path.resolve(), MAX_KEY_BYTES)
    except OSError as error:
        raise SigningKeyError(f"the key {path} cannot be read: {error.strerror or error}") from None
    try:
        key = load_ssh_private_key(content, None)
    except TypeError:
        raise SigningKeyError(
            f"the key {path} has a passphrase, and attestations are signed only with keys that have none; {_MAKE_ONE}, "
            "or leave out --key: the key of this installation then signs"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise SigningKeyError(f"{path} is not an OpenSSH ed25519 private key; {_MAKE_ONE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningKeyError(f"{path} is a key of another kind, and attestations are signed with ed25519; {_MAKE_ONE}")
    return SigningKey(_public_key(key.public_key(), path), key)


def read_public_key(path: Path) -> PublicKey:
    """Return the OpenSSH ed25519 public key in a file. Raises SigningKeyError for anything else."""
    # Only for an attestation.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_KEY_BYTES).strip()
    except OSError as error:
        raise SigningKeyError(f"the public key {path} cannot be read: {error.strerror or error}") from None
    if content.startswith(b"-----BEGIN"):
        raise SigningKeyError(f"{path} is not a public key: give the file that ends in .pub, with one line `ssh-ed25519 AAAA…`")
    try:
        key = load_ssh_public_key(content) if b"\n" not in content else None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise SigningKeyError(f"{path} is not an ed25519 public key: it must have one line `ssh-ed25519 AAAA…`")
    return _public_key(key, path)


def _installation_path(settings: Settings) -> Path:
    return settings.home.expanduser().absolute() / KEY_FILE


def _public_key(key: "Ed25519PublicKey", path: Path) -> PublicKey:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # only for an attestation

    return PublicKey(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii"), path, key)


def _new_key() -> bytes:
    # Only for the first attestation of an installation.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
