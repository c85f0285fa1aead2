"""How a conversation is written down for the model: ChatML after the beginning token."""

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def render(messages: list[dict[str, str]]) -> str:
    """What TEMPLATE makes of messages, without the beginning token."""
    return "".join(f"{START}{m['role']}\n{m['content']}{STOP}\n" for m in messages)
