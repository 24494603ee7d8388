//: across
// The lanes of x joined by f, halves first.
template <class V, class F> INLINE inline auto across(V x, F f) {
    if constexpr (sizeof(V) == 2 * sizeof(x[0])) {
        return f(x[0], x[1]);
    } else {
        typedef typename Element<V>::type half __attribute__((vector_size(sizeof(V) / 2)));
        half low, high;
        __builtin_memcpy(&low, &x, sizeof low);
        __builtin_memcpy(&high, (const char*)&x + sizeof low, sizeof high);
        return across(f(low, high), f);
    }
}

//: first_lanes
// The first n lanes of x; `rest` in the others.
template <class V> INLINE inline V first_lanes(V x, long n, V rest) {
    if (n == LANES) return x;
    for (long i = n; i < LANES; ++i) x[i] = rest[i];
    return x;
}

//: Sum
// A running sum in four parts.
template <class V> struct Sum {
    V part[4] = {};
    INLINE void add(V x, int k) { part[k] += x; }
    INLINE void add(V x, long n, int k) { part[k] += first_lanes(x, n, V{}); }
    INLINE V value() const { return (part[0] + part[1]) + (part[2] + part[3]); }
    INLINE auto over_lanes() const {
        return across(value(), [](auto a, auto b) INLINE { return a + b; });
    }
};

//: LongSum
// A running sum in four parts that are carried into double now and then: rounding does not grow with the length.
template <class V, class Wide> struct LongSum : Sum<V> {
    Wide carried = {};
    static INLINE double widened(float x) { return x; }
    static INLINE f64v widened(f32v x) { return __builtin_convertvector(x, f64v); }
    INLINE void carry() {
        carried += widened(Sum<V>::value());
        for (V& part : this->part) part = V{};
    }
    INLINE float narrowed(double x) const { return (float)x; }
    INLINE f32v narrowed(f64v x) const { return __builtin_convertvector(x, f32v); }
    INLINE V value() const { return narrowed(carried); }
    INLINE float over_lanes() const {
        return (float)across(carried, [](auto a, auto b) INLINE { return a + b; });
    }
};

//: Product
// A running product in four parts.
template <class V> struct Product {
    V part[4] = {V(V{} + 1), V(V{} + 1), V(V{} + 1), V(V{} + 1)};
    INLINE void add(V x, int k) { part[k] *= x; }
    INLINE void add(V x, long n, int k) { part[k] *= first_lanes(x, n, V(V{} + 1)); }
    INLINE V value() const { return (part[0] * part[1]) * (part[2] * part[3]); }
    INLINE auto over_lanes() const {
        return across(value(), [](auto a, auto b) INLINE { return a * b; });
    }
};

//: extreme
// The larger or the smaller; NaN if either is.
template <bool largest, class V> INLINE inline V extreme(V a, V b) {
    if constexpr (largest) return max_(a, b);
    else return min_(a, b);
}

//: Extreme
// A running maximum (or minimum) in four parts, from the value that changes nothing; NaN stays.
template <class V, bool largest> struct Extreme {
    V start;
    V part[4];
    template <class T> INLINE explicit Extreme(T from) : start(splat<V>(from)), part{start, start, start, start} {}
    INLINE void add(V x, int k) { part[k] = extreme<largest>(part[k], x); }
    INLINE void add(V x, long n, int k) { add(first_lanes(x, n, start), k); }
    INLINE V value() const {
        return extreme<largest>(extreme<largest>(part[0], part[1]), extreme<largest>(part[2], part[3]));
    }
    INLINE auto over_lanes() const {
        return across(value(), [](auto a, auto b) INLINE { return extreme<largest>(a, b); });
    }
};

