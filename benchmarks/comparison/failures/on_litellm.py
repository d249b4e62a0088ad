"""What is left of ten completions in a batch when two fail? The first reply: see below.

`batch_completion_models` asks several models and returns the first reply.
"""

import litellm

from benchmarks.comparison._failing import ITEMS, NOTHING, show


def main() -> None:
    litellm.suppress_debug_info = True
    messages = [[{"role": "user", "content": f"question {number}"}] for number in ITEMS]
    # A model that doesn't exist fails without a network; the others are mocked.
    ended = litellm.batch_completion(
        model="openai/small", api_key="k", messages=messages, mock_response="done"
    )
    failed = litellm.batch_completion(model="nowhere/none", messages=messages[:2])
    collected = [reply for reply in [*ended[2:], *failed] if not isinstance(reply, Exception)]
    first = litellm.batch_completion_models(
        models=["openai/small", "openai/large"],
        api_key="k",
        messages=messages[0],
        mock_response="done",
    )
    show(
        first_error=NOTHING,
        collect=f"{len(collected)} of 10",
        quorum=f"the first one: {first.choices[0].message.content}",
        threshold=NOTHING,
    )


if __name__ == "__main__":
    main()
