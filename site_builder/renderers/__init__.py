"""Renderers: one module for each output; pure."""
