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

//: Fill
constexpr long TILE = 256, STRIP = 32, STEP = 6 * TILE;  // floats of a tile, rows of a strip, floats of 32 numbers of it
constexpr long FEW = 4;                                  // rows of tiles that are made in a row

// Makes tiles of the first 32 rows of `from`, zero where there are none. A step takes 32 numbers of each: its tiles are
// the leading pieces of 16 rows, those of the other 16, then the middle and the low ones. A pair is the k-th and the
// k+16-th number. There are 32 rows of tiles a step, one a row of the operand where its numbers lie side by side,
// otherwise one a pair of 16 rows; each call makes FEW of them. `least` are the least magnitudes but 0 that it has seen,
// twice their bits less 1: those of 0 are the largest number then.
struct Fill {
    Operand from;
    long rows = 0, depth = 0;
    float* to = nullptr;
    long half = STRIP, k = 0, i = 0;
    float* at = nullptr;
    u32v least = {};

    void begin(Operand operand, long its_rows, long its_depth, float* place) {
        from = operand, rows = its_rows, depth = its_depth, to = at = place, half = k = i = 0;
        least = u32v{} - 1u;
    }
    float smallest() const {
        const unsigned twice = across(least, [](auto a, auto b) INLINE { return a < b ? a : b; });
        return twice == ~0u ? __builtin_inff() : from_bits(i32v{} + int((twice + 1) >> 1))[0];
    }
    INLINE bool open() const { return half < STRIP; }
    __attribute__((noinline)) void some() {
        constexpr long all = LANES;
        if (!open()) return;
        const bool in_rows = from.deep == 1;
        const long there = min(all, rows - half), left = depth - k, by = in_rows ? from.row : from.deep;
        const float* const own = in_rows ? from.from(half + i, k).at : from.from(half, k + i).at;
        float* const made = at + i * all;
        if (there == all && left >= 2 * all)
            for (long n = 0; n < FEW; ++n)
                put(load(own + n * by, all), load(own + n * by + (in_rows ? all : all * by), all), made + n * all);
        else
            for (long n = 0; n < FEW; ++n) {
                f32v a = {}, b = {};
                if (in_rows) {
                    if (i + n < there) a = load(own + n * by, min(all, left)), b = load(own + n * by + all, min(all, left - all));
                } else {
                    if (i + n < left) a = load(own + n * by, there);
                    if (i + n + all < left) b = load(own + (n + all) * by, there);
                }
                put(a, b, made + n * all);
            }
        if ((i += FEW) < all) return;
        i = 0, k += 2 * all, at += STEP;
        if (k >= depth) k = 0, half += all, at = to + half / all * TILE;
    }
    INLINE void put(f32v a, f32v b, float* made) {
        const u32v twice_a = ((u32v)bits(a) << 1) - 1u, twice_b = ((u32v)bits(b) << 1) - 1u;
        least = twice_a < least ? twice_a : least;
        least = twice_b < least ? twice_b : least;
        f32v high, middle, low;
        in_three(a, b, high, middle, low);
        store(made, high, LANES), store(made + 2 * TILE, middle, LANES), store(made + 4 * TILE, low, LANES);
    }
};

//: fill_strip
// All of a strip at once, each tile `turned`: rows of the operand become columns, pairs of 16 rows become rows. Gives its
// least magnitude but 0.
inline float fill_strip(Operand from, long rows, long depth, bool turned, float* to) {
    constexpr long all = LANES;
    Fill fill;
    for (fill.begin(from, rows, depth, to); fill.open();) {
        float* const made = fill.at;
        for (long i = 0; i < all; i += FEW) fill.some();
        for (long piece = 0; turned && piece < 3; ++piece) {
            f32v square[LANES];
            for (long i = 0; i < all; ++i) square[i] = load(made + 2 * piece * TILE + i * all, all);
            across_lanes(square);
            for (long i = 0; i < all; ++i) store(made + 2 * piece * TILE + i * all, square[i], all);
        }
    }
    return fill.smallest();
}

//: most_of
// The largest magnitude of the rows.
inline float most_of(Operand from, long rows, long depth) {
    constexpr long all = LANES;
    const bool in_rows = from.deep == 1;
    f32v most = {};
    for (long i = 0; i < (in_rows ? rows : depth); ++i)
        for (long j = 0, wide = in_rows ? depth : rows; j < wide; j += all)
            most = larger_of(abs_(load(in_rows ? from.from(i, j).at : from.from(j, i).at, min(all, wide - j))), most);
    return across(most, [](auto x, auto y) INLINE { return larger_of(x, y); });
}

