"""`make agentdojo`: all 97 user tasks and 949 pairs of AgentDojo, as goals with each approver and as plans. It writes the guide's table."""

import sys
import time

from tests.agentdojo.suites import MISSING
from tests.agentdojo.table import ALL, run_all, write_page


def main() -> int:
    """Run everything, print the table, write it into the guide, and return the exit code."""
    if MISSING:
        print(f"not installed: {', '.join(MISSING)}; run `.ci/setup install`", file=sys.stderr)
        return 1
    began = time.monotonic()
    found = run_all(ALL)
    print(found.markdown())
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    write_page(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
