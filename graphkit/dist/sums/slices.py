"""The former path of a module, until training uses the new one."""

from graphkit.dist.collectives.layout import Slices as Slices
