//: INLINE
#define INLINE __attribute__((always_inline))

//: vec
// A vector of LANES elements of type T.
template <class T> struct VectorOf {
    typedef T type __attribute__((vector_size(LANES * sizeof(T))));
};
template <class T> using vec = typename VectorOf<T>::type;

//: f32v
typedef vec<float> f32v;

//: f64v
typedef vec<double> f64v;

//: i8v
typedef vec<signed char> i8v;

//: u8v
typedef vec<unsigned char> u8v;

//: i16v
typedef vec<short> i16v;

//: u16v
typedef vec<unsigned short> u16v;

//: i32v
typedef vec<int> i32v;

//: u32v
typedef vec<unsigned> u32v;

//: i64v
typedef vec<long> i64v;

//: boolv
// A truth value a lane: -1 where true, 0 where false.
struct boolv {
    i32v mask;
    boolv() = default;
    INLINE explicit boolv(i32v m) : mask(m) {}
    INLINE boolv(bool b) : mask(i32v{} - int(b)) {}
};
INLINE inline boolv operator&(boolv a, boolv b) { return boolv(a.mask & b.mask); }
INLINE inline boolv operator|(boolv a, boolv b) { return boolv(a.mask | b.mask); }
INLINE inline boolv operator^(boolv a, boolv b) { return boolv(a.mask ^ b.mask); }
INLINE inline boolv operator~(boolv a) { return boolv(~a.mask); }

//: wider
// Of a vector and a scalar, the vector.
template <class A, class B, bool first = (sizeof(A) >= sizeof(B))> struct Wider { typedef A type; };
template <class A, class B> struct Wider<A, B, false> { typedef B type; };
template <class A, class B> using wider = typename Wider<A, B>::type;

//: splat
// x in every lane of V; taking zero away keeps the sign of -0.0.
template <class V, class X> INLINE inline V splat(X x) { return x - V{}; }
template <> INLINE inline float splat(float x) { return x; }
template <> INLINE inline double splat(double x) { return x; }
template <> INLINE inline long splat(long x) { return x; }
template <> INLINE inline int splat(int x) { return x; }
template <> INLINE inline short splat(short x) { return x; }
template <> INLINE inline signed char splat(signed char x) { return x; }
template <> INLINE inline unsigned char splat(unsigned char x) { return x; }

//: LANE
// The number of each lane.
INLINE inline i32v lane_numbers() {
    i32v lane = {};
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    return lane;
}
#define LANE lane_numbers()

//: each
// f of every lane.
template <class V, class F> INLINE inline V each(V x, F f) {
    for (int i = 0; i < LANES; ++i) x[i] = f(x[i]);
    return x;
}

//: bits
// The bits of a float as an integer.
INLINE inline i32v bits(f32v x) { return (i32v)x; }

//: from_bits
// The float that has these bits.
INLINE inline f32v from_bits(i32v x) { return (f32v)x; }
