//: bf16
// bfloat16 in memory; arithmetic is done in float. Rounds to nearest even and keeps NaN.
struct bf16 {
    unsigned short bits;
    bf16() = default;
    INLINE bf16(float x) {
        unsigned u;
        __builtin_memcpy(&u, &x, sizeof u);
        bits = x != x ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
    }
    INLINE operator float() const {
        const unsigned u = (unsigned)bits << 16;
        float x;
        __builtin_memcpy(&x, &u, sizeof x);
        return x;
    }
};

//: f16
// IEEE half precision in memory; arithmetic is done in float.
struct f16 {
    _Float16 half;
    f16() = default;
    INLINE f16(float x) : half((_Float16)x) {}
    INLINE operator float() const { return (float)half; }
};

//: widen_u16
INLINE inline u32v widen_u16(u16v x) {
#if defined(__AVX512F__) && LANES == 16 && !defined(__clang__)
    return (u32v)__builtin_ia32_pmovzxwd512_mask((i16v)x, i32v{}, -1);  // GCC widens halves and joins them
#else
    return __builtin_convertvector(x, u32v);
#endif
}

//: widen_bf16
// With AVX-512 one permutation puts each element into the upper half of its lane and zero into the lower.
INLINE inline f32v widen_bf16(u16v x) {
#if defined(__AVX512BW__) && LANES == 16 && !defined(__clang__)
    typedef short words __attribute__((vector_size(64)));
    typedef int half __attribute__((vector_size(32)));
    const words from = {0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                        0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
    const words whole = (words)__builtin_ia32_si512_256si((half)x);  // what is above x is not looked at
    return (f32v)__builtin_ia32_permvarhi512_mask(whole, from, words{}, 0xaaaaaaaa);
#else
    return (f32v)(widen_u16(x) << 16);
#endif
}

//: narrow_bf16
// Rounds to nearest even; NaN stays NaN. The machine's own instruction takes subnormals for zero, so they go by hand.
INLINE inline u16v narrow_bf16(f32v x) {
#if defined(__AVX512BF16__) && LANES == 16 && !defined(__clang__)
    if (__builtin_expect(!__builtin_ia32_fpclassps512_mask(x, 0x20, -1), 1))
        return (u16v)__builtin_ia32_cvtneps2bf16_v16sf(x);
#endif
    const u32v u = (u32v)x;
    const u32v rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return __builtin_convertvector(x != x ? u32v{} + 0x7fc0 : rounded, u16v);
}

//: widen_f16
INLINE inline f32v widen_f16(u16v x) {
#if defined(__AVX512F__) && LANES == 16
    return __builtin_ia32_vcvtph2ps512_mask((i16v)x, f32v{}, -1, 4);
#else
    const u32v h = widen_u16(x);
    const f32v magnitude = (f32v)((h & 0x7fff) << 13) * 0x1p112f;  // moves the exponent's bias, subnormals included
    const u32v special = (h & 0x7c00) == 0x7c00 ? u32v{} + 0x7f800000 : u32v{};
    return (f32v)((u32v)magnitude | special | (h & 0x8000) << 16);
#endif
}

//: narrow_f16
// Rounds to nearest even; too large becomes infinity, NaN stays NaN.
INLINE inline u16v narrow_f16(f32v x) {
#if defined(__AVX512F__) && LANES == 16
    return (u16v)__builtin_ia32_vcvtps2ph512_mask(x, 0, i16v{}, -1);
#else
    const u32v sign = (u32v)x >> 16 & 0x8000, magnitude = (u32v)x & 0x7fffffff;
    const u32v normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const u32v subnormal = (u32v)((f32v)magnitude + 0.5f) - 0x3f000000;  // the addition rounds at the last place
    const u32v finite = magnitude < 0x38800000 ? subnormal : normal;
    const u32v large = magnitude > 0x7f800000 ? u32v{} + 0x7e00 : u32v{} + 0x7c00;
    return __builtin_convertvector((magnitude >= 0x477ff000 ? large : finite) | sign, u16v);
#endif
}

//: load
// n elements from p on, one a lane; lanes from n on are zero and their memory is not touched.
template <class T> INLINE inline vec<T> load(const T* p, long n) {
    typedef vec<T> anywhere __attribute__((aligned(alignof(T)), may_alias));
    if (n == LANES) return *(const anywhere*)p;
    vec<T> x = {};
    for (long i = 0; i < n; ++i) x[i] = p[i];
    return x;
}

//: load@bf16
INLINE inline f32v load(const bf16* p, long n) { return widen_bf16(load((const unsigned short*)p, n)); }

//: load@f16
INLINE inline f32v load(const f16* p, long n) { return widen_f16(load((const unsigned short*)p, n)); }

//: load@bool
INLINE inline boolv load(const bool* p, long n) {
    return boolv(__builtin_convertvector(load((const unsigned char*)p, n), i32v) != 0);
}
INLINE inline boolv load(bool* p, long n) { return load((const bool*)p, n); }  // of a row that is kept on chip

//: store
// The first n lanes to p on.
template <class T> INLINE inline void store(T* p, vec<T> x, long n) {
    typedef vec<T> anywhere __attribute__((aligned(alignof(T)), may_alias));
    if (n == LANES) {
        *(anywhere*)p = x;
        return;
    }
    for (long i = 0; i < n; ++i) p[i] = x[i];
}

//: store@bf16
INLINE inline void store(bf16* p, f32v x, long n) { store((unsigned short*)p, narrow_bf16(x), n); }

//: store@f16
INLINE inline void store(f16* p, f32v x, long n) { store((unsigned short*)p, narrow_f16(x), n); }

//: store@bool
INLINE inline void store(bool* p, boolv x, long n) {
    store((unsigned char*)p, __builtin_convertvector(x.mask & 1, u8v), n);
}

//: prefetch
// Ask for the memory at p, which may lie past the end of its buffer, to be brought into the first-level cache, or no
// further than the second: once a line of 64 bytes, as the element number `at` along the row tells. A compiler gathers
// such requests where it may, but one among loads waits less than several in a row.
template <int level = 1, class T> INLINE inline void prefetch(const T* p, long at) {
    constexpr long line = 64 / sizeof(T);
    if (LANES < line && at % line != 0) return;
#if defined(__SSE__)
    if constexpr (level == 1)
        asm volatile("prefetcht0 %0" : : "m"(*(const char*)p) : "memory");
    else
        asm volatile("prefetcht1 %0" : : "m"(*(const char*)p) : "memory");
#else
    __builtin_prefetch(p, 0, level == 1 ? 3 : 2);
#endif
}

//: past_cache
// Store one whole aligned vector past the caches, where the machine can.
template <class T> INLINE inline bool past_cache(T* p, vec<T> x) {
    constexpr unsigned long bytes = sizeof x;
    if ((unsigned long)p % bytes) return false;
#if defined(__clang__)
    __builtin_nontemporal_store(x, (vec<T>*)p);
    return true;
#endif
#if defined(__AVX512F__) && !defined(__clang__)
    if constexpr (bytes == 64) {
        typedef float v __attribute__((vector_size(64)));
        __builtin_ia32_movntps512((float*)p, (v)x);
        return true;
    }
#endif
#if defined(__AVX__) && !defined(__clang__)
    if constexpr (bytes == 32) {
        typedef float v __attribute__((vector_size(32)));
        __builtin_ia32_movntps256((float*)p, (v)x);
        return true;
    }
#endif
#if defined(__SSE__) && !defined(__clang__)
    if constexpr (bytes == 16) {
        typedef float v __attribute__((vector_size(16)));
        __builtin_ia32_movntps((float*)p, (v)x);
        return true;
    }
#endif
    return false;
}

//: stream
// Like store, but past the caches: for outputs that do not fit in them. `finish_streams` must follow.
template <class T> INLINE inline void stream(T* p, vec<T> x, long n) {
    if (n == LANES && past_cache(p, x)) return;
    store(p, x, n);
}

//: stream@bf16
INLINE inline void stream(bf16* p, f32v x, long n) { stream((unsigned short*)p, narrow_bf16(x), n); }

//: stream@f16
INLINE inline void stream(f16* p, f32v x, long n) { stream((unsigned short*)p, narrow_f16(x), n); }

//: stream@bool
INLINE inline void stream(bool* p, boolv x, long n) { store(p, x, n); }

//: finish_streams
// Order this thread's streamed stores before what follows.
INLINE inline void finish_streams() {
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}

//: turned
// The first n lanes in reverse order, zero in the others.
template <class V> INLINE inline V turned(V x, long n) {
#if !defined(__clang__)
    if (n == LANES) {
        decltype(x == x) from = {};
        for (int i = 0; i < LANES; ++i) from[i] = LANES - 1 - i;
        return __builtin_shuffle(x, from);
    }
#endif
    V y = {};
    for (long i = 0; i < n; ++i) y[i] = x[n - 1 - i];
    return y;
}

//: turned@boolv
INLINE inline boolv turned(boolv x, long n) { return boolv(turned(x.mask, n)); }

//: gather
// element(lane) for the first n lanes, zero in the others.
template <class V, class F> INLINE inline V gather(long n, F element) {
    V x = {};
    for (long i = 0; i < n; ++i) x[i] = element(i);
    return x;
}

//: gather_bool
// element(lane) for the first n lanes, false in the others.
template <class F> INLINE inline boolv gather_bool(long n, F element) {
    i32v x = {};
    for (long i = 0; i < n; ++i) x[i] = -(int)element(i);
    return boolv(x);
}

//: from_end
// A negative index counts from the end.
template <class I> INLINE inline I from_end(I at, long size) { return at < 0 ? I(at + size) : at; }

//: inside
// An index that lies in [0, size), as it is; for any other 0, and `outside` is set.
INLINE inline long inside(long at, long size, int& outside) {
    if (__builtin_expect((unsigned long)at < (unsigned long)size, 1)) return at;
    __atomic_store_n(&outside, 1, __ATOMIC_RELAXED);
    return 0;
}

//: inside@i64v
// The same of the first n lanes; the others are 0.
INLINE inline i64v inside(i64v at, long size, long n, int& outside) {
    for (long i = 0; i < LANES; ++i) at[i] = i < n ? inside(at[i], size, outside) : 0;
    return at;
}

//: scatter
// element(lane, value) for the first n lanes of x.
template <class V, class F> INLINE inline void scatter(V x, long n, F element) {
    for (long i = 0; i < n; ++i) element(i, x[i]);
}
template <class F> INLINE inline void scatter(boolv x, long n, F element) {
    for (long i = 0; i < n; ++i) element(i, x.mask[i] != 0);
}
