"""Malformed traffic: a grammar of events, what holds for every answer, and two ways to run them."""
