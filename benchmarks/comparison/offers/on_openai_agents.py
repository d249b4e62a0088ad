"""How many model providers are there?"""

import pkgutil

from agents.extensions import models

from benchmarks.comparison import _offers

if __name__ == "__main__":
    names = [module.name for module in pkgutil.iter_modules(models.__path__)]
    bridges = sorted(name.removesuffix("_provider") for name in names if name.endswith("_provider"))
    _offers.show("openai-agents", providers=f"OpenAI; through {' and '.join(bridges)} theirs")
