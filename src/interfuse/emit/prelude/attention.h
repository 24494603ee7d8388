//: across_lanes
// A square of LANES vectors transposed in place: blocks of 1, 2, 4, ... lanes change places.
INLINE inline void across_lanes(f32v* rows) {
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
        i32v low = {}, high = {};
        for (int l = 0; l < LANES; ++l) {
            low[l] = l & step ? LANES + l - step : l;
            high[l] = l & step ? LANES + l : l + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) {
            if (i & step) continue;
            const f32v a = rows[i], b = rows[i + step];
#if defined(__clang__)
            for (int l = 0; l < LANES; ++l) {
                rows[i][l] = l & step ? b[l - step] : a[l];
                rows[i + step][l] = l & step ? b[l] : a[l + step];
            }
#else
            rows[i] = __builtin_shuffle(a, b, low);
            rows[i + step] = __builtin_shuffle(a, b, high);
#endif
        }
    }
}

//: Rows
// Rows of floats, `step` elements from one to the next.
template <class P> struct Rows {
    P at;
    long step;
    INLINE P operator[](long i) const { return at + i * step; }
};

//: product_tile
// R rows of a times N vectors of columns of b, over `depth`, stored in c or added to it: all sums stay in registers, and
// what c has joins them last, so that sums of sums lose fewer digits than one long one.
template <int R, int N>
INLINE inline void product_tile(Rows<const float*> a, Rows<const float*> b, Rows<float*> c, long depth, bool add) {
    f32v sum[R][N];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) sum[r][j] = f32v{};
    for (long k = 0; k < depth; ++k) {
        f32v columns[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) columns[j] = load(b[k] + j * LANES, LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const f32v x = splat<f32v>(a[r][k]);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) sum[r][j] = fma_(x, columns[j], sum[r][j]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            const f32v had = add ? load(c[r] + j * LANES, LANES) : f32v{};
            store(c[r] + j * LANES, had + sum[r][j], LANES);
        }
}

//: product
// c = a b, or c += a b, for so many rows and columns (multiples of LANES), each sum in the order of `depth`.
template <int N>
INLINE inline void product_columns(
    Rows<const float*> a, Rows<const float*> b, Rows<float*> c, long rows, long depth, bool add) {
    constexpr int R = LANES == 16 ? 6 : 4;
    long r = 0;
    for (; r + R <= rows; r += R) product_tile<R, N>({a[r], a.step}, b, {c[r], c.step}, depth, add);
    for (; r < rows; ++r) product_tile<1, N>({a[r], a.step}, b, {c[r], c.step}, depth, add);
}
inline void product(
    Rows<const float*> a, Rows<const float*> b, Rows<float*> c, long rows, long columns, long depth, bool add) {
    constexpr int N = LANES == 16 ? 4 : 2;
    long j = 0;
    for (; j + N * LANES <= columns; j += N * LANES)
        product_columns<N>(a, {b.at + j, b.step}, {c.at + j, c.step}, rows, depth, add);
    for (; j < columns; j += LANES) product_columns<1>(a, {b.at + j, b.step}, {c.at + j, c.step}, rows, depth, add);
}

//: in_floats
// `count` rows of D elements as floats: where they lie, or widened into `space`.
template <int D> INLINE inline Rows<const float*> in_floats(Rows<const float*> rows, long, float*) { return rows; }
template <int D, class T> INLINE inline Rows<const float*> in_floats(Rows<const T*> rows, long count, float* space) {
    constexpr long all = LANES;
    for (long i = 0; i < count; ++i)
        for (long d = 0; d < D; d += all) store(space + i * D + d, load(rows[i] + d, all), all);
    return {space, D};
}

//: turn
// `count` rows of D elements as the columns of `out`, zero in what is left of the last vector of columns.
template <int D, class T> INLINE inline void turn(Rows<const T*> rows, long count, Rows<float*> out) {
    constexpr long all = LANES;
    for (long j = 0; j < count; j += all)
        for (long d = 0; d < D; d += all) {
            f32v square[LANES];
            for (long l = 0; l < all; ++l) square[l] = j + l < count ? load(rows[j + l] + d, all) : f32v{};
            across_lanes(square);
            for (long l = 0; l < all; ++l) store(out[d + l] + j, square[l], all);
        }
}

//: OnlineRow
// A row of scores and what was seen of it in earlier blocks: the largest, and the sum of exponentials under it.
struct OnlineRow {
    float top = -__builtin_inff(), total = 0.0f;

