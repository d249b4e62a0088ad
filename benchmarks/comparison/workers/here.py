"""Items go to two worker processes, one of which is killed. What is lost, or done twice?"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio

from benchmarks.comparison import _processes, _workers


async def one(record: dict[str, Any]) -> int:
    return await trio.to_thread.run_sync(_workers.work, record["number"], record["folder"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        records = [{"number": number, "folder": folder} for number in _workers.ITEMS]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        words = ["batch", "benchmarks.comparison.workers.here:one", "--workers", "2"]
        words += ["--input", "-", "--format", "jsonl", "--key", "number", "--limit", "2"]
        words += ["--output", f"{folder}/out.jsonl", "--journal", f"{folder}/journal.db"]
        subprocess.run(
            [sys.executable, "-m", "harness", *words, "--quiet"],
            input=lines,
            text=True,
            capture_output=True,
            check=True,
            timeout=_processes.SECONDS_AT_MOST,
        )
        results = (Path(folder) / "out.jsonl").read_text().splitlines()
        values = [json.loads(line)["value"] for line in results]
        _workers.show(values, folder, keeps="the journal, and what is done in it")


if __name__ == "__main__":
    main()
