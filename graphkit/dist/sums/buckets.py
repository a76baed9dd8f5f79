"""The former path of a module, until training uses the new one."""

from graphkit.dist.collectives.buckets import Flight as Flight
