"""The pages of `plan guide`: what they say is generated from the code, or typed by a test, and their links work."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "plan_adapter" / "guide"
