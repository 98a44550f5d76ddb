"""Consumer groups of real clients, each member a process of its own that can be stopped, stalled and killed."""
