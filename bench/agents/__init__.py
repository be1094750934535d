"""Sessions of coding agents: made up from measured shapes, or read from traces; and how they are played to an engine."""
