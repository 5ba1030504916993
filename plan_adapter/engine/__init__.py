"""The door to Prefect: plans as flows, steps as task runs, and the server that they are shown on."""
