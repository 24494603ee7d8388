//: min
INLINE inline long min(long a, long b) { return a < b ? a : b; }

//: max
INLINE inline long max(long a, long b) { return a > b ? a : b; }

//: lanes_left
// body(n) with the n of a vector that starts `left` elements before the end; the usual case is compiled for LANES.
template <class Body> INLINE inline void lanes_left(long left, Body body) {
    if (left >= LANES)
        body(LANES);
    else
        body(left);
}

//: side_by_side
// body(at, n, k) for each vector k of `count` that lie side by side from `from` on, as far as the `left` elements go.
template <int count, int k = 0, class Body> INLINE inline void side_by_side(long from, long left, Body body) {
    if constexpr (k < count) {
        if (left >= (k + 1) * LANES)
            body(from + k * LANES, LANES, k);
        else if (left > k * LANES)
            body(from + k * LANES, left - k * LANES, k);
        side_by_side<count, k + 1>(from, left, body);
    }
}

//: each_vector
// body(at, n, k) for each vector k of `count` from `from` on, as far as the axis goes.
template <class Body> INLINE inline void each_vector(long from, long extent, int count, Body body) {
    long at = from;
    int k = 0;
    for (; k < count && at + LANES <= extent; ++k, at += LANES) body(at, LANES, k);
    if (k < count && at < extent) body(at, extent - at, k);
}

//: strips
// body(row, rows, at, left, k) for `rows` rows from `row` on, and the vectors from k on that share a cache line,
// `together` of them: the first few rows of all `count` vectors, then the next ones up to `stop`, at most `tall` at a
// time. So each row is read in long pieces. `left` elements lie between `at` and the end of the vectors, or of the line.
template <int count, int together, int tall, class Body>
INLINE inline void strips(long row, long stop, long from, long extent, Body body) {
    constexpr long line = together * LANES;
    const long end = min(extent, from + count * LANES);  // what lies behind belongs to another program
    for (long rows = 4; row < stop; row += rows, rows = tall) {
        rows = min(rows, stop - row);
        long at = from;
        int k = 0;
        for (; at + line <= end; k += together, at += line) body(row, rows, at, line, k);
        if (at < end) body(row, rows, at, end - at, k);
    }
}

//: tall_strips
// Rows of `count` vectors side by side of which each carries several registers: body(row, rows, at, left, k, down, along)
// for the vectors from k on that share a cache line, `together` of them, takes `rows` rows from `row` on, `few` of them or
// what is left. Then the next vectors have their turn, so that memory is read in long pieces; those that are taken
// `ahead` lines later lie `down` rows and `along` elements from these. take(rows) follows as soon as so many rows were
// taken of all vectors: the first few, then twice as many as before, `many` at most.
template <int count, int together, int few, int many, int ahead, class Body, class Take>
INLINE inline void tall_strips(long row, long stop, long from, long extent, Body body, Take take) {
    constexpr long line = together * LANES, most = (count + together - 1) / together;
    const long whole = min(most, (extent - from) / line);
    const auto all = [&](long rows) INLINE {
        long k = 0;
        for (; k < whole - ahead; ++k) body(row, rows, from + k * line, line, k * together, 0, ahead * line);
        for (; k < whole; ++k) body(row, rows, from + k * line, line, k * together, few, (ahead - whole) * line);
        const long left = extent - from - whole * line;
        if (whole < most && left > 0) body(row, rows, extent - left, left, whole * together, few, 0);
    };
    for (long start = row, begin = row; row < stop; begin = row) {
        const long end = min(stop, row + (row == start ? few : min(2 * (row - start), many)));
        for (; row < end; row += few) all(min(few, end - row));
        row = end;
        take(end - begin);
    }
}

//: few_rows
// body(row, part) for each row of a strip, four parts taking turns. More rows side by side are no faster, and take the
// compiler long.
template <class Body> INLINE inline void few_rows(long row, long rows, Body body) {
    long i = 0;
    for (; i + 4 <= rows; i += 4) {
        body(row + i, 0);
        body(row + i + 1, 1);
        body(row + i + 2, 2);
        body(row + i + 3, 3);
    }
    for (; i < rows; ++i) body(row + i, 0);
}

//: each_row
// body(row, part) for each row of a strip, all of one part.
template <class Body> INLINE inline void each_row(long row, long rows, Body body) {
    for (long i = 0; i < rows; ++i) body(row + i, 0);
}

