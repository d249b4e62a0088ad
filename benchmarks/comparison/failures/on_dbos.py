"""What is left of ten workflows when two fail?"""

import tempfile
import time

from dbos import DBOS

from benchmarks.comparison._failing import (
    ITEMS,
    NOTHING,
    STEP_SECONDS,
    ModelDownError,
    answer,
    show,
)


@DBOS.workflow()
def agent(number: int) -> str:
    time.sleep(number * STEP_SECONDS)
    return answer(number)


def main() -> None:
    url = f"sqlite:///{tempfile.mkdtemp()}/dbos.sqlite"
    DBOS(config={"name": "comparison", "system_database_url": url, "log_level": "CRITICAL"})
    DBOS.launch()
    collected = []
    for handle in [DBOS.start_workflow(agent, number) for number in ITEMS]:
        try:
            collected.append(handle.get_result())
        except ModelDownError:
            pass
    DBOS.destroy()
    show(
        first_error="all, by their handles; the others run on",
        collect=f"{len(collected)} of 10, by a loop",
        quorum=NOTHING,
        threshold=NOTHING,
    )


if __name__ == "__main__":
    main()
