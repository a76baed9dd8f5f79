"""Constants that another process made are equal to those of this process."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from graphkit.ir.tensor import Tensor

CODE = """
import pickle, sys
import numpy as np
from graphkit.ir.tensor import Tensor

made = Tensor(np.array(["a", "b"], object)), Tensor(np.arange(5000))
hash(made[0]), hash(made[1])
sys.stdout.buffer.write(pickle.dumps(made))
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_pickled_constants_are_equal_to_new_ones(seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE], capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
    )
    found = pickle.loads(done.stdout)
    assert found == (Tensor(np.array(["a", "b"], object)), Tensor(np.arange(5000)))
    assert len({*found, Tensor(np.arange(5000))}) == 2
