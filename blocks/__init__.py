"""The Prefect blocks that this repository's deployments use, one module for each; `make blocks` creates or updates them."""
