"""The databases of the store: tables, migrations, and what SQLite and PostgreSQL do differently."""