//: product_of_strips
// 32 rows of a times 32 columns of b: four tiles of sums. Of nine products of pieces the three smallest are left out:
// they lie below the rounding of the sums. What is smaller comes first. Tiles are asked for a step ahead, as the other
// hardware thread of a core may leave little of its caches. While the multiplier works, `beside` does what it likes; it
// is told which of a step's six groups of products was begun.
template <class Beside>
INLINE inline void product_of_strips(const float* a, const float* b, long steps, float* sums, Beside beside) {
    const auto ahead = [&](int line) INLINE {
        for (int l = 8 * line; l < 8 * line + 8; ++l) __builtin_prefetch((l < 96 ? a : b - STEP) + STEP + 16 * l);
    };
    const auto four = [&](int group) INLINE {
        add_product<0, 4, 6>(), ahead(4 * group), add_product<1, 4, 7>(), ahead(4 * group + 1);
        add_product<2, 5, 6>(), ahead(4 * group + 2), add_product<3, 5, 7>(), ahead(4 * group + 3);
        beside(group);
    };
    const auto left = [&](int piece) INLINE { read_tile<4>(a + 2 * piece * TILE), read_tile<5>(a + 2 * piece * TILE + TILE); };
    const auto right = [&](int piece) INLINE { read_tile<6>(b + 2 * piece * TILE), read_tile<7>(b + 2 * piece * TILE + TILE); };
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    for (long s = 0; s < steps; ++s, a += STEP, b += STEP) {
        left(1), right(1), four(0);
        right(0), four(1);
        left(2), four(2);
        left(0), four(3);
        right(1), four(4);
        right(2), four(5);
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

// What a thread keeps: strips of TALL rows of x, two strips of w, of which one is filled while the other is used, and the
// sums of two products.
struct Strips {
    static constexpr long FULL = DEEP / 32 * STEP, SUMS = 4 * TILE;
    float* at = nullptr;
    ~Strips() { free(at); }
    INLINE float* row(long strip, long steps) const { return at + strip * steps * STEP; }
    INLINE float* column(long strip) const { return at + (TALL / STRIP + strip % 2) * FULL; }
    INLINE float* sums(long product) const { return at + (TALL / STRIP + 2) * FULL + product % 2 * SUMS; }
};
inline const Strips* strips() {
    static thread_local Strips here;
    void* made = nullptr;
    if (!here.at && posix_memalign(&made, 4096, 4 * ((TALL / STRIP + 2) * Strips::FULL + 2 * Strips::SUMS)) == 0)
        here.at = (float*)made;
    return here.at ? &here : nullptr;
}

// Sums of 32 rows and columns of the result, of which `left` tiles of four are not there yet: each goes there with what is
// there already (`begun`), with bias and activation where it is `done`. `bad` where pieces do not add up to the numbers: a
// sum is not finite, or there are numbers whose pieces or products are below 2^-126, which count as 0 (`least_x` and
// `least_w` tell), and what that loses at most is not below the last place of some sum.
struct Sums {
    const SplitProduct& n;
    const float* bias;
    float* y;
    bool turned;
    bool begun = false, done = false, bad = false;
    boolv wild = boolv(false);
    f32v small = {};
    const float* from = nullptr;
    long row = 0, rows = 0, column = 0, columns = 0, left = 0;
    Operand x = {}, w = {};
    long depth = 0;
    float least_x = 0, least_w = 0;

    void begin(const float* sums, long its_row, long its_rows, long its_column, long its_columns) {
        from = sums, row = its_row, rows = its_rows, column = its_column, columns = its_columns, left = 4;
        wild = boolv(false), small = splat<f32v>(__builtin_inff());
    }
    __attribute__((noinline)) void tile() {
        constexpr long all = LANES;
        const long q = 4 - left--, i = (turned ? q % 2 : q / 2) * all, j = (turned ? q / 2 : q % 2) * all;
        const long open = min(all, columns - j), count = min(all, rows - i);
        if (open > 0 && count > 0) {
            f32v square[LANES];
            for (long l = 0; l < all; ++l) square[l] = load(from + q * TILE + l * all, all);
            if (turned) across_lanes(square);
            const f32v offset = bias && done ? load(bias + column + j, open) : f32v{};
            const f32v beyond = open < all ? (LANE < (int)open ? f32v{} : splat<f32v>(1.0f)) : f32v{};  // nobody's sums
            for (long l = 0; l < count; ++l) {
                float* at = y + (row + i + l) * n.columns + column + j;
                const f32v size = abs_(square[l]);
                wild = wild | ~boolv(size < __builtin_inff());
                small = smaller_of(size + beyond, small);
                const f32v sum = (begun ? square[l] + load(at, open) : square[l]) + offset;
                store(at, done ? activate(n.activation, sum) : sum, open);
            }
        }
        if (!left) judge();
    }
    void judge() {
        bad |= across(wild.mask, [](auto a, auto b) INLINE { return a | b; }) != 0;
        if (least_x >= 0x1p-110f && least_w >= 0x1p-110f && least_x * least_w >= 0x1p-102f) return;
        if (least_x == __builtin_inff() || least_w == __builtin_inff()) return;  // all are 0
        const float most_x = most_of(x.from(row, 0), rows, depth), most_w = most_of(w.from(column, 0), columns, depth);
        const float lost = 0x1p-126f * (float)depth * (most_x + most_w + 4.0f);
        bad |= across(small, [](auto a, auto b) INLINE { return smaller_of(a, b); }) < 0x1p24f * lost;
    }
    void rest() {
        while (left) tile();
    }
};

// y = activation(x w' + bias): a task is up to TALL rows of x, kept as strips, and some columns, a strip of w at a time.
// Each DEEP numbers are a sum of their own. While strips are multiplied, the next strip of w is filled, and the sums of
// the product before are written. Gives 1, and y is not to be used, where these are bad.
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
        const Strips* const own = strips();
        if (!own) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
        Sums sums{n, bias, y, n.w_deep == 1};  // w, whose rows lie as a left factor's tiles do, is the left factor
        const bool turned = sums.turned;
        begin_tiles();
        for (long k = 0; k < n.depth; k += DEEP) {
            if (__atomic_load_n(&failed, __ATOMIC_RELAXED)) break;
            sums.begun = k > 0, sums.done = k + DEEP >= n.depth, sums.depth = min(DEEP, n.depth - k);
            sums.x = Operand{x, n.x_row, n.x_deep}.from(0, k), sums.w = Operand{w, n.w_row, n.w_deep}.from(0, k);
            const long depth = sums.depth, steps = (depth + 31) / 32;
            float least[TALL / STRIP];
            for (long r = top, k = 0; r < end; r += STRIP, ++k)
                least[k] = fill_strip(sums.x.from(r, 0), end - r, depth, turned == (n.x_deep == 1), own->row(k, steps));
            const long many = (end - top + STRIP - 1) / STRIP, calls = (STRIP / FEW + many - 1) / many;
            Fill fill;
            fill.begin(sums.w.from(first, 0), last - first, depth, own->column(0));
            while (fill.open()) fill.some();
            long product = 0;
            for (long c = first, strip = 0; c < last; c += STRIP, ++strip) {
                const float least_w = fill.smallest();
                if (c + STRIP < last) fill.begin(sums.w.from(c + STRIP, 0), last - c - STRIP, depth, own->column(strip + 1));
                const float* const column = own->column(strip);
                for (long r = top; r < end; r += STRIP, ++product) {
                    const long rows = min(STRIP, end - r), columns = min(STRIP, last - c);
                    const bool below = r + STRIP < end;
                    const float* const next = y + (below ? r + STRIP : top) * n.columns + (below ? c : c + STRIP);
                    long line = 0;  // of those that the next product's sums go to: two a row
                    const float *const row = own->row((r - top) / STRIP, steps), *const left = turned ? column : row;
                    product_of_strips(left, turned ? row : column, steps, own->sums(product), [&](int group) INLINE {
                        if (line < 2 * STRIP) prefetch<2>(next + line / 2 * n.columns + line % 2 * all, 0), ++line;
                        if (group == 0 && sums.left) sums.tile();
                        for (long call = group; group && call <= calls; call += 5) fill.some();
                    });
                    sums.rest();
                    sums.begin(own->sums(product), r, rows, c, columns);
                    sums.least_x = least[(r - top) / STRIP], sums.least_w = least_w;
                }
                while (fill.open()) fill.some();
            }
            sums.rest();
            if (sums.bad) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
        }
        end_tiles();
    }
    return failed;
}
