"""Golden records: what is stored, digested or printed as JSON, as an earlier commit made it. Code may be renamed; these may not change.

- `plans.jsonl`: documents of plans, with the digests of the plan, of its approval, of its standing approval and of the calls of its steps.
- `store.sql`: a store with runs that ended, wait, have unknown outcomes or were erased; `erased.jsonl`: an export of the erased run;
  `erased.json`: one as earlier versions wrote it. `postgresql.sql`: the tables of revision 0001 on PostgreSQL.
- `stores`: stores of earlier schemas and versions, with runs of the runbooks (`stores.py`).
- `outputs.json`: what each verb prints with `--json`.
- `words.json`: the words that are stored: tables, columns, triggers, and the values of the enumerations.

`python -m tests.golden --new` adds the plans and words that have no record yet. `python -m tests.golden` writes all of them again, but
never `erased.json` and `postgresql.sql`: only for a change that is meant to change what is stored, which the changelog then names.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
