"""Tests of the bench itself: numbers that nobody checks are believed."""
