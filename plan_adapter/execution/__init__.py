"""How an approved plan is executed. Knows no Prefect and no database: it is handed what it needs."""