//: for_vectors
// body(at, n) for each vector of an axis; the last one holds n < LANES indices.
template <class Body> INLINE inline void for_vectors(long extent, Body body, long at = 0) {
    for (; at + LANES <= extent; at += LANES) body(at, LANES);
    if (at < extent) body(at, extent - at);
}

//: for_vectors_back
// for_vectors from the end of the axis.
template <class Body> INLINE inline void for_vectors_back(long extent, Body body, long start = 0) {
    const long end = start + (extent - start) / LANES * LANES;
    if (end < extent) body(end, extent - end);
    for (long at = end - LANES; at >= start; at -= LANES) body(at, LANES);
}

//: reduce_vectors
// body(at, n, part) for each vector of an axis. Four parts take turns, so that four sums are in flight at once; which
// element goes to which part depends on the extent alone.
template <class Body> INLINE inline void reduce_vectors(long extent, Body body, long at = 0) {
    for (; at + 4 * LANES <= extent; at += 4 * LANES) {
        body(at, LANES, 0);
        body(at + LANES, LANES, 1);
        body(at + 2 * LANES, LANES, 2);
        body(at + 3 * LANES, LANES, 3);
    }
    for (; at + LANES <= extent; at += LANES) body(at, LANES, 0);
    if (at < extent) body(at, extent - at, 1);
}

//: reduce_long_vectors
// reduce_vectors in pieces of 16 rounds, the first one of `rounds`, with carry() after each.
template <int rounds = 16, class Body, class Carry>
INLINE inline void reduce_long_vectors(long extent, Body body, Carry carry, long start = 0) {
    for (long end = start + 4 * rounds * LANES; start < extent; start = end, end += 64 * LANES) {
        reduce_vectors(min(end, extent), body, start);
        carry();
    }
}

//: reduce_each
// body(at, part) for each index of an axis, four parts taking turns.
template <class Body> INLINE inline void reduce_each(long extent, Body body, long at = 0) {
    for (; at + 4 <= extent; at += 4) {
        body(at, 0);
        body(at + 1, 1);
        body(at + 2, 2);
        body(at + 3, 3);
    }
    for (; at < extent; ++at) body(at, 0);
}

//: reduce_long_each
// reduce_each in pieces of 16 rounds, the first one of `rounds`, with carry() after each.
template <int rounds = 16, class Body, class Carry>
INLINE inline void reduce_long_each(long extent, Body body, Carry carry, long start = 0) {
    for (long end = start + 4 * rounds; start < extent; start = end, end += 64) {
        reduce_each(min(end, extent), body, start);
        carry();
    }
}

//: Weights
// Exponentials along a row of `extent` elements, read once in blocks: a block is `many` vectors, which registers hold, and
// distances are from the largest element in a lane of it. What `scales` gives turns them into those of distances from the row's
// maximum, what `shares` gives into shares of the total. It starts from the lowest finite number, so that -inf weighs
// nothing; NaN makes the total NaN. A total that is NaN or nothing tells rows in which distances are no numbers.
template <int many, long extent> struct Weights {
    static constexpr long width = many * LANES, blocks = (extent + width - 1) / width;
    struct Scales {
        f32v of[blocks];
        float total;
    };
    f32v top[blocks], sum[blocks];
    template <class Body> INLINE void add(float* row, long from, long stop, Body body) {
        const auto block = [&](long left) INLINE {
            f32v x[many], bests[2], sums[2] = {};
            for (f32v& absent : x) absent = splat<f32v>(-__builtin_inff());
            bests[0] = bests[1] = splat<f32v>(-__FLT_MAX__);
            side_by_side<many>(from, left, [&](long at, long n, int k) INLINE {
                x[k] = first_lanes(body(at, n), n, x[k]);
                bests[k % 2] = larger_of(x[k], bests[k % 2]);
            });
            const f32v best = larger_of(bests[0], bests[1]);
            side_by_side<many>(from, left, [&](long at, long n, int k) INLINE {
                const f32v weight = exp2_((x[k] - best) * 1.44269504f);
                store(row + at, weight, n);
                sums[k % 2] += weight;
            });
            top[from / width] = best;
            sum[from / width] = sums[0] + sums[1];
        };
        if (extent % width == 0 || stop - from == width)
            block(width);
        else
            block(stop - from);
    }
    INLINE void scales(Scales& found) const {
        f32v best[4] = {top[0], top[0], top[0], top[0]};
        reduce_each(blocks, [&](long k, int part) INLINE { best[part] = larger_of(top[k], best[part]); });
        const float most = across(larger_of(larger_of(best[0], best[1]), larger_of(best[2], best[3])),
                                  [](auto a, auto b) INLINE { return larger_of(a, b); });
        LongSum<f32v, f64v> total;
        reduce_long_each(
            blocks,
            [&](long k, int part) INLINE {
                found.of[k] = exp_(top[k] - most);
                total.add(found.of[k] * sum[k], part);
            },
            [&]() INLINE { total.carry(); });
        found.total = total.over_lanes();
        if (!(found.total > 0)) nowhere(found);
    }
    // What is infinitely far below +inf weighs nothing; all of a row with NaN, or of -inf alone, is NaN.
    void nowhere(Scales& found) const {
        const float nan = __builtin_nanf("");
        float rest = found.total == 0 ? nan : 0.0f;
        for (long k = 0; k < blocks; ++k)
            for (long l = 0; l < LANES; ++l)
                if (top[k][l] < __builtin_inff() && sum[k][l] != sum[k][l]) rest = nan;
        for (f32v& scale : found.of) scale = splat<f32v>(rest);
        found.total = nan;
    }
    INLINE void shares(Scales& found) const {
        scales(found);
        const float part = 1.0f / found.total;
        for (f32v& scale : found.of) scale *= part;
    }
};

