//: zero_tile
// Tile registers: 16 rows of 64 bytes each, numbers 0 to 7. A product adds, to each float of C, the products of a row of
// A and a column of B, both pairs of bf16: what lies first in a pair of A times what lies first in one of B, and second
// times second. Without TILES the same is done step by step, which is slow and of use in tests alone.
#if TILES
template <int T> INLINE inline void zero_tile() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(T)); }
template <int T> INLINE inline void read_tile(const float* from) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(64l), "i"(T) : "memory");
}
template <int T> INLINE inline void write_tile(float* to) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(64l), "i"(T) : "memory");
}
template <int C, int A, int B> INLINE inline void add_product() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
inline void begin_tiles() {
    struct alignas(64) Shapes {
        unsigned char palette = 1, rest[15] = {};
        unsigned short bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shapes;
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}
inline void end_tiles() { __asm__ volatile("tilerelease"); }

extern "C" long syscall(long, ...);
// 0 where the system lets this process use them: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
const long tiles_refused = syscall(158, 0x1023, 18);
#else
thread_local float tiles[8][256];
template <int T> inline void zero_tile() { __builtin_memset(tiles[T], 0, sizeof tiles[T]); }
template <int T> inline void read_tile(const float* from) { __builtin_memcpy(tiles[T], from, sizeof tiles[T]); }
template <int T> inline void write_tile(float* to) { __builtin_memcpy(to, tiles[T], sizeof tiles[T]); }
template <int C, int A, int B> inline void add_product() {
    const auto part = [](float pair, bool second) {
        unsigned bits;
        __builtin_memcpy(&bits, &pair, sizeof bits);
        bits = second ? bits & 0xffff0000u : bits << 16;
        float x;
        __builtin_memcpy(&x, &bits, sizeof x);
        return x;
    };
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
            float first = 0.0f, second = 0.0f;
            for (int p = 0; p < 16; ++p) {
                const float a = tiles[A][i * 16 + p], b = tiles[B][p * 16 + j];
                first = __builtin_fmaf(part(a, false), part(b, false), first);
                second = __builtin_fmaf(part(a, true), part(b, true), second);
            }
            tiles[C][i * 16 + j] += first + second;
        }
}
inline void begin_tiles() {}
inline void end_tiles() {}
const long tiles_refused = 0;
#endif

//: in_three
// Two vectors of floats as three of pairs of bf16 that add up to them: each takes the 8 leading bits of what is left,
// rounded, and for the third one that is all of them, but of a float that is tiny itself.
INLINE inline f32v leading(f32v x) { return from_bits((bits(x) + 0x8000) & (int)0xffff0000u); }
INLINE inline f32v paired(f32v a, f32v b) {
    return from_bits((i32v)((u32v)bits(a) >> 16) | (bits(b) & (int)0xffff0000u));
}
INLINE inline void in_three(f32v a, f32v b, f32v& high, f32v& middle, f32v& low) {
    const f32v a0 = leading(a), b0 = leading(b);
    a -= a0, b -= b0;
    const f32v a1 = leading(a), b1 = leading(b);
    high = paired(a0, b0), middle = paired(a1, b1), low = paired(a - a1, b - b1);
}

//: Operand
// A matrix in memory, one of its two steps 1: row r has its k-th number at at[r * row + k * deep].
struct Operand {
    const float* at;
    long row, deep;
    INLINE Operand from(long r, long k) const { return {at + r * row + k * deep, row, deep}; }
};

//: fill_strip
constexpr long TILE = 256, STRIP = 32, STEP = 6 * TILE;  // floats of a tile, rows of a strip, floats of 32 numbers of it

// The first 32 rows of `from` as tiles, zero where there are none. A step takes 32 numbers of each: its tiles are the
// leading pieces of 16 rows, those of the other 16, then the middle and the low ones. A pair is the k-th and the k+16-th
// number; a row of a tile is a row of the operand, or one pair of all 16 (`by_pairs`), as the right factor needs it.
inline void fill_strip(Operand from, long rows, long depth, bool by_pairs, float* to) {
    constexpr long all = LANES;
    const bool in_rows = from.deep == 1;
    for (long half = 0; half < STRIP; half += all) {
        const long open = min(all, rows - half);
        float* at = to + half / all * TILE;
        for (long k = 0; k < depth; k += 2 * all, at += STEP) {
            for (long i = 0; i < all; ++i) {
                f32v a = {}, b = {};
                if (in_rows) {
                    const float* row = from.from(half + i, k).at;
                    if (i < open) a = load(row, min(all, depth - k)), b = load(row + all, min(all, depth - k - all));
                } else {
                    if (k + i < depth) a = load(from.from(half, k + i).at, open);
                    if (k + i + all < depth) b = load(from.from(half, k + i + all).at, open);
                }
                f32v high, middle, low;
                in_three(a, b, high, middle, low);
                store(at + i * all, high, all), store(at + 2 * TILE + i * all, middle, all);
                store(at + 4 * TILE + i * all, low, all);
            }
            for (long piece = 0; by_pairs == in_rows && piece < 3; ++piece) {
                f32v square[LANES];
                for (long i = 0; i < all; ++i) square[i] = load(at + 2 * piece * TILE + i * all, all);
                across_lanes(square);
                for (long i = 0; i < all; ++i) store(at + 2 * piece * TILE + i * all, square[i], all);
            }
        }
    }
}

