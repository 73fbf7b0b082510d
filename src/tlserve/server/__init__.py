"""Sockets, routes, health, metrics and the nursery tree."""
