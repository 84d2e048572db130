"""Parse dates, times and durations as people write them."""
