//: LANE_BY_LANE
// A function of the C library, called for each lane.
#define LANE_BY_LANE(name) \
    INLINE inline float name##_(float x) { return __builtin_##name##f(x); } \
    INLINE inline double name##_(double x) { return __builtin_##name(x); } \
    template <class V> INLINE inline V name##_(V x) { return each(x, [](auto e) INLINE { return name##_(e); }); }

//: by_registers
// SLEEF, which PyTorch has in it and eager mode calls, has functions of whole registers; where there is none, of lanes.
template <class E, int bytes> struct Register { typedef E type __attribute__((vector_size(bytes))); };
typedef Register<float, 64>::type f32x16;
typedef Register<float, 32>::type f32x8;
typedef Register<double, 64>::type f64x8;
typedef Register<double, 32>::type f64x4;

// f of each register of the vectors, or of each lane.
template <class F, class V, class... More> INLINE inline V by_registers(F f, V x, More... more) {
#if defined(SLEEF) && defined(__AVX2__)
#if defined(__AVX512F__)
    constexpr unsigned long bytes = sizeof(V) % 64 == 0 ? 64 : 32;
#else
    constexpr unsigned long bytes = 32;
#endif
    if constexpr (sizeof(V) % bytes == 0) {
        typedef typename Register<typename Element<V>::type, bytes>::type R;
        for (unsigned long at = 0; at < sizeof(V); at += bytes) {
            const auto part = [&](const V& v) INLINE {
                R r;
                __builtin_memcpy(&r, (const char*)&v + at, bytes);
                return r;
            };
            const R y = f(part(x), part(more)...);
            __builtin_memcpy((char*)&x + at, &y, bytes);
        }
        return x;
    }
#endif
    for (int i = 0; i < LANES; ++i) x[i] = f(x[i], more[i]...);
    return x;
}

// f of one float, as a lane has it.
template <class F, class... More> INLINE inline float as_a_lane(F f, float x, More... more) {
#if defined(SLEEF) && defined(__AVX2__)
    return by_registers(f, splat<f32v>(x), splat<f32v>(more)...)[0];
#else
    return f(x, more...);
#endif
}

