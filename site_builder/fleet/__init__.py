"""The state of each host and GPU, and why."""
