"""Readers: one module for each dump format; bytes in, what was understood and problems out; pure."""
