"""Consul: its HTTP API, the KV store, and which builder leads."""
