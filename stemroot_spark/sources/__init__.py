"""Trace sources: finding them, recognising them by content, reading their kernel rows."""
