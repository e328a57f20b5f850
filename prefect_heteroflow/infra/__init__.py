"""Adapters that observe and limit what runs on this node: containers, processes, GPUs."""
