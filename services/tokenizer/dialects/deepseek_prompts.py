"""The texts that DeepSeek's published encoders put into a prompt; the models were trained on them to the byte."""

TOOLS_V3_2 = """\
## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<{calls}>" block like the following as part of your reply to the user:
<{calls}>
<{invoke} name="$FUNCTION_NAME">
<{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{parameter}>
...
</{invoke}>
<{invoke} name="$FUNCTION_NAME2">
...
</{invoke}>
</{calls}>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should \
use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types \
(numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. \
Here is an example:

<{calls}>
...
</{calls}>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
{schemas}
</functions>
"""

TOOLS_V4 = """\
## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{calls}>" \
block like the following:

<{calls}>
<{invoke} name="$TOOL_NAME">
<{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{parameter}>
...
</{invoke}>
<{invoke} name="$TOOL_NAME2">
...
</{invoke}>
</{calls}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
"""For V4 and V4.1, with each one's tags."""

MAXIMUM_EFFORT_V4 = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, \
and rejected hypothesis to ensure absolutely no assumption is left unchecked.

"""

EFFORT_V4_1 = """\
Reasoning Effort: {budget} (range 1-100, the higher the value, the more thorough the reasoning)

"""
