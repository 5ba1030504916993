"""Execution plans as dynamically built Prefect flows: checked, approved, run, resumed and recorded.

This is the first page of public names. The rest is in `plan_adapter.plans`, `.runs`, `.gates`, `.tools`, `.agent`, `.store` and `.errors`.
A name is imported when it is first used: `import plan_adapter` alone imports neither Prefect nor a database.
"""

from plan_adapter.public_names import offer_names

offer_names(__name__)
