"""Checks after generation: whether what the model wrote keeps what its fence could not enforce.

what an answer's values must be like → values.py, on whether they are → schema_checker.py, which asks another
process → schema_worker.py
"""
