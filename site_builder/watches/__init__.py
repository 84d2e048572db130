"""People who wait for a free GPU."""
