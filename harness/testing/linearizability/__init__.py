"""Check an object whose calls may overlap against itself, called by one at a time."""

from harness.testing.linearizability._assert_linearizable import assert_linearizable

__all__ = ["assert_linearizable"]
