"""Standing approvals: which runs one covers, whether one makes sense, and the file beside a runbook that holds one."""

from plan_adapter.standing.coverage import covers, covers_step, digest_of, find_misfits, find_standing_problems, standing_of
from plan_adapter.standing.files import find_standing_file, read_standing_file, signature_path, standing_path, write_standing_file

__all__ = [
    "covers",
    "covers_step",
    "digest_of",
    "find_misfits",
    "find_standing_file",
    "find_standing_problems",
    "read_standing_file",
    "signature_path",
    "standing_of",
    "standing_path",
    "write_standing_file",
]
