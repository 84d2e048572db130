"""Budgets, measured."""
