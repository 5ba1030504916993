"""The programs that are compared. Each runs in an environment of its own, so this folder imports nothing of this package but `by_us`."""
