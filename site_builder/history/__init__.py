"""state/history.db: samples of the fleet, minute by minute, and what is read back from them."""
