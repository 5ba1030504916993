"""Documents of other programs, turned into plans."""
