"""How much does a queue with 20 workflows in 2 s start, and does it go over?

In real time, so a tenth of the period is allowed for: it counts when a workflow leaves the
database, and its thread starts a little later.
"""

import tempfile
import time
from bisect import bisect_right

from dbos import DBOS

PERIOD = 2.0
started: list[float] = []


@DBOS.workflow()
def call() -> None:
    started.append(time.monotonic())


def main() -> None:
    url = f"sqlite:///{tempfile.mkdtemp()}/dbos.sqlite"
    DBOS(config={"name": "comparison", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue("calls", limiter={"limit": 20, "period": PERIOD}, polling_interval_sec=0.1)
    for count in (1, 80):  # The first is a warm-up.
        for handle in [DBOS.enqueue_workflow("calls", call) for _ in range(count)]:
            handle.get_result()
        time.sleep(PERIOD)
    DBOS.destroy()
    times = sorted(started[1:])
    most = max(
        index + 1 - bisect_right(times, moment - PERIOD * 0.9) for index, moment in enumerate(times)
    )
    # 60 after the first 20 need at least three periods.
    print(f"~ share of the limit used: {3 * PERIOD / (times[-1] - times[0]):.0%}")
    print(f"~ most in any minute: {most} of 20 in 2 s")
    print("when there is no room: the call waits")


if __name__ == "__main__":
    main()
