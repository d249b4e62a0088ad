"""What is left of ten tasks when two fail?"""

import time

import ray

from benchmarks.comparison._failing import (
    ITEMS,
    NOTHING,
    STEP_SECONDS,
    ModelDownError,
    answer,
    show,
)


@ray.remote(num_cpus=0.1)
def agent(number: int) -> str:
    time.sleep(number * STEP_SECONDS)
    return answer(number)


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000)
    try:
        left = len(ray.get([agent.remote(number) for number in ITEMS]))
    except ModelDownError:
        left = 0
    collected = 0
    for ref in [agent.remote(number) for number in ITEMS]:
        try:
            ray.get(ref)
            collected += 1
        except ModelDownError:
            pass
    ready, pending = ray.wait([agent.remote(number) for number in ITEMS], num_returns=3)
    for ref in pending:
        ray.cancel(ref)
    show(
        first_error=f"{left} from that get(); the others run on",
        collect=f"{collected} of 10, by a loop",
        quorum=f"{len(ready)} that ended, by wait(), failed ones too",
        threshold=NOTHING,
    )


if __name__ == "__main__":
    main()
