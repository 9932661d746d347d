"""Tests that drive real processes over real sockets."""
