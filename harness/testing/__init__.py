"""Try concurrent agents: find shared state, replay schedules, and simulate a provider."""
