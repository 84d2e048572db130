"""Consul: its HTTP API, its KV store, and the election of the leading builder."""
