"""Guesses tokens ahead, so that one step computes several: what is guessed, and how many are worth it."""
