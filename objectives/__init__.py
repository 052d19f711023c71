"""What a training process needs, whoever drives it: losses, gradient cache, optimizers, checkpoints."""
