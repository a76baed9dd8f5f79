"""Optimizer updates."""

# Names of all elementwise Update operators.
ELEMENTWISE_UPDATES = (
    "AdadeltaUpdate", "AdagradUpdate", "AdamUpdate", "AdamWUpdate", "FtrlUpdate", "RmsPropUpdate", "SgdUpdate",
)  # fmt: skip
