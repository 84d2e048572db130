"""Dates, times and durations as people write them."""