//: omp_get_num_threads
extern "C" int omp_get_num_threads(void);
extern "C" int omp_get_thread_num(void);

//: in_rounds
// step(from, to) for `many` vectors of an axis at a time; carry() after 4 * rounds vectors, and after 64 each. Where steps
// fill the axis and the rounds their length is no question at each of them.
template <int rounds, int many, class Step, class Carry> INLINE inline void in_rounds(long extent, Step step, Carry carry) {
    constexpr long width = many * LANES;
    const bool filled = extent % width == 0 && 4 * rounds % many == 0 && 64 % many == 0;
    for (long at = 0, end = 4 * rounds * LANES; at < extent; end += 64 * LANES) {
        for (const long stop = min(end, extent); at < stop;) {
            const long next = filled ? at + width : min(at + width, stop);
            step(at, next);
            at = next;
        }
        carry();
    }
}

//: rows_ahead
// This thread's share of the rows, in two passes over each: read(row, parts, from, to) over the columns, find(row,
// parts, what is found), write(row, what was found, from, to) over the columns. While a row is written the next one is read, `many`
// vectors of each in turn, so that memory reads and writes all the time.
template <class Parts, class Found, int rounds, int many, class Read, class Carry, class Find, class Write>
INLINE inline void rows_ahead(long rows, long extent, Read read, Carry carry, Find find, Write write) {
    const long threads = omp_get_num_threads(), thread = omp_get_thread_num();
    long row = rows * thread / threads;
    const long last = rows * (thread + 1) / threads - 1;
    if (row > last) return;
    Found found;
    {
        Parts parts;
        in_rounds<rounds, many>(
            extent, [&](long from, long to) INLINE { read(row, parts, from, to); }, [&]() INLINE { carry(parts); });
        find(row, parts, found);
    }
    for (; row < last; ++row) {
        Parts parts;
        in_rounds<rounds, many>(
            extent,
            [&](long from, long to) INLINE {
                write(row, found, from, to);
                read(row + 1, parts, from, to);
            },
            [&]() INLINE { carry(parts); });
        find(row + 1, parts, found);
    }
    in_rounds<rounds, many>(extent, [&](long from, long to) INLINE { write(row, found, from, to); }, []() INLINE {});
}

//: run_members

// How many programs a member of a pack has, and the work of each.
struct Programs {
    long count, work;
};

// body(m, first, last) for programs `first` to `last` of member m. Threads get equal shares of the work of all members
// together, wherever one ends and the next begins.
template <class Size, class Body> inline void run_members(long members, long parallel_from, Size size, Body body) {
    long total = 0;
    for (long m = 0; m < members; ++m) total += size(m).count * size(m).work;
#pragma omp parallel if (total >= parallel_from)
    {
        const long threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const long from = total * thread / threads, to = total * (thread + 1) / threads;
        long at = 0;
        for (long m = 0; m < members && at < to; ++m) {
            const Programs p = size(m);
            const long first = at >= from ? 0 : min((from - at + p.work - 1) / p.work, p.count);
            const long last = min((to - at + p.work - 1) / p.work, p.count);
            if (first < last) body(m, first, last);
            at += p.count * p.work;
        }
    }
}
