"""What the scripted model says: a stand-in for intelligence that knows agents' shells.

It reads the prompt as text, in ChatML with calls and results as ``chatml_json`` writes them.
"""

from __future__ import annotations

import json
import re

FINAL = "All done: hi"
TITLE = "Say hi"
THOUGHT = "<think>\nThe shell can say hi.\n</think>\n\n"
_ARGUMENTS_BY_TOOL: dict[str, object] = {
    "exec_command": {"cmd": "echo hi"},
    "shell_command": {"command": "echo hi"},
    "shell": {"command": ["bash", "-lc", "echo hi"]},
    "local_shell": {"command": ["bash", "-lc", "echo hi"]},
    "exec": {"input": "const r = await tools.exec_command({cmd: 'echo hi'}); text(JSON.stringify(r));"},
    "Bash": {"command": "echo hi", "description": "Say hi"},
    "bash": {"command": "echo hi", "description": "Say hi"},
    "get_weather": {"location": "San Francisco, CA"},
}


def reply(prompt: str, *, thinks: bool) -> str:
    """A call of the shell where there is one and it has not answered yet; then the final text."""
    thought = THOUGHT if thinks else ""
    tools = set(re.findall(r'"name": ?"(\w+)"', prompt))
    tool = next((name for name in _ARGUMENTS_BY_TOOL if name in tools and _is_offered(name, prompt)), None)
    question = prompt.rpartition("<|im_start|>user\n")[2]
    if "<tool_response>" in question:
        return thought + FINAL
    if tool is None:
        return TITLE
    call = json.dumps({"name": tool, "arguments": _ARGUMENTS_BY_TOOL[tool]})
    return f"{thought}<tool_call>\n{call}\n</tool_call>"


def kind_of(answer: str) -> str:
    """``call``, ``final`` or ``side``."""
    return "call" if "<tool_call>" in answer else "final" if FINAL in answer else "side"


def _is_offered(name: str, prompt: str) -> bool:
    """Tools are listed one JSON object a line before the first question; calls in the history are not."""
    listed = prompt.partition("<tools>")[2].partition("</tools>")[0]
    return re.search(rf'"name": ?"{name}"', listed or prompt) is not None
