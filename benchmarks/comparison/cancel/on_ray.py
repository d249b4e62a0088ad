"""One of two tasks is cancelled, and its code swallows that once. What goes on?"""

import time

import ray


@ray.remote
class Steps:
    def __init__(self) -> None:
        self.begun = 0
        self.after = 0

    def begin(self) -> None:
        self.begun += 1

    def add(self) -> None:
        self.after += 1

    def both(self) -> tuple[int, int]:
        return self.begun, self.after


@ray.remote
def agent(number: int, steps: ray.actor.ActorHandle) -> str:
    ray.get(steps.begin.remote())
    swallowed = "nothing"
    try:
        for _ in range(200):
            time.sleep(0.02)
    except BaseException as error:
        swallowed = type(error).__name__
    for _ in range(5):
        time.sleep(0.01)
        if number == 0:
            ray.get(steps.add.remote())
    return f"swallowed {swallowed}"


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000)
    steps = Steps.remote()
    refs = [agent.remote(number, steps) for number in range(2)]
    while ray.get(steps.both.remote())[0] < 2:
        time.sleep(0.05)
    time.sleep(1)  # Both are well under way.
    ray.cancel(refs[0])
    print(f"others that finished: {len(ray.get(refs[1:]))} of 1")
    try:
        left = f"a result: {ray.get(refs[0])}"
    except ray.exceptions.RayError as error:
        left = type(error).__name__
    print(f"steps after it was cancelled: {ray.get(steps.both.remote())[1]} of 5")
    print(f"what it leaves: {left}")


if __name__ == "__main__":
    main()
