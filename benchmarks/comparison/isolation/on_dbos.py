"""Which workflows of one process see each other's notes?"""

import tempfile
import time

from dbos import DBOS

from benchmarks.comparison import _notes


@DBOS.step()
def note(number: int) -> int:
    _notes.take(number)
    time.sleep(0.01)
    return number


@DBOS.workflow()
def agent(number: int) -> tuple[bool, ...]:
    return _notes.saw_others([note(number) for _ in range(3)])


def main() -> None:
    url = f"sqlite:///{tempfile.mkdtemp()}/dbos.sqlite"
    DBOS(config={"name": "comparison", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    handles = [DBOS.start_workflow(agent, number) for number in _notes.RUNS]
    _notes.show([handle.get_result() for handle in handles], offered="results of its steps")
    DBOS.destroy()


if __name__ == "__main__":
    main()
