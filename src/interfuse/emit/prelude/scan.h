//: Plus
struct Plus {
    template <class T> static INLINE T of(T earlier, T later) { return earlier + later; }
};

//: Times
struct Times {
    template <class T> static INLINE T of(T earlier, T later) { return earlier * later; }
};

//: Larger
struct Larger {
    template <class T> static INLINE T of(T earlier, T later) { return max_(earlier, later); }
};

//: Smaller
struct Smaller {
    template <class T> static INLINE T of(T earlier, T later) { return min_(earlier, later); }
};

//: moved_up
// Lane i of x in lane i + by, lanes of `rest` before.
template <int by, class V> INLINE inline V moved_up(V x, V rest) {
#if defined(__clang__)
    V y = rest;
    for (int i = by; i < LANES; ++i) y[i] = x[i - by];
    return y;
#else
    decltype(x == x) from = {};
    for (int i = 0; i < LANES; ++i) from[i] = i < by ? i : LANES + i - by;
    return __builtin_shuffle(rest, x, from);
#endif
}

//: prefix
// In each lane the lanes up to it joined by F; `rest` is what leaves a value as it is.
template <class F, int by = 1, class V> INLINE inline V prefix(V x, V rest) {
    if constexpr (by < LANES)
        return prefix<F, 2 * by>(F::of(moved_up<by>(x, rest), x), rest);
    else
        return x;
}

//: Running
// A running total that takes one step at a time, held in the type Wide.
template <class V, class Wide, class F> struct Running {
    Wide carried;
    Running() = default;
    template <class T> INLINE explicit Running(T start) : carried(splat<Wide>((typename Element<Wide>::type)start)) {}
    INLINE V next(V x) {
        carried = F::of(carried, to<Wide>(x));
        return to<V>(carried);
    }
};

//: RunningLanes
// A running total along the lanes of vector after vector, carried in the type Wide.
template <class V, class Wide, class F> struct RunningLanes {
    Wide carried;
    V rest;
    template <class T> INLINE explicit RunningLanes(T start) : carried(start), rest(splat<V>((typename Element<V>::type)start)) {}
    INLINE V next(V x) {
        const V within = prefix<F>(x, rest);
        const V out = F::of(splat<V>((typename Element<V>::type)carried), within);
        carried = F::of(carried, (Wide)within[LANES - 1]);
        return out;
    }
};
