"""The former path of a module, until training uses the new one."""

from graphkit.dist.collectives.row_sparse import RowSparse as RowSparse
from graphkit.dist.collectives.row_sparse import total as total
