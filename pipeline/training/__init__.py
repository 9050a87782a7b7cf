"""Training on one worker: optimizer step, loop and checkpoints."""
