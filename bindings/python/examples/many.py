"""Many requests at once, from tasks of an event loop: they share passes through the model."""

import asyncio
import sys
import time

import akunu


async def main() -> None:
    with akunu.Model(sys.argv[1] if len(sys.argv) > 1 else None, parallel=16) as model:
        began = time.perf_counter()
        prompts = [f"The story number {number} is about" for number in range(16)]
        answers = await asyncio.gather(*(model.agenerate(prompt, max_tokens=20) for prompt in prompts))
        tokens = sum(answer.usage["completion_tokens"] for answer in answers)
        print(f"{len(answers)} answers, {tokens} tokens, {time.perf_counter() - began:.2f} s")


asyncio.run(main())
