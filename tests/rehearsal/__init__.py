"""Tests of dry runs."""
