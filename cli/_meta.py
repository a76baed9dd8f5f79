"""Keys of a click.Context's `meta`."""

from __future__ import annotations

# All arguments of the command line, for commands that start further processes with them.
ARGUMENTS = "graphkit.arguments"
# Parameter files of MXNet by the path of the symbol that they follow on the command line.
MXNET_PARAMETERS = "graphkit.mxnet_parameters"
