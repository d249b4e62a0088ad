"""One of ten workflows is cancelled, and its code swallows that once. What goes on?"""

import tempfile
import threading

from dbos import DBOS

steps_after = 0
cancelled = threading.Event()
begun = threading.Event()


@DBOS.step()
def step(number: int) -> None:
    global steps_after
    steps_after += number == 3 and cancelled.is_set()


@DBOS.workflow()
def agent(number: int) -> int:
    if number == 3:
        begun.set()
        cancelled.wait()
    try:
        step(number)
    except BaseException:
        pass
    for _ in range(5):
        step(number)
    return number


def main() -> None:
    url = f"sqlite:///{tempfile.mkdtemp()}/dbos.sqlite"
    DBOS(config={"name": "comparison", "system_database_url": url, "log_level": "CRITICAL"})
    DBOS.launch()
    handles = [DBOS.start_workflow(agent, number) for number in range(10)]
    begun.wait()
    DBOS.cancel_workflow(handles[3].workflow_id)
    cancelled.set()
    finished = [handle.get_result() for handle in handles if handle is not handles[3]]
    print(f"others that finished: {len(finished)} of 9")
    try:
        handles[3].get_result()
    except Exception:
        pass
    print(f"steps after it was cancelled: {steps_after} of 5")
    print(f"what it leaves: {handles[3].get_status().status}")
    DBOS.destroy()


if __name__ == "__main__":
    main()
