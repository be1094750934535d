"""The default model's tokenizer with a chat template that thinks."""

from pathlib import Path

THINKING_TEMPLATE = """\
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
{%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
{%- set ns.last = loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and message.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
"""As Qwen3's: thinking stays in the history as long as the user has said nothing since, an empty block never does."""


def write_thinking_model(target: Path, source: Path) -> Path:
    """Fills the new directory ``target`` from the model in ``source``."""
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        (target / name).symlink_to(source / name)
    (target / "chat_template.jinja").write_text(THINKING_TEMPLATE)
    return target
