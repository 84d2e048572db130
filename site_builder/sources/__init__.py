"""Sources: the only modules that touch files, Consul and SQLite."""
