"""Engines, the gateway in front of them, routing, the registry, promotions."""
