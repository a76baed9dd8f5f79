"""Graphs whose groups of nodes run on several devices: parts with programs of their own, which pass values on."""
