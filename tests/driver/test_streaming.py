"""Which outputs bypass the caches. In: kernels and a cache size. Out: names of their output parameters."""

from __future__ import annotations

from interfuse.driver.device import _streaming
from interfuse.ir.dtypes import F32
from tests.kernels import BUILDERS


def test_outputs_stream_where_the_kernel_does_not_fit_in_the_cache() -> None:
    kernel = BUILDERS["bias_gelu_residual"](64, 1024, F32, "serial")
    tensor = 64 * 1024 * 4
    assert _streaming(kernel, 4 * tensor) == frozenset()  # everything fits
    assert _streaming(kernel, 2 * tensor) == {p.name for p in kernel.params if p.mode == "out"}
    assert _streaming(kernel, tensor // 8)
    short = BUILDERS["softmax"](64, 1024, F32, "serial")
    assert _streaming(short, 2 * tensor) == frozenset()
    assert _streaming(short, 2 * tensor - 1)