//: Extreme@f32v
// NaN is noted apart, in cheaper operations than a comparison that keeps it takes.
template <bool largest> struct Extreme<f32v, largest> {
    f32v start;
    f32v part[4];
    i32v noted[4] = {};
    template <class T> INLINE explicit Extreme(T from) : start(splat<f32v>(from)), part{start, start, start, start} {}
    static INLINE f32v of(f32v a, f32v b) { return largest ? larger_of(a, b) : smaller_of(a, b); }
    INLINE void add(f32v x, int k) {
        const i32v magnitude = (i32v)x & 0x7fffffff;
        part[k] = of(part[k], x);
        noted[k] = noted[k] > magnitude ? noted[k] : magnitude;
    }
    INLINE void add(f32v x, long n, int k) { add(first_lanes(x, n, start), k); }
    INLINE f32v value() const {
        f32v found = of(of(part[0], part[1]), of(part[2], part[3]));
        for (int k = 0; k < 4; ++k) found = noted[k] > 0x7f800000 ? (f32v)noted[k] : found;
        return found;
    }
    INLINE auto over_lanes() const {
        return across(value(), [](auto a, auto b) INLINE { return extreme<largest>(a, b); });
    }
};

//: Place
// The first place of the largest (or smallest) element, in four parts; NaN is both. V holds elements, I their places.
template <class V, class I, bool largest> struct Place {
    V worst;
    V best[4];
    I place[4] = {};
    template <class T> INLINE explicit Place(T start) : worst(splat<V>(start)), best{worst, worst, worst, worst} {}
    template <class A> static INLINE auto beats(A x, A y) {
        return (largest ? x > y : x < y) | ((x != x) & (y == y));
    }
    template <class A, class B> static INLINE void take(A& top, B& found, A x, B at) {
        const auto better = beats(x, top) | ((beats(top, x) == 0) & (at < found));
        top = better ? x : top;
        found = better ? at : found;
    }
    INLINE void add(V x, I at, int k) {
        const auto better = beats(x, best[k]);
        best[k] = better ? x : best[k];
        place[k] = better ? at : place[k];
    }
    INLINE void add(V x, I at, long n, int k) { add(first_lanes(x, n, worst), at, k); }
    INLINE I value() {
        for (int k = 1; k < 4; ++k) take(best[0], place[0], best[k], place[k]);
        return place[0];
    }
    INLINE long over_lanes() {
        value();
        auto top = best[0][0];
        auto found = place[0][0];
        for (int i = 1; i < LANES; ++i) take(top, found, best[0][i], place[0][i]);
        return found;
    }
};

//: Moments
// The mean of elements and their squared distances from it, summed, in one pass. A piece of elements adds up distances
// from a pivot and their squares; carry() joins it to the others in double. The pivot is the mean of the piece before. The
// first piece starts from its own first element and is short, and the second from an element of the first, so that an
// outlier at the start costs no digits. Lanes have results of their own where Wide has lanes, one in common where it is a
// single double.
template <class V, class Wide, int parts> struct Moments {
    V pivot = {}, last = {}, sum[parts] = {}, squares[parts] = {};
    long taken = 0, count = 0;
    Wide total = {}, apart = {};
    static constexpr bool common = sizeof(Wide) < sizeof(V);
    static INLINE V finite(V x) { return x - x == V{} ? x : V{}; }
    static INLINE Wide whole(V x) {
        if constexpr (common) return across(to<f64v>(x), [](auto a, auto b) INLINE { return a + b; });
        else return to<Wide>(x);
    }
    static INLINE V joined(const V* p) {
        if constexpr (parts == 1) return p[0];
        else return (p[0] + p[1]) + (p[2] + p[3]);
    }
    INLINE void take(V from, int k) {
        sum[k % parts] += from;
        squares[k % parts] += from * from;
    }
    INLINE void add(V x, int k) {
        if (__builtin_expect((count | taken) == 0, 0)) pivot = finite(x);
        taken += 1;
        last = x;
        take(x - pivot, k);
    }
    INLINE void add(V x, long n, int k) {
        if (__builtin_expect((count | taken) == 0, 0)) pivot = finite(splat<V>(x[n - 1]));
        taken += n;
        last = x;
        take(first_lanes(V(x - pivot), n, V{}), k);
    }
    INLINE void carry() {
        Wide from;
        if constexpr (common) from = pivot[0];
        else from = to<Wide>(pivot);
        const double here = (double)taken, before = (double)count;
        const Wide s = whole(joined(sum)), piece = from * here + s;
        apart += whole(joined(squares)) - s * s / here;
        if (count) {
            const Wide gap = piece / here - total / before;
            apart += gap * gap * (here * before / (here + before));
        }
        if constexpr (common) pivot = finite(splat<V>(count ? typename Element<V>::type(piece / here) : last[0]));
        else pivot = finite(count ? to<V>(piece / here) : last);
        total += piece;
        count += taken;
        taken = 0;
        for (int k = 0; k < parts; ++k) sum[k] = squares[k] = V{};
    }
    INLINE Wide mean_in_double() const { return total / (double)count; }
    INLINE auto mean() const {
        if constexpr (common) return (typename Element<V>::type)mean_in_double();
        else return to<V>(mean_in_double());
    }
    INLINE auto spread() const {
        if constexpr (common) return (typename Element<V>::type)(apart < 0 ? 0 : apart);
        else return max_(to<V>(apart), V{});
    }
};

