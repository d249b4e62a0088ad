"""How many model providers and scorers are there?"""

import inspect_ai.model  # noqa: F401 (registers the providers)
from inspect_ai import scorer
from inspect_ai._util.registry import registry_find, registry_info

from benchmarks.comparison import _offers

if __name__ == "__main__":
    found = registry_find(lambda info: info.type == "modelapi")
    names = {registry_info(provider).name for provider in found}
    scorers = registry_find(lambda info: info.type in ("scorer", "metric"))
    assert scorer
    _offers.show(
        "inspect-ai",
        providers=len(names - {"inspect_ai/mockllm", "inspect_ai/none"}),
        scorers=f"{len(scorers)} scorers and metrics",
    )
