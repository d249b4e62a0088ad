"""How much does a Router with rpm=60 let through around the full minute, and then?

Its clock is the wall's; here it is put forward by hand, from 12:00:59 to 12:01:00.
"""

import asyncio
import datetime

import litellm
from litellm.router_strategy import lowest_tpm_rpm_v2

LIMIT = 60
now = datetime.datetime(2026, 1, 1, 12, 0, 59, tzinfo=datetime.UTC)


async def main() -> None:
    global now
    lowest_tpm_rpm_v2.get_utc_datetime = lambda: now
    router = litellm.Router(
        model_list=[
            {
                "model_name": "small",
                "litellm_params": {"model": "openai/small", "api_key": "k", "rpm": LIMIT},
            }
        ],
        routing_strategy="usage-based-routing-v2",
        num_retries=0,
    )
    let_through = 0
    refused = ""
    for _ in range(2):
        for _ in range(LIMIT + 5):
            try:
                await router.acompletion(
                    model="small",
                    messages=[{"role": "user", "content": "hello"}],
                    mock_response="done",
                )
                let_through += 1
            except litellm.RateLimitError as error:
                refused = type(error).__name__
        now += datetime.timedelta(seconds=1)
    print(f"most in any minute: {let_through:,} of {LIMIT}")
    print(f"when there is no room: {refused}, at once")


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    asyncio.run(main())
