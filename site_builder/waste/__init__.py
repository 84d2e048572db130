"""GPUs that are taken or booked and not used."""
