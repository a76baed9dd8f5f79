"""The gradient rules of If, Loop and Scan. They produce If, Loop and Scan nodes, which are differentiable, too."""

from __future__ import annotations

from graphkit.autodiff.branches import if_gradient
from graphkit.autodiff.loops import loop_gradient

CONTROL_FLOW = {"If": if_gradient, "Loop": loop_gradient, "Scan": loop_gradient}
