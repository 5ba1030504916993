"""How results of steps are kept: small ones in the receipt, large ones in a file that the receipt names."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from plan_adapter.local.private_files import make_folder
from plan_adapter.model.errors import StoreError
from plan_adapter.tools.files import write_below


@dataclass(frozen=True, slots=True)
class ResultLimit:
    """Where large results go. A result whose JSON exceeds `limit_bytes` is written below `folder`, by run, step and attempt."""

    limit_bytes: int
    folder: Path

    def keep(self, result: JsonValue, *, run_id: str, name: str) -> JsonValue:
        """Return `result`, or `{path, size, digest}` of the file that holds its JSON. Raise StoreError if the file cannot be written."""
        if isinstance(result, (bool, int, float, type(None))):
            return result
        text = json.dumps(result, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        if len(text) * 4 <= self.limit_bytes:  # UTF-8 uses at most four bytes per character
            return result
        content = text.encode()
        if len(content) <= self.limit_bytes:
            return result
        path = self.folder / run_id / f"{name}.json"
        try:
            make_folder(self.folder)
            make_folder(path.parent)
            root = self.folder.resolve()
            write_below(root, root / run_id / path.name, content, mode=0o600, folder_mode=0o700)
        except OSError as error:
            raise StoreError(f"the result of {name} ({len(content)} bytes) cannot be written to {path}: {error.strerror}") from error
        return {"path": str(path), "size": len(content), "digest": "sha256:" + hashlib.sha256(content).hexdigest()}
