"""What every feature uses: the types, the clock, files, locks, text and time."""
