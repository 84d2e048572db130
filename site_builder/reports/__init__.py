"""The weekly report: page, text and mail."""
