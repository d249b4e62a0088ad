"""How many model providers are there, and of how many models does it know the price?"""

import litellm

from benchmarks.comparison import _offers

if __name__ == "__main__":
    count = f"{len(litellm.provider_list)}, and prices of {len(litellm.model_cost):,} models"
    _offers.show("litellm", providers=count)
