"""Decide: what state each host and each GPU is in, and why. Pure; what it is told, it believes."""
