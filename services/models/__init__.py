"""How a model's name becomes a model directory: fetching, converting, checking.

    name ─ store ─┬─ package ─ gguf ─ convert ─┬─ directory
                  ├─ hub ──────────────────────┤
                  └─ a local path ─────────────┘

Services read the directory; nothing here needs torch.
"""
