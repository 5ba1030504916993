"""The command line `plan`: one module per verb, and what they share."""
