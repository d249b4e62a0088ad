"""How much does a queue with 20 workflows in 2 s start, and does it go over?

In real time, by the stamps of its database: a workflow's thread starts a little later.
"""

import tempfile
from bisect import bisect_right

from dbos import DBOS

PERIOD = 2.0


@DBOS.workflow()
def call() -> None:
    pass


def main() -> None:
    url = f"sqlite:///{tempfile.mkdtemp()}/dbos.sqlite"
    DBOS(config={"name": "comparison", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue("calls", limiter={"limit": 20, "period": PERIOD}, polling_interval_sec=0.1)
    times = []
    for handle in [DBOS.enqueue_workflow("calls", call) for _ in range(80)]:
        handle.get_result()
        times.append(handle.get_status().dequeued_at / 1_000)
    DBOS.destroy()
    times.sort()
    most = max(
        index + 1 - bisect_right(times, moment - PERIOD) for index, moment in enumerate(times)
    )
    # 60 after the first 20 need at least three periods.
    print(f"~ share of the limit used: {3 * PERIOD / (times[-1] - times[0]):.0%}")
    print(f"most in any minute: {most} of 20 in 2 s")
    print("when there is no room: the call waits")


if __name__ == "__main__":
    main()
