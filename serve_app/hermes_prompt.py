"""Tools in the Hermes / Qwen format, for models whose chat template does not write them by itself.

The text is that of Qwen2.5's template, on which Hermes models are trained, too.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def messages_with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """`messages` for a template that knows role and content only: tools, calls and their results are text."""
    told = [_told(message) for message in messages]
    if not tools:
        return told
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = INSTRUCTIONS.format(signatures=signatures)
    if told and told[0]["role"] == "system":
        system = {"role": "system", "content": f"{told[0]['content']}\n\n{instructions}"}
        return [system, *told[1:]]
    return [{"role": "system", "content": instructions}, *told]


def _told(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    texts = [message["content"]] if message["content"] or not calls else []
    parts = texts + [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return {"role": message["role"], "content": "\n".join(parts)}
