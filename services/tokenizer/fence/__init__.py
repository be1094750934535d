"""Fences, the tokenizer's half: which program an answer must follow, derived from what the caller asked.

tool schemas → parameters.py, texts.py      what may be said of them in a program
a dialect's spelling → calls.py             programs of calls; each dialect's ``fence`` fills in its spelling
output formats → output.py
all of a request → fence.py                 what goes to the engine with the prompt
"""
