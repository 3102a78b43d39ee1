"""torch: models, rendering, samples, packing, losses, algorithms, the loop and its checkpoints."""
