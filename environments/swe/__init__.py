"""Grading fixes of real projects: log parsers, verdicts, and projects without a history."""
