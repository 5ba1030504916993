"""Write the references in the guide again, after a change of a verb, a setting, a problem or a public name."""

from tests.guide import GUIDE
from tests.guide.references import REFERENCES

for name, text in REFERENCES.items():
    (GUIDE / name).write_text(text(), encoding="utf-8")
