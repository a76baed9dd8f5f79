"""The former path of a module, until training uses the new one."""

from graphkit.dist.agreement import LIMIT as LIMIT
