"""Programs as users write them. A test runs each, and `make check` checks their types strictly."""
