"""The former path of a module, until training uses the new one."""

from graphkit.dist.wire.messages import Channels as Channels
