"""The C++ function that runs several kernels in one call. In: nothing. Out: its name and text.

Calling into C from Python costs more than a small kernel runs; a burst of kernels pays for it once. What to run stands
in a table of longs: how many kernels, then for each its function, how many buffers it takes and which of `bases` they
are, how many sizes and which of `sizes` they are.
"""

from __future__ import annotations

NAME = "interfuse_burst"
MOST_ARGUMENTS = 64
"""Buffers, and sizes, that one kernel of a burst may take."""

TEXT = f"""\
// Runs the kernels of a table one after another, each on its own choice of bases and sizes.
using Kernel = void (*)(void* const* buffers, const long* sizes);

extern "C" void {NAME}(const long* table, void* const* bases, const long* sizes) {{
    void* buffers[{MOST_ARGUMENTS}];
    long numbers[{MOST_ARGUMENTS}];
    for (long left = *table++; left > 0; --left) {{
        const Kernel kernel = (Kernel)*table++;
        const long buffer_count = *table++;
        for (long k = 0; k < buffer_count; ++k)
            buffers[k] = bases[*table++];
        const long size_count = *table++;
        for (long k = 0; k < size_count; ++k)
            numbers[k] = sizes[*table++];
        kernel(buffers, numbers);
    }}
}}
"""
