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
