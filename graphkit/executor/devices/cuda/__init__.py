"""The CUDA device, with one file for each family of kernels. Importing this package registers them, without a GPU.

A factory returns a `CardKernel`: CUDA C++ and how it is launched. `compiler` compiles it for a GPU, and `card` (the
module of the GPU device) launches it on CuPy's arrays. Operators without a factory are interpreted on CuPy's arrays.
"""

from __future__ import annotations

from graphkit.executor.devices.cuda import card as card
from graphkit.executor.devices.cuda import float8 as float8
from graphkit.executor.devices.cuda import products as products
from graphkit.executor.devices.cuda.attention import attention as attention
from graphkit.executor.devices.cuda.attention import gradient as gradient
from graphkit.executor.devices.cuda.card import CudaDevice, cards, device, load
from graphkit.executor.devices.cuda.elementwise import fill as fill
from graphkit.executor.devices.cuda.elementwise import guard as guard
from graphkit.executor.devices.cuda.elementwise import pointwise as pointwise
from graphkit.executor.devices.cuda.elementwise import random as random
from graphkit.executor.devices.cuda.movement import copies as copies
from graphkit.executor.devices.cuda.movement import gather as gather
from graphkit.executor.devices.cuda.movement import scatter as scatter
from graphkit.executor.devices.cuda.resampling import pad as pad
from graphkit.executor.devices.cuda.resampling import resize as resize
from graphkit.executor.devices.cuda.rnn import backward as backward
from graphkit.executor.devices.cuda.rnn import forward as forward
from graphkit.executor.devices.cuda.rows import batch_norm as batch_norm
from graphkit.executor.devices.cuda.rows import cumulative as cumulative
from graphkit.executor.devices.cuda.rows import extremes as extremes
from graphkit.executor.devices.cuda.rows import layer_norm as layer_norm
from graphkit.executor.devices.cuda.rows import layer_norm_grad as layer_norm_grad
from graphkit.executor.devices.cuda.rows import losses as losses
from graphkit.executor.devices.cuda.rows import reduce as reduce
from graphkit.executor.devices.cuda.rows import rotary as rotary
from graphkit.executor.devices.cuda.rows import softmax as softmax
from graphkit.executor.devices.cuda.rows import top_k as top_k
from graphkit.executor.devices.cuda.windows import conv as conv
from graphkit.executor.devices.cuda.windows import im2col as im2col
from graphkit.executor.devices.cuda.windows import pool as pool

__all__ = ["CudaDevice", "cards", "device", "load"]
