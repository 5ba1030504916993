"""How one run is approved, started, resumed, rolled back and ended."""
