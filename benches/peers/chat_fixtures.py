#!/usr/bin/env python3
"""Writes tests/fixtures/chat_templates.json: chat templates that use what published ones use, and what
transformers makes of them. The templates are ours."""

import json
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

TURNS = [
    {"role": "user", "content": "  What is 2 + 2?\n"},
    {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nFour."},
    {"role": "user", "content": "Sind Sie sicher? <b>\"'&"},
]
SYSTEM = [{"role": "system", "content": "Be brief."}]
TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}

# Marks around each message, and a message of the system where there is none.
MARKED = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '[system|Answer.]' }}{% endif %}{{ '[' + message['role'] + '|' + message['content'] + ']' }}\
{% if loop.last and add_generation_prompt %}{{ '[assistant|' }}{% endif %}{% endfor %}"""

# The system's message is put into the first of the person's; sides take turns.
TURNWISE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set told = '((' ~ messages[0]['content'] | trim ~ ')) ' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set told = '' %}
    {%- set rest = messages %}
{%- endif %}
{%- for message in rest %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('The sides take turns: person, model, person') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- 'Q: ' + (told if loop.first else '') + message.content.strip() }}
    {%- elif message.role == 'assistant' %}
        {{- ' A: ' + message.content.strip() + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- ' A:' }}
{%- endif %}
"""

# What was thought is left out of answers before the last question, as far as a namespace knows which one that is.
THINKING = """{%- set found = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if found.searching and message.role == "user" and message.content is string \
and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set found.searching = false %}
        {%- set found.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" and '</think>' in content and loop.index0 < found.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<' ~ message.role ~ '>' ~ content ~ '</' ~ message.role ~ '>\\n' }}
{%- endfor %}
{%- if tools is not none or documents %}{{- 'tools' }}{%- endif %}
{%- if enable_thinking is defined and enable_thinking is false %}{{- 'no thinking' }}{%- endif %}
{{- '<assistant>' }}
"""

# Blocks on lines of their own, whose line breaks are no part of the text; what only transformers has; loops that end early.
BLOCKS = """Year of {{ strftime_now("%Y") | length }} digits
{% macro said(message, mark='-') %}
  {{ mark }} {{ message.get('name', message['role'] | upper) }}: {{ message['content'] | trim }}
{% endmacro %}
{% for message in messages %}
    {% if message['role'] == 'system' %}
        {% continue %}
    {% endif %}
    {% if message['role'] == 'assistant' %}
        {%- generation -%}
        {{ said(message, mark='*') }}
        {%- endgeneration %}
    {% else %}
{{ said(message) }}
    {% endif %}
    {% if loop.index > 2 %}{% break %}{% endif %}
{% endfor %}
{% for key, value in {'a': 1, 'b': none}.items() %}{{ key }}={{ value if value is not none else '?' }};{% endfor %}

{{ pad_token | default('no padding') }} {{ ['x', 'y'] | join('+') }} {{ 'A-B'.lower().replace('-', '_') }}
"""


def case(name, template, messages):
    names = {key: value["content"] if isinstance(value, dict) else value for key, value in TOKENS.items() if value}
    try:
        [text], _ = render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=True, **names
        )
        outcome = {"text": text}
    except Exception as error:  # whatever a template raises
        outcome = {"error": str(error)}
    return {"name": name, "template": template, "messages": messages, **outcome}


def main():
    cases = [
        case(f"{name}, {len(messages)} messages from {messages[0]['role']}", template, messages)
        for name, template in {"marked": MARKED, "turnwise": TURNWISE, "thinking": THINKING, "blocks": BLOCKS}.items()
        for messages in (TURNS[:1], TURNS, SYSTEM + TURNS, TURNS[1:])
    ]
    path = Path(__file__).parents[2] / "tests/fixtures/chat_templates.json"
    path.write_text(json.dumps({"special_tokens": TOKENS, "cases": cases}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
