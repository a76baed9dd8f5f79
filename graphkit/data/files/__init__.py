"""Data in files of arrays: the digits of the package, idx, .npz."""
