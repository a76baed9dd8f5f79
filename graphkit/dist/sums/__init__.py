"""The former path of a module, until training uses the new one."""
