"""DSSE envelopes with one ed25519 signature: https://github.com/secure-systems-lab/dsse.

An envelope is canonical JSON, and a verifier insists on these bytes: every change of a byte is found, also where base64 and JSON leave
room for another spelling of the same value.
"""

import json
from base64 import b64decode, b64encode
from typing import Any

from plan_adapter.local.attestation_key import PublicKey, SigningKey
from plan_adapter.model.errors import NotVerifiedError
from plan_adapter.model.readable import one_line

PAYLOAD_TYPE = "application/vnd.in-toto+json"


def sealed(payload: bytes, key: SigningKey) -> bytes:
    """Return the envelope of `payload`, signed with `key`."""
    return _written(payload, key.sign(_signed_content(payload)), key.public.fingerprint)


def unsealed(content: bytes, key: PublicKey) -> bytes:
    """Return the payload of the envelope `content`. Raises NotVerifiedError unless `key` signed it and every byte is as it was written."""
    try:
        envelope: Any = json.loads(content)
        (signature,) = envelope["signatures"]
        kind, key_id = envelope["payloadType"], signature["keyid"]
        payload, signed = b64decode(envelope["payload"], validate=True), b64decode(signature["sig"], validate=True)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise NotVerifiedError("it is not a DSSE envelope with one signature: it was altered or cut off") from None
    if kind != PAYLOAD_TYPE:
        raise NotVerifiedError(f"its payload is of the type {one_line(str(kind))}, not {PAYLOAD_TYPE}")
    if key_id != key.fingerprint:
        raise NotVerifiedError(f"it names the key {one_line(str(key_id))}, not {key.fingerprint} of {key.path}")
    if not key.has_signed(_signed_content(payload), signed):
        raise NotVerifiedError(f"{key.fingerprint} did not sign this content: it was altered, or another key signed it")
    if content != _written(payload, signed, key.fingerprint):
        raise NotVerifiedError("it has the signed content, but not the bytes that were written: it was altered")
    return payload


def _signed_content(payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _written(payload: bytes, signature: bytes, key_id: str) -> bytes:
    envelope = {
        "payload": b64encode(payload).decode("ascii"),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": key_id, "sig": b64encode(signature).decode("ascii")}],
    }
    return f"{json.dumps(envelope, sort_keys=True, separators=(',', ':'))}\n".encode()
