"""The former path of a module, until training uses the new one."""

from graphkit.dist.progress.announcement import digest_of as digest_of
