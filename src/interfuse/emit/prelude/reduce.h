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
    typedef Sum<V> Piece;
    INLINE Piece piece() const { return {}; }
    INLINE void join(const Piece& p) { carried += widened(p.value()); }
    INLINE void carry() {
        join(*this);
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
    Extreme() = default;
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
    Extreme() = default;
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
    Place() = default;
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

//: plus_square
template <class V> INLINE inline V plus_square(V sum, V x) { return sum + x * x; }

//: plus_square@f32v
INLINE inline f32v plus_square(f32v sum, f32v x) { return fma_(x, x, sum); }

//: finite
template <class V> INLINE inline V finite(V x) { return x - x == V{} ? x : V{}; }

//: pivot_near
// x, which is near the mean, in the places that elements with these squared distances from it have: so distances from
// it are exact, where the digits that only x has would be rounded away from each of them in the same direction.
template <class V> INLINE inline V pivot_near(V x, V variance) {
    const V size = 2 * sqrt_(variance), y = (x + size) - size;
    return y - y == V{} ? y : V{};
}

//: Moments
// The mean of elements along the lanes and their squared distances from it, summed, in one pass: sums of distances from
// a pivot and of their squares, carried into double piece by piece. The first pivot is one of the elements, and its
// piece is short; the next is the mean of the others, so that an outlier costs no digits. After that the mean so far
// becomes the pivot, and the sums follow, whenever there are twice as many elements as the last time.
template <class V> struct Moments {
    typedef typename Element<V>::type element;
    V pivot = {}, sum[4] = {}, squares[4] = {};
    f64v sums = {}, squared = {};
    double total = 0, apart = 0;
    long count = 0, chosen = 0;
    static INLINE double whole(f64v x) {
        return across(x, [](auto a, auto b) INLINE { return a + b; });
    }
    static INLINE f64v joined(const V* p) {
        return (to<f64v>(p[0]) + to<f64v>(p[1])) + (to<f64v>(p[2]) + to<f64v>(p[3]));
    }
    INLINE void add(V x, long n, int k) {
        if (!chosen && !count) pivot = finite(splat<V>(x[n - 1]));
        count += n;
        const V from = first_lanes(V(x - pivot), n, V{});
        sum[k] += from;
        squares[k] = plus_square(squares[k], from);
    }
    INLINE void carry() {
        sums += joined(sum);
        squared += joined(squares);
        for (int k = 0; k < 4; ++k) sum[k] = squares[k] = V{};
        if (count >= 2 * chosen) choose();
    }
    INLINE void choose() {
        total += whole(sums);
        apart += whole(squared);
        sums = squared = f64v{};
        const long others = chosen || count == 1 ? count : count - 1;
        const element next = pivot_near(element(pivot[0] + total / (double)others), element(apart / (double)count));
        const double by = (double)next - (double)pivot[0], moved = by * (double)count;
        apart -= by * (total + total - moved);
        total -= moved;
        pivot = splat<V>(next);
        chosen = count;
    }
    INLINE element mean() const { return element(pivot[0] + (total + whole(sums)) / (double)count); }
    INLINE element spread() const {
        const double left = total + whole(sums), found = apart + whole(squared) - left * left / (double)count;
        return element(found < 0 ? 0 : found);
    }
};

//: LaneMoments
// The same in each lane on its own, in one part; a piece is what some rows add up, which may be held with other pieces
// before they are joined.
template <class V> struct MomentsPiece {
    V pivot, sum = {}, squares = {};
    long count;
    bool first;
    INLINE void add(V x, int) {
        if (first) pivot = finite(x);
        first = false;
        count += 1;
        const V from = x - pivot;
        sum += from;
        squares = plus_square(squares, from);
    }
};
template <class V> struct MomentsHeld {
    V pivot = {}, sum = {}, squares = {};
    INLINE MomentsPiece<V> piece(bool first) const { return {pivot, V{}, V{}, 0, first}; }
    INLINE void take(const MomentsPiece<V>& p) {
        pivot = p.pivot;
        sum += p.sum;
        squares += p.squares;
    }
};
template <class V, class Wide> struct LaneMoments {
    typedef MomentsPiece<V> Piece;
    V pivot = {};
    Wide sums = {}, squared = {};
    long count = 0, chosen = 0;
    INLINE Piece piece() const { return {pivot, V{}, V{}, count, count == 0}; }
    INLINE void join(const Piece& p) {
        if (!chosen) pivot = p.pivot;
        sums += to<Wide>(p.sum);
        squared += to<Wide>(p.squares);
        count = p.count;
        if (__builtin_expect(count >= 2 * chosen, 0)) choose();
    }
    typedef MomentsHeld<V> Held;
    INLINE void take(Held& held, long rows) {
        join({held.pivot, held.sum, held.squares, count + rows, false});
        held = {pivot, V{}, V{}};
    }
    INLINE V centre(long others) const { return to<V>(Wide(to<Wide>(pivot) + sums / (double)others)); }
    INLINE void choose() {
        const V middle = centre(chosen || count == 1 ? count : count - 1);
        const V next = pivot_near(middle, to<V>(Wide(squared / (double)count)));
        const Wide by = to<Wide>(next) - to<Wide>(pivot), moved = by * (double)count;
        squared -= by * (sums + sums - moved);
        sums -= moved;
        pivot = next;
        chosen = count;
    }
    INLINE V mean() const { return centre(count); }
    INLINE V spread() const { return max_(to<V>(Wide(squared - sums * sums / (double)count)), V{}); }
};

//: OwnMoments
// LaneMoments that take the elements themselves.
template <class V, class Wide> struct OwnMoments : LaneMoments<V, Wide> {
    MomentsPiece<V> own = LaneMoments<V, Wide>::piece();
    INLINE void add(V x, int k) { own.add(x, k); }
    INLINE void carry() {
        this->join(own);
        own = this->piece();
    }
};

//: ExpSum
// The sum of exp(element - top) in one pass, `top` being the largest so far, in parts that are carried into double now
// and then. It starts from the lowest finite number, so that -inf adds nothing.
template <class V, class Wide, int parts> struct ExpSum {
    V highest, top[parts], total[parts] = {};
    Wide carried = {};
    typedef ExpSum Piece;
    ExpSum() = default;
    INLINE Piece piece() const { return *this; }
    INLINE void join(const Piece& p) {
        *this = p;
        carry();
    }
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

//: ColumnSums
// A sum for each of `count` columns, in T, carried into double every sixteen rows. Lanes from the n-th on are other
// columns', where parts of a joined matrix end between them.
template <class T, long count> struct ColumnSums {
    alignas(64) T sum[count] = {};
    alignas(64) double carried[count] = {};
    long rows = 0;
    INLINE void add(vec<T> x, long at, long n = LANES) {
        store(sum + at, vec<T>(load((const T*)sum + at, n) + x), n);
    }
    INLINE void next() {
        if (++rows % 16 == 0) finish();
    }
    void finish() {
        for (long i = 0; i < count; ++i) {
            carried[i] += sum[i];
            sum[i] = 0;
        }
    }
    INLINE vec<T> value(long at) const { return to<vec<T>>(load((const double*)carried + at, LANES)); }
};

//: ColumnExtremes
// The largest (or smallest) of each of `count` columns; NaN stays. Lanes from the n-th on are other columns'.
template <class T, long count, bool largest> struct ColumnExtremes {
    alignas(64) T best[count];
    INLINE explicit ColumnExtremes(T start) {
        for (T& b : best) b = start;
    }
    INLINE void add(vec<T> x, long at, long n = LANES) {
        store(best + at, extreme<largest>(load((const T*)best + at, n), x), n);
    }
    INLINE void next() {}
    INLINE void finish() {}
    INLINE vec<T> value(long at) const { return load((const T*)best + at, LANES); }
};
