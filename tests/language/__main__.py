"""Write the catalogues again after a change of wording, and name the translations that are missing."""

import sys

from tests.language import write_all

if missing := [f"{language}: {text}" for language, text in write_all()]:
    sys.exit("\n".join(["not translated:", *missing]))
