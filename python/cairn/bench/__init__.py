"""Measures cairn beside PyTorch's own checkpoints, safetensors and the hardware: python -m cairn.bench."""
