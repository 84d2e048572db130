"""GPU problems and events."""
