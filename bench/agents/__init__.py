"""Sessions of coding agents, made up from measured shapes or read from traces, and how an engine is asked them."""