//: least_row
// Of the largest magnitudes of the rows, the least that is not 0; infinity where all are.
inline float least_row(Operand from, long rows, long depth) {
    constexpr long all = LANES;
    const f32v none = splat<f32v>(__builtin_inff());
    f32v least = none;
    const auto note = [&](f32v most) INLINE { least = smaller_of(where_(boolv(most > 0.0f), most, none), least); };
    if (from.deep == 1)
        for (long r = 0; r < rows; ++r) {
            f32v most = {};
            for (long k = 0; k < depth; k += all)
                most = larger_of(abs_(load(from.from(r, k).at, min(all, depth - k))), most);
            note(splat<f32v>(across(most, [](auto x, auto y) INLINE { return larger_of(x, y); })));
        }
    else
        for (long r = 0; r < rows; r += all) {
            f32v most = {};
            for (long k = 0; k < depth; ++k) most = larger_of(abs_(load(from.from(r, k).at, min(all, rows - r))), most);
            note(most);
        }
    return across(least, [](auto x, auto y) INLINE { return smaller_of(x, y); });
}

//: product_of_strips
// 32 rows of a times 32 columns of b: four tiles of sums. Of nine products of pieces the three smallest are left out:
// they lie below the rounding of the sums. What is smaller comes first.
inline void product_of_strips(const float* a, const float* b, long steps, float* sums) {
    const auto four = []() INLINE {
        add_product<0, 4, 6>(), add_product<1, 4, 7>(), add_product<2, 5, 6>(), add_product<3, 5, 7>();
    };
    const auto left = [&](int piece) INLINE { read_tile<4>(a + 2 * piece * TILE), read_tile<5>(a + 2 * piece * TILE + TILE); };
    const auto right = [&](int piece) INLINE { read_tile<6>(b + 2 * piece * TILE), read_tile<7>(b + 2 * piece * TILE + TILE); };
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    for (long s = 0; s < steps; ++s, a += STEP, b += STEP) {
        left(1), right(1), four();
        right(0), four();
        left(2), four();
        left(0), four();
        right(1), four();
        right(2), four();
    }
    write_tile<0>(sums), write_tile<1>(sums + TILE), write_tile<2>(sums + 2 * TILE), write_tile<3>(sums + 3 * TILE);
}

//: SplitProduct
// What a product is asked for, as the caller lays it down: counts, steps of both operands, and what is done to a result:
// 0 nothing, 1 relu, 2 gelu, 3 gelu by tanh, 4 tanh, 5 sigmoid, 6 swish.
struct SplitProduct {
    long rows, columns, depth, x_row, x_deep, w_row, w_deep, activation;
};

//: activate
INLINE inline f32v activate(long which, f32v x) {
    switch (which) {
        case 1: return max_(x, f32v{});
        case 2: return x * normal_cdf_(x);
        case 3: return 0.5f * x * (tanh_(0.7978845608028654f * (x + 0.044715f * (x * x * x))) + 1.0f);
        case 4: return tanh_(x);
        case 5: return sigmoid_(x);
        case 6: return x * sigmoid_(x);
        default: return x;
    }
}

//: split_product
extern "C" int omp_get_max_threads(void);
extern "C" int posix_memalign(void**, unsigned long, unsigned long);
extern "C" void free(void*);

constexpr long TALL = 256, DEEP = 768;  // rows and numbers of x that lie ready in the second-level cache

// A thread's strips: TALL rows of x, one strip of w, four tiles of sums.
struct Strips {
    float* at = nullptr;
    ~Strips() { free(at); }
};
inline float* strips() {
    static thread_local Strips here;
    void* made = nullptr;
    constexpr long bytes = 4 * ((TALL / STRIP + 1) * (DEEP / 32) * STEP + 4 * TILE);
    if (!here.at && posix_memalign(&made, 4096, bytes) == 0) here.at = (float*)made;
    return here.at;
}

