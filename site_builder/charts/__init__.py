"""Charts and sparklines from history."""
