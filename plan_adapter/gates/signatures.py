"""SSH signatures with `ssh-keygen -Y`: signing with a person's own key, and verification against allowed signers."""

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from plan_adapter.gates.policy import STORES_SIGNERS, EffectivePolicy
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.readable import one_line

NAMESPACE = "prefect-plan-adapter"
"""The purpose of a signature. One made for git or files is not accepted here, and ours are not accepted there."""

KEY_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")
MAX_SIGNATURE_CHARACTERS = 32 * 1024
MAX_SIGNERS_BYTES = 4 * 1024 * 1024
VERIFY_SECONDS = 10.0
SIGN_SECONDS = 120.0
"""How long signing may wait for a passphrase or a touch of a security key."""

# The environment that ssh-keygen needs: an agent, a terminal or window to ask in, a provider of security keys.
_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "TERM", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    *("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_SK_PROVIDER"),
)
_NO_PRINCIPAL = re.compile(r'[*?!,"\x00-\x1f\x7f]|^$')  # a name pattern, or characters that no line can hold


def default_key(settings: Settings) -> Path:
    """Return the key to sign with: `signing_key`, or the first usual one in ~/.ssh. Raise NotApprovedError if there is none."""
    if settings.signing_key is not None:
        return _require_key(settings.signing_key.expanduser())
    folder = Path.home() / ".ssh"
    found = next((folder / name for name in KEY_NAMES if (folder / name).exists() or (folder / f"{name}.pub").exists()), None)
    if found is None:
        raise NotApprovedError(
            f"there is no SSH key in {folder} ({', '.join(KEY_NAMES)}): make one with `ssh-keygen -t ed25519`, "
            "or set PLAN_ADAPTER_SIGNING_KEY to yours"
        )
    return found if found.exists() else found.with_name(f"{found.name}.pub")  # only the public half is here; an agent has the other


def allowed_signers(policy: EffectivePolicy) -> Path | str:
    """Return the file of allowed signers, or its lines if they come from the store's policy. Raise NotApprovedError if there are none."""
    if policy.allowed_signers is None and policy.number is not None:
        raise NotApprovedError(
            "no signature can be verified: the store's policy has no `allowed_signers`; add a line for each key, as in "
            "`ana ssh-ed25519 AAAA…`, and set the policy with `plan policy set FILE`"
        )
    if policy.allowed_signers is None:
        raise NotApprovedError(
            "no signature can be verified: PLAN_ADAPTER_ALLOWED_SIGNERS is not set; set it to a file of allowed signers, "
            "with a line for each key: `ana ssh-ed25519 AAAA…`"
        )
    return policy.allowed_signers if isinstance(policy.allowed_signers, str) else policy.allowed_signers.expanduser()


def signer_patterns(policy: EffectivePolicy) -> list[str]:
    """Return the names in the allowed signers, which may have wildcards. Empty if there are none or their file cannot be read."""
    signers = policy.allowed_signers
    try:
        text = signers.expanduser().read_text(encoding="utf-8") if isinstance(signers, Path) else signers or ""
    except (OSError, UnicodeDecodeError):
        return []
    lines = (line.strip() for line in text.splitlines())
    names = (line.partition('"' if line.startswith('"') else " ") for line in lines if line and not line.startswith("#"))
    return [name for before, _, rest in names for name in (before or rest.partition('"')[0]).split(",")]


