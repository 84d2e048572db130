"""Alerts: from a condition to a delivered notification."""
