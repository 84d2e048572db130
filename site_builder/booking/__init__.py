"""Where bookings are made, changed and released: one way for the command line, the page and programs."""
