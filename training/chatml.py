"""The prompt format of conversations: ChatML after the begin-of-text token."""

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def render(messages: list[dict[str, str]]) -> str:
    """TEMPLATE rendered for messages, without the begin-of-text token."""
    return "".join(f"{START}{m['role']}\n{m['content']}{STOP}\n" for m in messages)
