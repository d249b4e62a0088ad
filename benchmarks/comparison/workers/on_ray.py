"""Items go to two worker processes, one of which is killed. What is lost, or done twice?"""

import tempfile

import ray

from benchmarks.comparison import _workers


@ray.remote(max_retries=1)
def one(number: int, folder: str) -> int:
    return _workers.work(number, folder)


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000)
    with tempfile.TemporaryDirectory() as folder:
        values = ray.get([one.remote(number, folder) for number in _workers.ITEMS])
        _workers.show(values, folder, keeps="nothing")


if __name__ == "__main__":
    main()
