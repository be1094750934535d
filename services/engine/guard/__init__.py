"""Notices output that goes round in circles, by its token ids.

    sampled ids ──▶ repeats (tokens and patterns) ────────┐
                └─▶ echoes (restarts of the same text) ───┴──▶ loop guard ──▶ verdict before the next sample

Stands beside sampling and knows neither templates nor tools: callers say which region of an answer a token belongs to.
"""
