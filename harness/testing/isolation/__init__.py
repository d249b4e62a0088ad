"""Find what runs of an agent function share, name it, and prove it."""
