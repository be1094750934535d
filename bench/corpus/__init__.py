"""Texts that the benches encode: sessions of a coding agent, and prompts that grow in awkward places."""
