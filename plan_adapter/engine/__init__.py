"""The Prefect side: plans as flows, steps as task runs, gates as forms, and the server that shows them."""