def sign(text: str, *, key: Path) -> str:
    """Return the armored signature of `text` by `key`, a private key, or a public key whose private half is in an agent.

    ssh-keygen itself asks for a passphrase on the terminal. Raises NotApprovedError, which says what is missing.
    """
    _require_key(key)
    with tempfile.TemporaryDirectory(prefix="plan-sign-") as folder:
        # Written to a file: if the text came on standard input, ssh-keygen would not ask for a passphrase on the terminal.
        message = Path(folder, "text")
        message.write_bytes(text.encode())
        arguments = ["-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(message)]
        completed = _ssh_keygen(arguments, seconds=SIGN_SECONDS, at_terminal=True, shows_errors=_is_security_key(key))
        signature = message.with_name("text.sig")
        if completed.returncode != 0 or not signature.exists():
            raise NotApprovedError(f"{key} did not sign: {_why_not_signed((completed.stderr or b'').decode(errors='replace'))}")
        return signature.read_text(encoding="ascii")


def verify_signature(text: str, signature: str, *, allowed: Path | str, by: str) -> str:
    """Return `by` if one of their keys in `allowed`, a file or its lines, signed exactly `text`.

    Only lines that spell out the name count. A pattern (`*@example.org`) shows that a key is allowed, but not whose it is. Certificates of
    a `cert-authority` count for the names that they hold. Raises NotApprovedError, which says what is wrong.
    """
    if _NO_PRINCIPAL.search(by):
        raise NotApprovedError(f"`{one_line(by)}` cannot be the name of a key's owner")
    if len(signature) > MAX_SIGNATURE_CHARACTERS:
        raise NotApprovedError("the signature is malformed: it is too long for a signature")
    signers = allowed.encode() if isinstance(allowed, str) else _read_signers(allowed)
    where = STORES_SIGNERS if isinstance(allowed, str) else str(allowed)
    with tempfile.TemporaryDirectory(prefix="plan-verify-") as folder:
        # Copies, so that the file cannot change between the two checks.
        everyone, own, signed = Path(folder, "everyone"), Path(folder, "own"), Path(folder, "signature")
        everyone.write_bytes(signers)
        own.write_bytes(_lines_for(by, signers))
        signed.write_bytes(signature.encode(errors="replace"))
        arguments = ["-Y", "verify", "-f", str(own), "-I", by, "-n", NAMESPACE, "-s", str(signed)]
        verified = _ssh_keygen(arguments, seconds=VERIFY_SECONDS, text=text)
        if verified.returncode == 0:
            return by
        found = _ssh_keygen(["-Y", "find-principals", "-s", str(signed), "-f", str(everyone)], seconds=VERIFY_SECONDS)
    names = found.stdout.decode(errors="replace").split("\n") if found.returncode == 0 else []
    raise NotApprovedError(_why_not_verified(verified.stderr.decode(errors="replace"), by=by, names=names, allowed=where))


def _require_key(key: Path) -> Path:
    if not key.exists():
        raise NotApprovedError(f"there is no SSH key {key}: make one with `ssh-keygen -t ed25519`, or set PLAN_ADAPTER_SIGNING_KEY")
    return key


def _ssh_keygen(
    arguments: Sequence[str], *, seconds: float, text: str = "", at_terminal: bool = False, shows_errors: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Return how `ssh-keygen` ended. It inherits our standard input with `at_terminal`, and our standard error with `shows_errors`."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"LC_ALL": "C"}
    try:
        return subprocess.run(  # noqa: S603  # fixed arguments, no shell
            ["ssh-keygen", *arguments],  # noqa: S607  # wherever it is installed
            input=None if at_terminal else text.encode(),
            stdout=subprocess.PIPE,
            stderr=None if shows_errors else subprocess.PIPE,
            timeout=seconds,
            env=environment,
            check=False,
        )
    except FileNotFoundError:
        raise NotApprovedError("`ssh-keygen` is not installed: `apt install openssh-client`") from None
    except subprocess.TimeoutExpired:
        raise NotApprovedError(f"ssh-keygen did not finish within {seconds:.0f} s") from None
    except (OSError, ValueError) as error:
        raise NotApprovedError(f"ssh-keygen cannot be used: {error}") from None


def _is_security_key(key: Path) -> bool:
    """Return whether ssh-keygen will ask for a touch, which it does on standard error."""
    public = key if key.suffix == ".pub" else key.with_name(f"{key.name}.pub")
    try:
        return public.read_bytes().startswith(b"sk-")
    except OSError:
        return False


def _why_not_signed(errors: str) -> str:
    known = {
        "incorrect passphrase": "the passphrase is wrong, or there is no terminal to ask for it; add the key to an agent with `ssh-add`",
        "too open": "other users can read the file; `chmod 600` it",
        "Permission denied": "this account may not read the file",
        "agent refused": "the agent refused to sign with it",
        "invalid format": "the file is not an SSH key",
        "No private key found": "the private key is neither in the same folder nor in an agent",
        "no private key": "the private key is neither in the same folder nor in an agent",
    }
    words = next((words for part, words in known.items() if part in errors), None)
    return words or one_line(errors)[-300:] or "ssh-keygen gave no reason"


def _read_signers(allowed: Path) -> bytes:
    hint = "PLAN_ADAPTER_ALLOWED_SIGNERS must name a file with a line for each key: a name, then the public key"
    try:
        with allowed.open("rb") as stream:
            content = stream.read(MAX_SIGNERS_BYTES + 1)
    except FileNotFoundError:
        raise NotApprovedError(f"the file of allowed signers {allowed} does not exist: {hint}") from None
    except (OSError, ValueError) as error:
        raise NotApprovedError(f"the file of allowed signers {allowed} cannot be read: {error}") from None
    if len(content) > MAX_SIGNERS_BYTES:
        raise NotApprovedError(f"the file of allowed signers {allowed} is larger than {MAX_SIGNERS_BYTES // 2**20} MB")
    return content


def _lines_for(by: str, signers: bytes) -> bytes:
    """Return the lines that spell out the name `by` or name a certificate authority. Other lines become empty to keep line numbers."""
    return b"\n".join(line if _applies_to(by.encode(errors="replace"), line) else b"" for line in signers.split(b"\n"))


def _applies_to(by: bytes, line: bytes) -> bool:
    found = re.match(rb'[ \t]*(?:"([^"]*)"|([^\s"#][^\s]*))[ \t]+(.*)', line)
    if found is None:
        return False
    principals = found[1] if found[1] is not None else found[2]
    first = re.sub(rb'"[^"]*"', b"", found[3]).split(maxsplit=1)[:1]
    options = first[0].lower().split(b",") if first else []
    return by in principals.split(b",") or b"cert-authority" in options


def _why_not_verified(errors: str, *, by: str, names: Sequence[str], allowed: str) -> str:
    who = one_line(by)
    if "incorrect signature" in errors:
        return f"the signature does not belong to this answer: {who} signed another text, or the text has changed since"
    if "namespace does not match" in errors:
        return f"the signature was made for another purpose: sign with `ssh-keygen -Y sign -n {NAMESPACE}`, or with --sign"
    if "missing header" in errors or "parse signature" in errors or "sshsig_armor" in errors:
        return "the signature is malformed: it is not an armored SSH signature"
    if "has expired" in errors:
        return f"the key of {who} has expired: {allowed} says valid-before"
    if "not yet valid" in errors:
        return f"the key of {who} is not valid yet: {allowed} says valid-after"
    if "not permitted for use in signature namespace" in errors:
        return f"the key of {who} may not sign approvals: its namespaces in {allowed} do not include {NAMESPACE}"
    others = [one_line(name) for name in names if name]
    if others and by not in others:
        return f"the signature is by the key of {', '.join(others)}, not of {who}; {allowed} must spell out each name"
    if bad := re.search(r":(\d+): bad options[^\n]*", errors):
        return f"no key of {who} in {allowed} made this signature; line {bad[1]} there cannot be read"
    return f"the signature is by a key that {allowed} does not list for {who}"
