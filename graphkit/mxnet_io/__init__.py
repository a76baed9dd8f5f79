"""MXNet's files: symbol.json (graphs) and .params (arrays) become graphkit models, and .params files are written."""
