"""Plug-in denoising of behaviour sequences for ranking models."""
