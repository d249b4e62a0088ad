"""Which tasks see each other's notes? A worker process is used again and again."""

import time

import ray

from benchmarks.comparison import _notes


@ray.remote
def agent(number: int) -> tuple[bool, ...]:
    own = []
    for _ in range(3):
        _notes.take(number)
        own.append(number)
        time.sleep(0.01)
    return _notes.saw_others(own)


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000)
    seen = ray.get([agent.remote(number) for number in _notes.RUNS])
    _notes.show(seen, offered="local variables, or an actor")


if __name__ == "__main__":
    main()
