"""Grading fixes of real projects: log parsers, verdicts, patches, and projects without a history."""
