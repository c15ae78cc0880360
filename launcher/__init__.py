"""elasticrun: start a script on workers, as torchrun does."""
