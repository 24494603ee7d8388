//: is_scalar
template <class T> inline constexpr bool is_scalar = false;
template <> inline constexpr bool is_scalar<float> = true;
template <> inline constexpr bool is_scalar<double> = true;
template <> inline constexpr bool is_scalar<long> = true;
template <> inline constexpr bool is_scalar<int> = true;
template <> inline constexpr bool is_scalar<short> = true;
template <> inline constexpr bool is_scalar<signed char> = true;
template <> inline constexpr bool is_scalar<unsigned char> = true;

//: Element
// The element type of a vector; of a scalar, itself.
template <class V, bool scalar = is_scalar<V>> struct Element { typedef V type; };
template <class T> struct Referred { typedef T type; };
template <class T> struct Referred<T&> { typedef T type; };
template <class V> struct Element<V, false> { typedef typename Referred<decltype((*(V*)nullptr)[0])>::type type; };

//: abs_
INLINE inline float abs_(float x) { return __builtin_fabsf(x); }
INLINE inline double abs_(double x) { return __builtin_fabs(x); }
template <class V> INLINE inline V abs_(V x) { return V(x < V{} ? V(-x) : x); }

//: abs_@f32v
INLINE inline f32v abs_(f32v x) { return from_bits(bits(x) & 0x7fffffff); }

//: abs_@f64v
INLINE inline f64v abs_(f64v x) { return each(x, [](double e) INLINE { return __builtin_fabs(e); }); }

//: truth
// The truth value of a comparison's result.
INLINE inline bool truth(bool b) { return b; }

//: truth@boolv
template <class M> INLINE inline boolv truth(M mask) { return boolv(__builtin_convertvector(mask, i32v)); }

//: lt_
template <class A, class B> INLINE inline auto lt_(A a, B b) { return truth(a < b); }

//: lt_@boolv
INLINE inline boolv lt_(boolv a, boolv b) { return ~a & b; }

//: le_
template <class A, class B> INLINE inline auto le_(A a, B b) { return truth(a <= b); }

//: le_@boolv
INLINE inline boolv le_(boolv a, boolv b) { return ~a | b; }

//: gt_
template <class A, class B> INLINE inline auto gt_(A a, B b) { return truth(a > b); }

//: gt_@boolv
INLINE inline boolv gt_(boolv a, boolv b) { return a & ~b; }

//: ge_
template <class A, class B> INLINE inline auto ge_(A a, B b) { return truth(a >= b); }

//: ge_@boolv
INLINE inline boolv ge_(boolv a, boolv b) { return a | ~b; }

//: eq_
template <class A, class B> INLINE inline auto eq_(A a, B b) { return truth(a == b); }

//: eq_@boolv
INLINE inline boolv eq_(boolv a, boolv b) { return ~(a ^ b); }

//: ne_
template <class A, class B> INLINE inline auto ne_(A a, B b) { return truth(a != b); }

//: ne_@boolv
INLINE inline boolv ne_(boolv a, boolv b) { return a ^ b; }

//: not_
INLINE inline bool not_(bool a) { return !a; }
template <class A> INLINE inline A not_(A a) { return ~a; }

//: isnan_
template <class A> INLINE inline auto isnan_(A a) { return truth(a != a); }

//: isinf_
template <class A> INLINE inline auto isinf_(A a) { return truth(abs_(a) == __builtin_inff()); }

//: where_
template <class A, class B> INLINE inline auto where_(bool c, A a, B b) {
    typedef wider<A, B> V;
    return c ? splat<V>(a) : splat<V>(b);
}

//: where_@boolv
template <class A, class B> INLINE inline auto where_(boolv c, A a, B b) {
    typedef wider<wider<A, B>, vec<typename Element<A>::type>> V;
    typedef decltype(V{} < V{}) Mask;
    return __builtin_convertvector(c.mask, Mask) ? splat<V>(a) : splat<V>(b);
}
INLINE inline boolv where_(boolv c, boolv a, boolv b) { return (c & a) | (~c & b); }
INLINE inline boolv where_(boolv c, bool a, bool b) { return where_(c, boolv(a), boolv(b)); }
INLINE inline boolv where_(boolv c, boolv a, bool b) { return where_(c, a, boolv(b)); }
INLINE inline boolv where_(boolv c, bool a, boolv b) { return where_(c, boolv(a), b); }

