"""The fault tests: processes of a run are killed where it matters, and what is left is compared with a world outside."""