    // The scores of one block, times `scale` and with the mask's, become exponentials; those from `open` on, up to the
    // end of a vector, become 0. Gives what earlier exponentials must be multiplied by. A row of -inf stays 0.
    template <class M> INLINE float next(float* row, long open, long padded, float scale, const M* mask) {
        constexpr long all = LANES;
        const f32v lowest = splat<f32v>(-__builtin_inff());
        f32v most = splat<f32v>(top);
        for (long j = 0; j < padded; j += all) {
            const long valid = min(max(open - j, 0l), all);
            f32v s = load(row + j, all) * scale;
            if constexpr (sizeof(M) > 1) s += load(mask + j, valid);
            s = first_lanes(s, valid, lowest);
            most = larger_of(s, most);  // which leaves NaN out: the sum will be NaN
            store(row + j, s, all);
        }
        const float before = top;
        top = across(most, [](auto x, auto y) INLINE { return larger_of(x, y); });
        const float less = top == lowest[0] ? 0.0f : top;
        f32v sum = {};
        for (long j = 0; j < padded; j += all) {
            const f32v p = exp_(load(row + j, all) - less);
            sum += p;
            store(row + j, p, all);
        }
        const float again = exp_(before - less);
        total = total * again + across(sum, [](auto x, auto y) INLINE { return x + y; });
        return again;
    }
};

//: Attention
// What an attention is asked for, as the caller lays it down: counts, and the strides in elements of a batch, a head and
// a row of each operand. A mask's are 0 where it repeats.
struct Attention {
    long batch, heads, queries, keys, causal;
    long query[3], key[3], value[3], mask[3], out[3];

    template <class P> static INLINE Rows<P> rows(P at, const long* steps, long b, long h) {
        return {at + b * steps[0] + h * steps[1], steps[2]};
    }
};

//: attention
extern "C" int omp_get_max_threads(void);

// softmax(scale q k' + mask) v for heads of D elements: blocks of keys in turn, a few queries at a time against each.
// All sums are in float. A mask of bool is none.
template <int D, class T, class M>
inline void attention(
    const T* q, const T* k, const T* v, const M* mask, T* out, const Attention& n, float scale, long parallel_from) {
    constexpr long HEIGHT = 24, KEYS = 128, MOST = 10 * HEIGHT, DEEP = 32, all = LANES;
    const long heads = n.batch * n.heads, threads = omp_get_max_threads();
    long chunk = MOST;  // queries that share turned keys: fewer where threads would have nothing to do
    while (chunk > HEIGHT && heads * ((n.queries + chunk - 1) / chunk) < 2 * threads) chunk -= HEIGHT;
    const long chunks = (n.queries + chunk - 1) / chunk;
#pragma omp parallel for schedule(static) if (heads * n.queries * n.keys * D >= parallel_from)
    for (long task = 0; task < heads * chunks; ++task) {
        alignas(64) float turned[D * KEYS], scores[HEIGHT * KEYS], sums[MOST * D];
        alignas(64) float wide_values[sizeof(T) == 4 ? 1 : KEYS * D], wide_queries[sizeof(T) == 4 ? 1 : HEIGHT * D];
        OnlineRow seen[MOST];
        const long b = task / chunks / n.heads, h = task / chunks % n.heads, from = task % chunks * chunk;
        const long to = min(from + chunk, n.queries), end = n.causal ? min(to, n.keys) : n.keys;
        const auto queries = n.rows(q, n.query, b, h), keys = n.rows(k, n.key, b, h);
        const auto values = n.rows(v, n.value, b, h);
        const auto masks = n.rows(mask, n.mask, b, h);
        for (long first = 0; first < end; first += KEYS) {
            const long count = min(KEYS, end - first), padded = (count + all - 1) / all * all;
            turn<D>(Rows<const T*>{keys[first], keys.step}, count, {turned, KEYS});
            const auto block = in_floats<D>(Rows<const T*>{values[first], values.step}, count, wide_values);
            for (long at = from; at < to; at += HEIGHT) {
                const long height = min(HEIGHT, to - at);
                if (n.causal && at + height <= first) continue;
                const auto few = in_floats<D>(Rows<const T*>{queries[at], queries.step}, height, wide_queries);
                const Rows<float*> results = {sums + (at - from) * D, D};
                for (long d = 0; d < D; d += DEEP)
                    product({few.at + d, few.step}, {turned + d * KEYS, KEYS}, {scores, KEYS}, height, padded,
                        min(DEEP, D - d), d > 0);
                for (long i = 0; i < height; ++i) {
                    const long open = n.causal ? min(count, at + i + 1 - first) : count;
                    const float again =
                        seen[at - from + i].next(scores + i * KEYS, open, padded, scale, masks[at + i] + first);
                    for (long d = 0; first > 0 && d < D; d += all)
                        store(results[i] + d, load(results[i] + d, all) * again, all);
                }
                product({scores, KEYS}, block, results, height, D, count, first > 0);
            }
        }
        const auto rows = n.rows(out, n.out, b, h);
        for (long i = 0; i < to - from; ++i)
            for (long d = 0; d < D; d += all) {
                const f32v sum = end > 0 ? load(sums + i * D + d, all) : f32v{};
                const float total = seen[i].total;  // 0 for a row that sees nothing: its sum is 0, or NaN as a value is
                store(rows[from + i] + d, total == 0.0f ? sum : sum / total, all);
            }
    }
}
