"""Settings: what can be set, where it is read from, and the command that prints it."""
