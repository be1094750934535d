"""Small chat templates that treat messages as real families' templates do."""

from functools import cache

from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.registry import CHATML_JSON, DIALECTS
from services.tokenizer.prompt.layout import PromptWriter
from services.tokenizer.prompt.template import ChatTemplate

END = "<|im_end|>"

TRIMMING = """{{- bos_token }}
{%- for m in messages %}
{{- '<|start|>' + m['role'] + '<|stop|>\\n\\n' + m['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\\n\\n' }}{% endif %}"""
"""As Llama 3's."""

THINKING = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- '<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{%- set content = m.content %}
{%- set reasoning = m.reasoning_content | default('') %}
{%- if not reasoning and '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or reasoning) %}
{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{ content }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
"""As Qwen3's: native tools, and thinking is kept only behind the last question."""

MACRO = """{%- macro show(content) %}{{ content }}{% endmacro %}
{%- for m in messages %}
{%- set content = show(m.content) | trim %}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""As Qwen3.5's, in which every content goes through a macro."""

NAMING = """{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + ' ' + (m.name or '') + (m.tool_call_id or '') + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Writes who speaks and what a result answers."""

_TURN = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

SYSTEM_FIRST = f"""{{%- for m in messages %}}
{{%- if m.role == 'system' and not loop.first %}}{{{{ raise_exception('a system message inside') }}}}{{% endif %}}
{{{{- '' }}}}{_TURN}
{{%- endfor %}}{_PROMPT}"""
"""As Qwen3.5's: a system message stands at the beginning."""

DROPPING = f"""{{%- for m in messages %}}{{% if m.role != 'system' or loop.first %}}{_TURN}{{% endif %}}
{{%- endfor %}}{_PROMPT}"""
"""Shows the first system message only."""

HOISTING = f"""{{%- for m in messages %}}{{% if m.role == 'system' %}}{_TURN}{{% endif %}}{{% endfor %}}
{{%- for m in messages %}}{{% if m.role != 'system' %}}{_TURN}{{% endif %}}{{% endfor %}}{_PROMPT}"""
"""Collects system messages at the beginning."""

ALTERNATING = f"""{{%- for m in messages %}}
{{%- if m.role not in ['user', 'assistant'] or (m.role == 'user') != (loop.index0 % 2 == 0) %}}
{{{{- raise_exception('roles must alternate') }}}}
{{%- endif %}}{_TURN}
{{%- endfor %}}{_PROMPT}"""
"""As Gemma's: questions and answers in turn, nothing else."""

ASKED = f"""{{%- if not messages | selectattr('role', 'equalto', 'user') | list %}}
{{{{- raise_exception('nobody asks') }}}}{{% endif %}}
{{%- for m in messages %}}{_TURN}{{% endfor %}}{_PROMPT}"""
"""Wants a question somewhere."""

SHOUTING = """{%- for m in messages %}{{ m.role + ': ' + m.content | upper + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""
"""As nobody's."""


def writer_of(source: str, dialect: Dialect = CHATML_JSON) -> PromptWriter:
    return _writer(source, dialect.name)


@cache
def _writer(source: str, dialect: str) -> PromptWriter:
    return PromptWriter(ChatTemplate(source, {"bos_token": "<|start|>"}), DIALECTS[dialect], END)
