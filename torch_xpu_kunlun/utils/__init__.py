"""Helpers for those who build on the device."""