// y = activation(x w' + bias): a task is up to TALL rows of x, kept as strips, and some columns, a strip of w at a time.
// Each DEEP numbers are a sum of their own. Gives 1, and y is not to be used, where pieces do not add up to the numbers,
// or their products would vanish: where a sum is not finite, or is tiny since the largest numbers of two rows are.
inline int split_product(
    const float* x, const float* w, const float* bias, float* y, const SplitProduct& n, long parallel_from) {
    constexpr long all = LANES;
    if (tiles_refused) return 1;
    const long threads = omp_get_max_threads(), blocks = (n.rows + TALL - 1) / TALL;
    long parts = 1;  // of the columns, so that every thread has as many tasks
    while ((blocks * parts) % threads && parts * STRIP < n.columns) ++parts;
    const auto share = [](long whole, long count) { return ((whole + count - 1) / count + STRIP - 1) / STRIP * STRIP; };
    const long tall = share(n.rows, blocks), wide = share(n.columns, parts);
    int failed = 0;
#pragma omp parallel for schedule(static) if (n.rows * n.columns * n.depth >= parallel_from)
    for (long task = 0; task < blocks * parts; ++task) {
        const long top = task / parts * tall, end = min(n.rows, top + tall);
        const long first = task % parts * wide, last = min(n.columns, first + wide);
        float *const rows = strips(), *const columns = rows + TALL / STRIP * (DEEP / 32) * STEP;
        float* const sums = columns + DEEP / 32 * STEP;
        if (!rows) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
        const bool turned = n.w_deep == 1;  // w, whose rows lie as a left factor's tiles do, is the left factor
        begin_tiles();
        for (long k = 0; k < n.depth; k += DEEP) {
            if (__atomic_load_n(&failed, __ATOMIC_RELAXED)) break;
            const bool begun = k > 0, done = k + DEEP >= n.depth;
            const long depth = min(DEEP, n.depth - k), steps = (depth + 31) / 32;
            const Operand left = Operand{x, n.x_row, n.x_deep}.from(0, k), right = Operand{w, n.w_row, n.w_deep}.from(0, k);
            for (long r = top; r < end; r += STRIP)
                fill_strip(left.from(r, 0), end - r, depth, turned, rows + (r - top) / STRIP * steps * STEP);
            for (long c = first; c < last; c += STRIP) {
                fill_strip(right.from(c, 0), last - c, depth, !turned, columns);
                bool bad = false;
                for (long r = top; r < end; r += STRIP) {
                    const long tall_now = min(STRIP, end - r), wide_now = min(STRIP, last - c);
                    for (long l = 0; l < tall_now; ++l) {
                        __builtin_prefetch(y + (r + l) * n.columns + c, 1);
                        __builtin_prefetch(y + (r + l) * n.columns + c + wide_now - 1, 1);
                    }
                    const float* strip = rows + (r - top) / STRIP * steps * STEP;
                    product_of_strips(turned ? columns : strip, turned ? strip : columns, steps, sums);
                    boolv tiny(false), wild(false);
                    for (long q = 0; q < 4; ++q) {
                        f32v square[LANES];
                        const long i = r + (turned ? q % 2 : q / 2) * all, j = c + (turned ? q / 2 : q % 2) * all;
                        const long open = min(all, last - j), count = min(all, end - i);
                        if (open <= 0 || count <= 0) continue;
                        for (long l = 0; l < all; ++l) square[l] = load(sums + q * TILE + l * all, all);
                        if (turned) across_lanes(square);
                        const f32v offset = bias && done ? load(bias + j, open) : f32v{};
                        for (long l = 0; l < count; ++l) {
                            float* at = y + (i + l) * n.columns + j;
                            const f32v size = abs_(square[l]);
                            tiny = tiny | boolv(size < 0x1p-76f);
                            wild = wild | ~boolv(size < __builtin_inff());
                            const f32v sum = (begun ? square[l] + load(at, open) : square[l]) + offset;
                            store(at, done ? activate(n.activation, sum) : sum, open);
                        }
                    }
                    const auto any = [](boolv x) INLINE { return across(x.mask, [](auto a, auto b) INLINE { return a | b; }) != 0; };
                    bad |= any(wild);
                    if (any(tiny)) {
                        const float row = least_row(left.from(r, 0), tall_now, depth);
                        const float column = least_row(right.from(c, 0), wide_now, depth);
                        bad |= row < 0x1p-100f || column < 0x1p-100f || row * column < 0x1p-100f;
                    }
                }
                if (bad) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
            }
        }
        end_tiles();
    }
    return failed;
}
