"""Bookings: comments.json, the rules, the booking service, the calendar and the commands."""
