"""How far ahead of what is done is a source read: by all at once, and with ray.wait()?

This is the pattern "Using ray.wait to limit the number of pending tasks" of its documentation.
"""

import ray

from benchmarks.comparison._source import AT_ONCE, Source, show


@ray.remote
def agent(number: int) -> int:
    return number


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000)
    plain, bounded = Source(), Source()
    results = ray.get([agent.remote(number) for number in plain])
    assert results == sorted(results)
    pending: list[ray.ObjectRef] = []
    for number in bounded:
        pending.append(agent.remote(number))
        if len(pending) == AT_ONCE:
            ready, pending = ray.wait(pending)
            ray.get(ready)
            bounded.done()
    show(plain=plain, bounded=bounded, order="of the refs; by ray.wait(): as they come")


if __name__ == "__main__":
    main()
