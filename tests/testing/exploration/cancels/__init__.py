"""Programs that a cancel hurts, from public reports, each with one that does the same rightly."""