//: ExpSum
// The sum of exp(element - top) in one pass, `top` being the largest so far, in parts that are carried into double now
// and then. It starts from the lowest finite number, so that -inf adds nothing.
template <class V, class Wide, int parts> struct ExpSum {
    V highest, top[parts], total[parts] = {};
    Wide carried = {};
    template <class T> INLINE explicit ExpSum(T lowest) : highest(splat<V>(lowest)) {
        for (V& t : top) t = highest;
    }
    INLINE void add(V x, int part) {
        const int k = part % parts;
        const V apart = x - top[k], weight = exp_(V(-abs_(apart)));
        total[k] = apart > V{} ? V(total[k] * weight + 1) : V(total[k] + weight);
        top[k] = max_(top[k], x);
    }
    INLINE void add(V x, long n, int k) { add(first_lanes(x, n, splat<V>(-__builtin_inff())), k); }
    INLINE void carry() {
        V best = top[0];
        for (int k = 1; k < parts; ++k) best = max_(best, top[k]);
        carried *= to<Wide>(exp_(V(highest - best)));
        for (int k = 0; k < parts; ++k) {
            carried += to<Wide>(V(total[k] * exp_(V(top[k] - best))));
            total[k] = V{};
            top[k] = best;
        }
        highest = best;
    }
    INLINE V value() const { return to<V>(carried); }
    INLINE auto over_lanes() const {
        const auto best = across(highest, [](auto a, auto b) INLINE { return max_(a, b); });
        const Wide scaled = carried * to<Wide>(exp_(V(highest - splat<V>(best))));
        return typename Element<V>::type(across(scaled, [](auto a, auto b) INLINE { return a + b; }));
    }
};

//: Any
// True once any was.
template <class B> struct Any {
    B seen = false;
    INLINE void add(B x, int) { seen = seen | x; }
    INLINE void add(B x, long n, int) { seen.mask |= first_lanes(x.mask, n, i32v{}); }
    INLINE B value() const { return seen; }
    INLINE bool over_lanes() const {
        return across(seen.mask, [](auto a, auto b) INLINE { return a | b; }) != 0;
    }
};

//: All
// False once any was.
template <class B> struct All {
    B seen = true;
    INLINE void add(B x, int) { seen = seen & x; }
    INLINE void add(B x, long n, int) { seen.mask &= first_lanes(x.mask, n, i32v{} - 1); }
    INLINE B value() const { return seen; }
    INLINE bool over_lanes() const {
        return across(seen.mask, [](auto a, auto b) INLINE { return a & b; }) != 0;
    }
};
