"""Passes over If, Loop and Scan, and recurrent layers."""