//: SLEEF_NUMBERS
// The type of a function: the C library's for single numbers, SLEEF's for registers, of floats as of doubles.
#define SLEEF_NUMBERS(name) \
    extern "C" f32x16 Sleef_##name##f16_u10(f32x16); \
    extern "C" f32x8 Sleef_##name##f8_u10(f32x8); \
    extern "C" f64x8 Sleef_##name##d8_u10(f64x8); \
    extern "C" f64x4 Sleef_##name##d4_u10(f64x4); \
    struct name##_of_all { \
        INLINE float operator()(float x) const { return __builtin_##name##f(x); } \
        INLINE double operator()(double x) const { return __builtin_##name(x); } \
        INLINE f64x8 operator()(f64x8 x) const { return Sleef_##name##d8_u10(x); } \
        INLINE f64x4 operator()(f64x4 x) const { return Sleef_##name##d4_u10(x); } \
        INLINE f32x16 operator()(f32x16 x) const { return Sleef_##name##f16_u10(x); } \
        INLINE f32x8 operator()(f32x8 x) const { return Sleef_##name##f8_u10(x); } \
    };

//: DOUBLES_IN_REGISTERS
// A function of vectors of doubles, beside one of floats.
#define DOUBLES_IN_REGISTERS(name) \
    SLEEF_NUMBERS(name) \
    INLINE inline f64v name##_(f64v x) { return by_registers(name##_of_all(), x); }

//: IN_REGISTERS
// A function of single numbers and of vectors, of floats as of doubles.
#define IN_REGISTERS(name) \
    SLEEF_NUMBERS(name) \
    INLINE inline float name##_(float x) { return as_a_lane(name##_of_all(), x); } \
    INLINE inline double name##_(double x) { return __builtin_##name(x); } \
    template <class V> INLINE inline V name##_(V x) { return by_registers(name##_of_all(), x); }

//: but_lanes
// y, but in the lanes `these` f of single numbers.
template <class M, class V, class F, class... X> INLINE inline V but_lanes(M these, V y, F f, X... x) {
    int some = 0;
    for (int i = 0; i < LANES; ++i) some |= these[i] != 0;
    for (int i = 0; some && i < LANES; ++i)
        if (these[i]) y[i] = f(x[i]...);
    return y;
}

//: HYPERBOLIC
// The same, but SLEEF gives infinity from where the exponential is.
#define HYPERBOLIC(name) \
    SLEEF_NUMBERS(name) \
    INLINE inline float name##_(float x) { return abs_(x) > 88.0f ? __builtin_##name##f(x) : as_a_lane(name##_of_all(), x); } \
    INLINE inline double name##_(double x) { return __builtin_##name(x); } \
    template <class V> INLINE inline V name##_(V x) { \
        const name##_of_all f; \
        return but_lanes(abs_(x) > splat<V>(sizeof(x[0]) == 4 ? 88.0f : 709.0f), by_registers(f, x), f, x); \
    }

//: sqrt_
LANE_BY_LANE(sqrt)

//: floor_
LANE_BY_LANE(floor)

//: ceil_
LANE_BY_LANE(ceil)

//: trunc_
LANE_BY_LANE(trunc)

//: rint_
LANE_BY_LANE(rint)

//: tan_
IN_REGISTERS(tan)

//: asin_
IN_REGISTERS(asin)

//: acos_
IN_REGISTERS(acos)

//: unseen
// x, as a value that the compiler does not know the origin of.
template <class F> INLINE inline F unseen(F x) {
    asm("" : "+m"(x));
    return x;
}

//: atan_
// GCC folds the sine or cosine of an arc tangent into a form without calls that gives 0 for NaN: it must not see one.
SLEEF_NUMBERS(atan)
INLINE inline float atan_(float x) { return unseen(as_a_lane(atan_of_all(), x)); }
INLINE inline double atan_(double x) { return unseen(__builtin_atan(x)); }
template <class V> INLINE inline V atan_(V x) { return by_registers(atan_of_all(), x); }

//: sinh_
HYPERBOLIC(sinh)

//: cosh_
HYPERBOLIC(cosh)

//: rsqrt_
template <class V> INLINE inline V rsqrt_(V x) { return V(1.0f / sqrt_(x)); }

//: fma_
// a * b + c, rounded once where the machine has the instruction (GCC does not find it in a loop over the lanes).
INLINE inline f32v fma_(f32v a, f32v b, f32v c) {
#if defined(__clang__) && defined(__FMA__)
    return __builtin_elementwise_fma(a, b, c);
#elif defined(__AVX512F__) && LANES == 16
    return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
#elif defined(__FMA__) && LANES == 8
    return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined(__FMA__) && LANES == 4
    return __builtin_ia32_vfmaddps(a, b, c);
#else
    return a * b + c;
#endif
}

//: polynomial
// c0 + c1 x + c2 x^2 + ..., in groups of four, so that the chain of dependent operations is short.
INLINE inline f32v polynomial(f32v, float c0) { return splat<f32v>(c0); }
INLINE inline f32v polynomial(f32v x, float c0, float c1) { return fma_(splat<f32v>(c1), x, splat<f32v>(c0)); }
INLINE inline f32v polynomial(f32v x, float c0, float c1, float c2) {
    return fma_(splat<f32v>(c2), x * x, polynomial(x, c0, c1));
}
INLINE inline f32v polynomial(f32v x, float c0, float c1, float c2, float c3) {
    return fma_(polynomial(x, c2, c3), x * x, polynomial(x, c0, c1));
}
template <class... Rest> INLINE inline f32v polynomial(f32v x, float c0, float c1, float c2, float c3, Rest... rest) {
    return fma_(polynomial(x, rest...), (x * x) * (x * x), polynomial(x, c0, c1, c2, c3));
}

//: clamp
// x within [low, high]; NaN stays.
INLINE inline f32v clamp(f32v x, float low, float high) {
    return smaller_of(splat<f32v>(high), larger_of(splat<f32v>(low), x));
}

//: copy_sign
// x, which is not negative, with the sign of y.
INLINE inline f32v copy_sign(f32v x, f32v y) { return from_bits(bits(x) | (bits(y) & (int)0x80000000)); }

//: nearest
// The nearest integer to x, |x| < 2^22, as a float.
INLINE inline f32v nearest(f32v x) {
#if defined(__AVX512F__) && LANES == 16
    return __builtin_ia32_rndscaleps_mask(x, 8, x, -1, 4);
#else
    return (x + 0x1.8p23f) - 0x1.8p23f;
#endif
}

//: sine_turned
// The sine of x > 0 and so many quarter turns, times the sign in `sign`: of x less its quarter turns, whose digits beyond
// those of a float are in `less`, by a polynomial. Lanes beyond 2^17, and those that hold no number, ask `other` of the
// number that was given.
template <class F> INLINE inline f32v sine_turned(f32v x, int turns, i32v sign, f32v given, F other) {
    const f32v n = nearest(smaller_of(x, splat<f32v>(0x1p17f)) * 0.63661975f);
    const f32v above = fma_(n, splat<f32v>(-0x1.921fb6p0f), x);  // exact: a multiple of 2^-23 below 1
    const f32v next = n * 0x1.777a5cp-25f, r = above + next, added = r - above;
    const f32v beyond = fma_(n, splat<f32v>(0x1.ee59dap-50f), fma_(n, splat<f32v>(0x1.777a5cp-25f), -next));
    const f32v less = (above - (r - added)) + (next - added) + beyond;
    const f32v z = r * r, half = 0.5f * z, most = 1.0f - half, lost = fma_(0.5f * r, r, -half) + r * less;
    const f32v odd = fma_(polynomial(z, -0.16666667f, 0.008333332f, -0.00019839997f, 2.7238495e-06f), z * r, less);
    const f32v even = fma_(polynomial(z, 0.041666668f, -0.0013888888f, 2.4800525e-05f), z * z, (1.0f - most - half) - lost);
    const i32v quarter = __builtin_convertvector(n, i32v) + turns;
    f32v sine = from_bits(bits((quarter & 1) != 0 ? most + even : r + odd) ^ ((quarter & 2) << 30) ^ sign);
    const i32v far = ~(x <= 0x1p17f);
    int some = 0;
    for (int i = 0; i < LANES; ++i) some |= far[i];
    for (int i = 0; some && i < LANES; ++i)
        if (far[i]) sine[i] = other(given[i]);
    return sine;
}

//: sin_
#if defined(__FMA__)
INLINE inline f32v sin_(f32v x) {
    const auto other = [](float e) INLINE { return __builtin_sinf(e); };
    return sine_turned(abs_(x), 0, bits(x) & (int)0x80000000, x, other);
}
INLINE inline float sin_(float x) { return sin_(splat<f32v>(x))[0]; }
#else
INLINE inline float sin_(float x) { return __builtin_sinf(x); }
INLINE inline f32v sin_(f32v x) { return each(x, [](float e) INLINE { return __builtin_sinf(e); }); }
#endif
INLINE inline double sin_(double x) { return __builtin_sin(x); }

//: sin_@f64v!
DOUBLES_IN_REGISTERS(sin)

//: cos_
#if defined(__FMA__)
INLINE inline f32v cos_(f32v x) {
    return sine_turned(abs_(x), 1, i32v{}, x, [](float e) INLINE { return __builtin_cosf(e); });
}
INLINE inline float cos_(float x) { return cos_(splat<f32v>(x))[0]; }
#else
INLINE inline float cos_(float x) { return __builtin_cosf(x); }
INLINE inline f32v cos_(f32v x) { return each(x, [](float e) INLINE { return __builtin_cosf(e); }); }
#endif
INLINE inline double cos_(double x) { return __builtin_cos(x); }

//: cos_@f64v!
DOUBLES_IN_REGISTERS(cos)

//: power_of_two
// 2^n for integers n from -126 to 127.
INLINE inline f32v power_of_two(i32v n) { return from_bits((n + 127) << 23); }

//: times_power_of_two
// x * 2^n, rounded once where the result is subnormal, infinite where it is too large.
INLINE inline f32v times_power_of_two(f32v x, f32v n) {
#if defined(__AVX512F__) && LANES == 16
    return __builtin_ia32_scalefps512_mask(x, n, x, -1, 4);
#else
    const i32v whole = __builtin_convertvector(n, i32v), half = whole >> 1;
    return x * power_of_two(half) * power_of_two(whole - half);
#endif
}

//: beyond_log2
// x - n log 2, in two steps.
INLINE inline f32v beyond_log2(f32v x, f32v n) {
    return fma_(n, splat<f32v>(2.12194440e-4f), fma_(n, splat<f32v>(-0.693359375f), x));
}

//: exp_inside
// e^x for x from -104 to 89, and NaN.
INLINE inline f32v exp_inside(f32v x) {
    const f32v n = nearest(x * 1.44269504f);
    const f32v r = beyond_log2(x, n);
    const f32v q = polynomial(r, 0.49999994f, 0.16666521f, 0.041668277f, 0.008368687f, 0.0013819824f);
    return times_power_of_two(fma_(q * r, r, r) + 1.0f, n);
}

//: at_most_half
// With AVX-512 the smaller in magnitude of r and 0.5; 0.5 for NaN.
#if defined(__AVX512DQ__) && LANES == 16 && !defined(__clang__)
INLINE inline f32v at_most_half(f32v r) { return __builtin_ia32_rangeps512_mask(r, splat<f32v>(0.5f), 2, r, -1, 4); }
#endif

//: sixteenths_power
// With AVX-512 a power is 2^n t (1 + q): n whole, t the power of two of a sixteenth, from a table, 1 + q the power of what
// is left. Adding a large number leaves the count of sixteenths in the lowest bits. Beyond the ends of the range 2^n alone
// decides, as long as q is a number near 0: so what is left is held to at most a half.
#if defined(__AVX512DQ__) && LANES == 16 && !defined(__clang__)
INLINE inline f32v sixteenths_power(f32v q, f32v count, f32v n) {
    const f32v table = {1.0f, 1.04427378f, 1.09050773f, 1.13878863f, 1.18920712f, 1.24185781f, 1.29683955f, 1.35425555f,
                        1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f, 1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};
    const f32v t = __builtin_shuffle(table, (i32v)count);
    return times_power_of_two(fma_(q, t, t), n);
}
#endif

//: exp_
// Without AVX-512 the result outside of [-104, 89] is 0 or infinity like at the ends.
INLINE inline f32v exp_(f32v x) {
#if defined(__AVX512DQ__) && LANES == 16 && !defined(__clang__)
    const f32v large = splat<f32v>(0x1.8p19f), count = fma_(x, splat<f32v>(1.44269504f), large), n = count - large;
    const f32v r = at_most_half(beyond_log2(x, n));
    return sixteenths_power(fma_(r * r, fma_(r, splat<f32v>(0.16666667f), splat<f32v>(0.5f)), r), count, n);
#else
    return exp_inside(clamp(x, -104.0f, 89.0f));
#endif
}
INLINE inline float exp_(float x) { return exp_(splat<f32v>(x))[0]; }
INLINE inline double exp_(double x) { return __builtin_exp(x); }

//: exp_@f64v!
DOUBLES_IN_REGISTERS(exp)

//: exp2_
INLINE inline f32v exp2_(f32v x) {
#if defined(__AVX512DQ__) && LANES == 16 && !defined(__clang__)
    const f32v large = splat<f32v>(0x1.8p19f), count = x + large, n = count - large, r = at_most_half(x - n);
    const f32v q = fma_(fma_(r, splat<f32v>(0.055502396f), splat<f32v>(0.24023323f)), r, splat<f32v>(0.6931472f));
    return sixteenths_power(q * r, count, n);
#else
    x = clamp(x, -151.0f, 129.0f);
    const f32v n = nearest(x), r = x - n;
    const f32v q = polynomial(r, 0.6931472f, 0.24022648f, 0.055503596f, 0.0096185f, 0.0013390976f, 0.00015328944f);
    return times_power_of_two(fma_(q, r, splat<f32v>(1.0f)), n);
#endif
}
INLINE inline float exp2_(float x) { return exp2_(splat<f32v>(x))[0]; }
INLINE inline double exp2_(double x) { return __builtin_exp2(x); }

//: exp2_@f64v!
DOUBLES_IN_REGISTERS(exp2)

//: expm1_
INLINE inline f32v expm1_(f32v x) {
    const f32v y = clamp(x, -25.0f, 89.0f);
    const f32v n = nearest(y * 1.44269504f);
    const f32v r = beyond_log2(y, n);
    const f32v q = polynomial(r, 0.5f, 0.16666667f, 0.04166649f, 0.008333208f, 0.0013932686f, 0.00019944266f);
    const f32v part = fma_(q * r, r, r);                                            // e^r - 1
    const f32v half = power_of_two(__builtin_convertvector(n, i32v) - 1);           // 2^n may be out of range
    const f32v whole = 2.0f * fma_(half, part, half - 0.5f);
    return abs_(x) < 0x1p-25f ? x : whole;
}
INLINE inline float expm1_(float x) { return expm1_(splat<f32v>(x))[0]; }
INLINE inline double expm1_(double x) { return __builtin_expm1(x); }

//: expm1_@f64v!
DOUBLES_IN_REGISTERS(expm1)

//: Logarithm
// x = 2^exponent (1 + f) with log(1 + f) = log_f; right for finite x > 0, subnormals included.
struct Logarithm {
    f32v exponent, log_f;
    INLINE explicit Logarithm(f32v x) {
        const i32v tiny = x < 0x1p-126f;
        const i32v u = bits(tiny ? x * 0x1p23f : x);
        const i32v e = (u - 0x3f3504f3) >> 23;  // 1 + f from sqrt(1/2) to sqrt(2)
        exponent = __builtin_convertvector(e + (tiny & -23), f32v);
        const f32v f = from_bits(u - (e << 23)) - 1.0f;
        const f32v p = polynomial(f, 0.33333313f, -0.2500001f, 0.20002076f, -0.16668001f, 0.14220233f, -0.124058485f,
                                  0.11884254f, -0.116731204f, 0.067513525f);
        log_f = f + (f * f) * fma_(p, f, splat<f32v>(-0.5f));
    }
};

//: log_domain
// y, but for what x leaves no logarithm: NaN below 0, -inf at 0, x itself where infinite or NaN.
INLINE inline f32v log_domain(f32v x, f32v y) {
    y = x < __builtin_inff() ? y : x;
    y = x == 0.0f ? splat<f32v>(-__builtin_inff()) : y;
    return x < 0.0f ? splat<f32v>(__builtin_nanf("")) : y;
}

//: log_
INLINE inline f32v log_(f32v x) {
    const Logarithm l(x);
    const f32v low = fma_(l.exponent, splat<f32v>(-2.12194440e-4f), l.log_f);
    return log_domain(x, fma_(l.exponent, splat<f32v>(0.693359375f), low));
}
INLINE inline float log_(float x) { return log_(splat<f32v>(x))[0]; }
INLINE inline double log_(double x) { return __builtin_log(x); }

//: log_@f64v!
DOUBLES_IN_REGISTERS(log)

//: log2_
INLINE inline f32v log2_(f32v x) {
    const Logarithm l(x);
    return log_domain(x, fma_(l.log_f, splat<f32v>(1.44269504f), l.exponent));
}
INLINE inline float log2_(float x) { return log2_(splat<f32v>(x))[0]; }
INLINE inline double log2_(double x) { return __builtin_log2(x); }

//: log2_@f64v!
DOUBLES_IN_REGISTERS(log2)

//: log10_
INLINE inline f32v log10_(f32v x) {
    const Logarithm l(x);
    const f32v low = fma_(l.exponent, splat<f32v>(4.6050390e-6f), l.log_f * 0.43429448f);
    return log_domain(x, fma_(l.exponent, splat<f32v>(0.30102539f), low));
}
INLINE inline float log10_(float x) { return log10_(splat<f32v>(x))[0]; }
INLINE inline double log10_(double x) { return __builtin_log10(x); }

//: log10_@f64v!
DOUBLES_IN_REGISTERS(log10)

//: log1p_
INLINE inline f32v log1p_(f32v x) {
    const f32v u = 1.0f + x;
    const f32v lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);  // what rounding took from 1 + x
    const f32v y = log_(u) + lost / u;
    const i32v odd = (u == 0.0f) | (u == __builtin_inff());
    const f32v edge = odd ? log_(u) : y;
    return abs_(x) < 0x1p-25f ? x : edge;
}
INLINE inline float log1p_(float x) { return log1p_(splat<f32v>(x))[0]; }
INLINE inline double log1p_(double x) { return __builtin_log1p(x); }

//: log1p_@f64v!
DOUBLES_IN_REGISTERS(log1p)

//: tanh_
INLINE inline f32v tanh_(f32v x) {
    const f32v t = expm1_(2.0f * smaller_of(splat<f32v>(10.0f), abs_(x)));
    return copy_sign(t / (t + 2.0f), x);
}
INLINE inline float tanh_(float x) { return tanh_(splat<f32v>(x))[0]; }
INLINE inline double tanh_(double x) { return __builtin_tanh(x); }

//: tanh_@f64v!
DOUBLES_IN_REGISTERS(tanh)

//: sigmoid_
// 1 / (1 + e^-x): 0 where e^-x is too large, as eager has it.
template <class V> INLINE inline V sigmoid_(V x) {
    const V one = splat<V>(typename Element<V>::type(1));
    return one / (one + exp_(-x));
}

//: half_erf
// erf(s / 8) / 2 for s from 0 on, and NaN: with AVX-512 a polynomial of the distance from each whole number up to 31,
// from where on it is 1/2. Adding the large number leaves the whole number in the lowest bits.
#if defined(__AVX512F__) && LANES == 16 && !defined(__clang__)
INLINE inline f32v half_erf(f32v s) {
    const f32v c0[2] = {{0.0f, 0.0701581f, 0.1381632f, 0.20205845f, 0.26024994f, 0.31162044f, 0.35557783f, 0.39203754f,
                       0.4213504f, 0.4441941f, 0.46145007f, 0.47408503f, 0.48305258f, 0.48922187f, 0.49333584f, 0.49599501f},
                      {0.49766114f, 0.498673f, 0.49926865f, 0.49960852f, 0.4997965f, 0.4998973f, 0.4999497f, 0.49997607f,
                       0.49998894f, 0.49999505f, 0.49999785f, 0.4999991f, 0.49999964f, 0.49999985f, 0.49999994f, 0.5f}};
    const f32v c1[2] = {{0.070523694f, 0.0694303f, 0.06625086f, 0.061272036f, 0.05492391f, 0.04771873f, 0.04018321f, 0.032796584f,
                       0.025944239f, 0.019892141f, 0.014782584f, 0.010647495f, 0.0074331476f, 0.0050295168f, 0.0032984354f, 0.0020966108f},
                      {0.0012916827f, 0.00077129755f, 0.00044639176f, 0.00025040237f, 0.00013614094f, 7.1740935e-05f, 3.6641504e-05f, 1.8138757e-05f,
                       8.703012e-06f, 4.0472455e-06f, 1.8242202e-06f, 7.9693484e-07f, 3.3743962e-07f, 1.3848317e-07f, 5.5084012e-08f, 5.880908e-07f}};
    const f32v c2[2] = {{1.0081888e-07f, -0.0010848352f, -0.0020703217f, -0.0028720396f, -0.0034328f, -0.0037280703f, -0.0037673276f, -0.003587286f,
                       -0.0032429195f, -0.002797209f, -0.002309874f, -0.0018299826f, -0.0013938483f, -0.0010216897f, -0.0007216532f, -0.0004911713f},
                      {-0.00032309818f, -0.00020498355f, -0.00012569726f, -7.411162e-05f, -4.2316493e-05f, -2.3365332e-05f, -1.2669968e-05f, -6.4572196e-06f,
                       -3.0810952e-06f, -1.5999077e-06f, -8.3107415e-07f, -5.533566e-07f, -3.703776e-07f, -3.9689237e-08f, 1.8034063e-08f, 4.0710383e-06f}};
    const f32v c3[2] = {{-0.00036803636f, -0.00034982315f, -0.00030155008f, -0.00022915086f, -0.00014300394f, -5.4500797e-05f, 2.5901552e-05f, 9.043162e-05f,
                       0.00013479967f, 0.00015834995f, 0.00016338396f, 0.00015408864f, 0.00013542845f, 0.0001121391f, 8.8075314e-05f, 6.591513e-05f},
                      {4.7154983e-05f, 3.2322725e-05f, 2.126622e-05f, 1.3448593e-05f, 8.183578e-06f, 4.7959443e-06f, 2.7088518e-06f, 1.4754975e-06f,
                       7.754613e-07f, 3.9339977e-07f, 1.9272025e-07f, 9.119589e-08f, 4.169686e-08f, 1.8425457e-08f, 7.870739e-09f, 1.0886706e-05f}};
    const f32v c4[2] = {{1.9346335e-06f, 8.331717e-06f, 1.5421587e-05f, 2.0028945e-05f, 2.2501614e-05f, 2.166443e-05f, 1.8871899e-05f, 1.42322315e-05f,
                       8.102482e-06f, 3.0361823e-06f, -4.297104e-07f, -3.884902e-06f, -5.0056806e-06f, -5.840295e-06f, -5.483138e-06f, -5.869108e-06f},
                      {-3.639559e-06f, -2.8775287e-06f, -1.8551707e-06f, -2.3321827e-06f, -1.7839216e-06f, -1.2222939e-06f, -1.6121218e-07f, -4.2733356e-07f,
                       -7.12334e-07f, -7.857313e-09f, 2.5271524e-07f, 6.774192e-07f, 7.044531e-07f, -7.7636805e-08f, -1.4204255e-07f, 9.673388e-06f}};
    s = smaller_of(splat<f32v>(31.0f), s);
    const f32v large = splat<f32v>(0x1.8p23f), count = s + large, t = s - (count - large);
    const auto of = [&](const f32v (&c)[2]) INLINE { return __builtin_shuffle(c[0], c[1], (i32v)count); };  // one instruction
    return fma_(fma_(fma_(fma_(of(c4), t, of(c3)), t, of(c2)), t, of(c1)), t, of(c0));
}
#endif

//: erf_
INLINE inline f32v erf_(f32v x) {
    const f32v a = abs_(x), square = x * x;
#if defined(__AVX512F__) && LANES == 16 && !defined(__clang__)
    const f32v small = fma_(x, polynomial(square, 0.12837917f, -0.37612626f, 0.11282917f, -0.026541574f), x);
    return a < 0.1875f ? small : copy_sign(2.0f * half_erf(8.0f * a), x);
#else
    const f32v small = fma_(x, polynomial(square, 0.12837917f, -0.37612626f, 0.11283579f, -0.026853347f,
                                              0.005187162f, -0.0007997853f, 7.806903e-05f), x);
    const f32v log_rest = polynomial(smaller_of(splat<f32v>(4.0f), a), -0.0002447136f, -1.127475f, -0.63751686f, -0.103640564f,
                                     0.02208782f, -0.0030086006f, 0.00019243463f);  // log(1 - erf(a))
    return a < 1.0f ? small : copy_sign(1.0f - exp_inside(log_rest), x);
#endif
}
INLINE inline float erf_(float x) { return erf_(splat<f32v>(x))[0]; }
INLINE inline double erf_(double x) { return __builtin_erf(x); }

//: erf_@f64v!
DOUBLES_IN_REGISTERS(erf)

//: normal_cdf_
template <class V> INLINE inline V normal_cdf_(V x) {
    typedef typename Element<V>::type E;
    return (erf_(x * splat<V>(E(0.7071067811865476))) + splat<V>(E(1))) * splat<V>(E(0.5));
}
#if defined(__AVX512F__) && LANES == 16 && !defined(__clang__)
INLINE inline f32v normal_cdf_(f32v x) { return copy_sign(half_erf(abs_(x) * 5.656854f), x) + 0.5f; }
#endif

//: SLEEF_PAIRS
// The type of a function of two numbers; `end` ends the names of SLEEF's.
#define SLEEF_PAIRS(name, end) \
    extern "C" f32x16 Sleef_##name##f16##end(f32x16, f32x16); \
    extern "C" f32x8 Sleef_##name##f8##end(f32x8, f32x8); \
    extern "C" f64x8 Sleef_##name##d8##end(f64x8, f64x8); \
    extern "C" f64x4 Sleef_##name##d4##end(f64x4, f64x4); \
    struct name##_of_pairs { \
        INLINE float operator()(float a, float b) const { return __builtin_##name##f(a, b); } \
        INLINE double operator()(double a, double b) const { return __builtin_##name(a, b); } \
        INLINE f32x16 operator()(f32x16 a, f32x16 b) const { return Sleef_##name##f16##end(a, b); } \
        INLINE f32x8 operator()(f32x8 a, f32x8 b) const { return Sleef_##name##f8##end(a, b); } \
        INLINE f64x8 operator()(f64x8 a, f64x8 b) const { return Sleef_##name##d8##end(a, b); } \
        INLINE f64x4 operator()(f64x4 a, f64x4 b) const { return Sleef_##name##d4##end(a, b); } \
    };

//: PAIRS_IN_REGISTERS
// A function of two single numbers and of two vectors, or of one of each.
#define PAIRS_IN_REGISTERS(name, end) \
    SLEEF_PAIRS(name, end) \
    INLINE inline float name##_(float a, float b) { return as_a_lane(name##_of_pairs(), a, b); } \
    INLINE inline double name##_(double a, double b) { return __builtin_##name(a, b); } \
    template <class A, class B> INLINE inline auto name##_(A a, B b) { \
        typedef wider<A, B> V; \
        return by_registers(name##_of_pairs(), splat<V>(a), splat<V>(b)); \
    }

//: pow_
PAIRS_IN_REGISTERS(pow, _u10)

//: atan2_
PAIRS_IN_REGISTERS(atan2, _u10)

//: fmod_
// SLEEF's is exact as long as the quotient is far from being infinite.
SLEEF_PAIRS(fmod, )
INLINE inline float fmod_(float a, float b) { return __builtin_fmodf(a, b); }
INLINE inline double fmod_(double a, double b) { return __builtin_fmod(a, b); }
template <class A, class B> INLINE inline auto fmod_(A a, B b) {
    typedef wider<A, B> V;
    const V x = splat<V>(a), y = splat<V>(b), r = by_registers(fmod_of_pairs(), x, y);
    typedef typename Element<V>::type E;
    const V most = abs_(y) * splat<V>(E(sizeof(E) == 4 ? 0x1p100 : 0x1p900));
    return but_lanes(abs_(x) >= most, r, fmod_of_pairs(), x, y);
}

//: fmod_whole
// Of integers, by a divisor that is not 0: what division leaves, with the sign of a.
template <class A, class B> INLINE inline auto fmod_whole(A a, B b) {
    typedef wider<A, B> V;
    return V(splat<V>(a) % splat<V>(b));
}

//: remainder_whole
// The same with the sign of b.
template <class A, class B> INLINE inline auto remainder_whole(A a, B b) {
    typedef wider<A, B> V;
    const V by = splat<V>(b), r = V(splat<V>(a) % by);
    return V((r != 0) & ((r < 0) != (by < 0)) ? V(r + by) : r);
}

//: floordiv_whole
// The quotient of integers, rounded down.
template <class A, class B> INLINE inline auto floordiv_whole(A a, B b) {
    typedef wider<A, B> V;
    const V x = splat<V>(a), by = splat<V>(b), r = V(x % by), q = V(x / by);
    return V((r != 0) & ((r < 0) != (by < 0)) ? V(q - 1) : q);
}

//: remainder_
// What floor division leaves: the sign is the divisor's.
template <class A, class B> INLINE inline auto remainder_(A a, B b) {
    typedef wider<A, B> V;
    const V by = splat<V>(b), r = fmod_(splat<V>(a), by);
    return V((r != V{}) & ((r < V{}) != (by < V{})) ? V(r + by) : r);
}

//: floordiv_
// The quotient of a less the exact remainder, rounded to an integer; x / 0 keeps the infinity.
template <class A, class B> INLINE inline auto floordiv_(A a, B b) {
    typedef wider<A, B> V;
    const V x = splat<V>(a), by = splat<V>(b), r = fmod_(x, by), plain = x / by, zero = {};
    const V above = (x - r) / by, quotient = (r != zero) & ((r < zero) != (by < zero)) ? V(above - splat<V>(1.0f)) : above;
    const V whole = floor_(quotient), near = quotient - whole > splat<V>(0.5f) ? V(whole + splat<V>(1.0f)) : whole;
    const V rounded = quotient == zero ? V(plain * zero) : near;  // a 0 with the sign of x / by
    return V(by == zero ? plain : rounded);
}
