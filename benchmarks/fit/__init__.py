"""From rows to what they mean: acceptance, cost of a step, speed-up, each with its uncertainty."""
