"""Offline A/B evaluation of two or more models on the same impressions."""
