"""Commands: what a person starts."""
