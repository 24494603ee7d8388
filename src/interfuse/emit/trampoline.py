"""The C++ function that runs several kernels in one call. In: nothing. Out: its name and text.

Calling into C from Python costs more than a small kernel runs; a burst of kernels pays for it once. What to run stands
in a table of longs: how many kernels, then for each its function, whether that tells of an index outside what it picks
from, how many buffers it takes, which of `bases` each is and how many bytes behind that it begins, how many sizes and
which of `sizes` they are. The first kernel that tells of one is the last to run.
"""

from __future__ import annotations

NAME = "interfuse_burst"
MOST_ARGUMENTS = 64
"""Buffers, and sizes, that one kernel of a burst may take."""

TEXT = f"""\
// Runs the kernels of a table one after another, each on its own choice of bases, or places behind them, and sizes.
using Kernel = void (*)(void* const* buffers, const long* sizes);
using Checked = int (*)(void* const* buffers, const long* sizes);

extern "C" int {NAME}(const long* table, void* const* bases, const long* sizes) {{
    void* buffers[{MOST_ARGUMENTS}];
    long numbers[{MOST_ARGUMENTS}];
    for (long left = *table++; left > 0; --left) {{
        const long function = *table++, is_checked = *table++;
        const long buffer_count = *table++;
        for (long k = 0; k < buffer_count; ++k, table += 2)
            buffers[k] = (char*)bases[table[0]] + table[1];
        const long size_count = *table++;
        for (long k = 0; k < size_count; ++k)
            numbers[k] = sizes[*table++];
        if (!is_checked)
            ((Kernel)function)(buffers, numbers);
        else if (((Checked)function)(buffers, numbers))
            return 1;
    }}
    return 0;
}}
"""
