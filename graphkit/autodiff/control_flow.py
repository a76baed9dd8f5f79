"""The gradient rules of control flow, by operator. What they give are If, Loop and Scan, which have rules too."""

from __future__ import annotations

from graphkit.autodiff.branches import if_gradient
from graphkit.autodiff.loops import loop_gradient

CONTROL_FLOW = {"If": if_gradient, "Loop": loop_gradient, "Scan": loop_gradient}
