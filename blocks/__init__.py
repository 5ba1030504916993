"""The Prefect blocks that the deployments of this repository use, one module each. `make blocks` creates or updates them."""