//: larger_of
// a where a > b, else b, also where either is NaN.
template <class V> INLINE inline V larger_of(V a, V b) { return a > b ? a : b; }

//: larger_of@f32v
// One instruction, which GCC does not find by itself.
INLINE inline f32v larger_of(f32v a, f32v b) {
#if defined(__AVX512F__) && LANES == 16
    return __builtin_ia32_maxps512_mask(a, b, a, -1, 4);
#elif defined(__AVX__) && LANES == 8
    return __builtin_ia32_maxps256(a, b);
#elif defined(__SSE__) && LANES == 4
    return __builtin_ia32_maxps(a, b);
#else
    return a > b ? a : b;
#endif
}

//: smaller_of
// a where a < b, else b, also where either is NaN.
template <class V> INLINE inline V smaller_of(V a, V b) { return a < b ? a : b; }

//: smaller_of@f32v
INLINE inline f32v smaller_of(f32v a, f32v b) {
#if defined(__AVX512F__) && LANES == 16
    return __builtin_ia32_minps512_mask(a, b, a, -1, 4);
#elif defined(__AVX__) && LANES == 8
    return __builtin_ia32_minps256(a, b);
#elif defined(__SSE__) && LANES == 4
    return __builtin_ia32_minps(a, b);
#else
    return a < b ? a : b;
#endif
}

//: max_
// The larger; NaN if either is.
template <class A, class B> INLINE inline auto max_(A x, B y) {
    typedef wider<A, B> V;
    const V a = splat<V>(x), b = splat<V>(y);
    return V(a != a ? a : larger_of(a, b));
}

//: max_@boolv
INLINE inline boolv max_(boolv a, boolv b) { return a | b; }

//: min_
// The smaller; NaN if either is.
template <class A, class B> INLINE inline auto min_(A x, B y) {
    typedef wider<A, B> V;
    const V a = splat<V>(x), b = splat<V>(y);
    return V(a != a ? a : smaller_of(a, b));
}

//: min_@boolv
INLINE inline boolv min_(boolv a, boolv b) { return a & b; }

//: sign
// -1, 0 or 1; 0 for NaN.
template <class V> INLINE inline V sign(V x) {
    const V zero = {}, one = V(zero + 1);
    return V((x > zero ? one : zero) - (x < zero ? one : zero));
}

//: shift_left
// x << count, 0 where the count is not below the width.
template <class V> INLINE inline V shift_left(V x, V count) {
    const V width = V(V{} + 8 * (int)sizeof(typename Element<V>::type));
    return V((count >= V{}) & (count < width) ? V(x << (count & V(width - 1))) : V{});
}

//: shift_right
// x >> count, the sign alone where the count is not below the width.
template <class V> INLINE inline V shift_right(V x, V count) {
    const V last = V(V{} + (8 * (int)sizeof(typename Element<V>::type) - 1));
    return V(x >> V((count >= V{}) & (count <= last) ? count : last));
}

//: to
// x converted to the elements of V: float to integer truncates.
template <class V, class X> INLINE inline V to(X x) {
    if constexpr (is_scalar<V>) return (V)x;
    else return __builtin_convertvector(x, V);
}

//: to_bool
template <class X> INLINE inline auto to_bool(X x) { return truth(x != X{}); }

//: from_bool
// 1 where true, 0 where false.
template <class V> INLINE inline V from_bool(bool b) { return V(b); }

//: from_bool@boolv
template <class V> INLINE inline V from_bool(boolv b) { return __builtin_convertvector(b.mask & 1, V); }

//: round_bf16
// The nearest bfloat16, held as float.
INLINE inline float round_bf16(float x) { return bf16(x); }

//: round_bf16@f32v
INLINE inline f32v round_bf16(f32v x) { return widen_bf16(narrow_bf16(x)); }

//: round_f16
// The nearest half, held as float.
INLINE inline float round_f16(float x) { return f16(x); }

//: round_f16@f32v
INLINE inline f32v round_f16(f32v x) { return widen_f16(narrow_f16(x)); }
