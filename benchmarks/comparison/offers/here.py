"""How many model providers and scorers are there?"""

from benchmarks.comparison import _offers
from harness import evals, models

PROVIDERS = ("OpenAIModel", "AnthropicModel", "LocalModel")
SCORERS = ("AgentJudge", "Choice", "Contains", "Exact", "Fields", "Number")

if __name__ == "__main__":
    assert set(PROVIDERS) <= set(models.__all__)
    assert set(SCORERS) <= set(evals.__all__)
    providers = f"{len(PROVIDERS)}, and what speaks OpenAI's or Anthropic's dialect"
    _offers.show("trio-harness", providers=providers, scorers=len(SCORERS))
