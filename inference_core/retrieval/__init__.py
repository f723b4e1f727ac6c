"""Ranking, written once for every store: analysis, index, fusion."""
