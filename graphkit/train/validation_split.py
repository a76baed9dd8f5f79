"""Hold out a share of the training data for validation (`validation_split` of `Trainer.fit`)."""

from __future__ import annotations

from graphkit.data import Dataset, IterableDataset, Splits
from graphkit.data.tables.dataset import TableData
from graphkit.errors import InputError, UsageError


def split_off(data: Dataset | IterableDataset, share: float, seed: int) -> Splits:
    """Return (train, validation). `Dataset.split` chooses the samples by the seed.

    Raises:
        UsageError: The data have no length, or their class defines neither `split` nor `subset`.
    """
    if isinstance(data, IterableDataset):
        raise UsageError(
            f"fit: validation_split needs data with a length, but {data.name} is an iterable; pass validation data "
            "as valid="
        )
    kind = type(data)
    if kind.split is Dataset.split and kind.subset is Dataset.subset and kind not in (Dataset, TableData):
        raise UsageError(
            f"fit: validation_split cannot divide {data.name}, because {kind.__name__} does not define `subset`; "
            "divide the data when you load them (gk.data.load(spec, test_fraction=...)), and pass valid="
        )
    try:
        return data.split(share, seed)
    except InputError as error:
        raise InputError(f"fit: validation_split={share} (--validation-split): {error}") from None
