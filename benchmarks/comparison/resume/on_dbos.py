"""Workflows on a queue are killed and started again. What runs twice?"""

import time

from dbos import DBOS, SetWorkflowID

from benchmarks.comparison import _killed, _processes


@DBOS.step()
def step(number: int) -> int:
    if _killed.begin(number):
        time.sleep(3600)
    return _killed.end(number)


@DBOS.workflow()
def one(number: int) -> int:
    return step(number)


def main() -> None:
    url = f"sqlite:///{_processes.folder()}/dbos.sqlite"
    DBOS(config={"name": "comparison", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue("items", concurrency=_killed.AT_ONCE, polling_interval_sec=0.1)
    handles = []
    for number in _killed.ITEMS:
        with SetWorkflowID(f"item {number}"):  # One that exists isn't made again.
            handles.append(DBOS.enqueue_workflow("items", one, number))
    for handle in handles:
        handle.get_result()
    DBOS.destroy()


if __name__ == "__main__":
    if _processes.is_child():
        main()
    else:
        _killed.show("benchmarks.comparison.resume.on_dbos")
