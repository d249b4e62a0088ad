"""Two callers wait for one task; one of them cancels it. Does the other get it?"""

import time

import ray


@ray.remote
class Begun:
    def __init__(self) -> None:
        self.begun = False

    def set(self) -> None:
        self.begun = True

    def get(self) -> bool:
        return self.begun


@ray.remote
def load(begun: ray.actor.ActorHandle) -> str:
    ray.get(begun.set.remote())
    for _ in range(500):
        time.sleep(0.02)
    return "the page"


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000)
    begun = Begun.remote()
    ref = load.remote(begun)
    while not ray.get(begun.get.remote()):
        time.sleep(0.05)
    time.sleep(1)  # It is well under way.
    ray.cancel(ref)
    try:
        other = repr(ray.get(ref))
    except ray.exceptions.RayError as error:
        other = type(error).__name__
    print("the one cancelled: the task is cancelled, for all who have its ObjectRef")
    print(f"the other: {other}")
    print("calls: 1")


if __name__ == "__main__":
    main()
