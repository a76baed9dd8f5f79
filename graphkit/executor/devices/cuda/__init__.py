"""The CUDA device, one file for each family of kernels. Importing this package registers them; it needs no card.

A factory makes a `CardKernel`: CUDA C++ and how it is launched. `compiler` makes a card's code of it, `card` launches
that on CuPy's arrays. What has no factory is interpreted on CuPy's arrays.
"""

from __future__ import annotations

from graphkit.executor.devices.cuda import batch_norm as batch_norm
from graphkit.executor.devices.cuda import card as card
from graphkit.executor.devices.cuda import conv as conv
from graphkit.executor.devices.cuda import cumulative as cumulative
from graphkit.executor.devices.cuda import extremes as extremes
from graphkit.executor.devices.cuda import fill as fill
from graphkit.executor.devices.cuda import gather as gather
from graphkit.executor.devices.cuda import guard as guard
from graphkit.executor.devices.cuda import im2col as im2col
from graphkit.executor.devices.cuda import layer_norm as layer_norm
from graphkit.executor.devices.cuda import layer_norm_grad as layer_norm_grad
from graphkit.executor.devices.cuda import losses as losses
from graphkit.executor.devices.cuda import movement as movement
from graphkit.executor.devices.cuda import pad as pad
from graphkit.executor.devices.cuda import pointwise as pointwise
from graphkit.executor.devices.cuda import pool as pool
from graphkit.executor.devices.cuda import products as products
from graphkit.executor.devices.cuda import random as random
from graphkit.executor.devices.cuda import reduce as reduce
from graphkit.executor.devices.cuda import resize as resize
from graphkit.executor.devices.cuda import rotary as rotary
from graphkit.executor.devices.cuda import rows as rows
from graphkit.executor.devices.cuda import scatter as scatter
from graphkit.executor.devices.cuda import softmax as softmax
from graphkit.executor.devices.cuda import top_k as top_k
from graphkit.executor.devices.cuda.card import CudaDevice, device, load

__all__ = ["CudaDevice", "device", "load"]
