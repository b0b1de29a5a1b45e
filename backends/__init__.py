"""Backends: each folder knows exactly one vendor and imports only ``kvcore``, never a sibling."""
