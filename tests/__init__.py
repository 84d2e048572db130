"""Tests: a list of promises."""
