"""Networks in PyTorch: one model, stacks of models, and one optimizer step."""
