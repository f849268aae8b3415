/* Error sums of two float32 arrays in one pass; ctypes calls this without Python's lock.
 *
 * Squares are added in float32 within blocks of BLOCK elements and LANES lanes, so at most BLOCK / LANES roundings in a row,
 * and in float64 over the blocks.  NaN and infinities make a sum non-finite, which is how the caller learns of them.
 */
#include <math.h>
#include <stddef.h>

#define LANES 16
#define BLOCK 1024

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define FOR_EACH_MACHINE __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define FOR_EACH_MACHINE
#endif

#ifdef _MSC_VER
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED
#endif

typedef struct {
    double a_sq, b_sq, d_sq, absmax, largest, largest_value;
    long long flushed, saturated;
} sums;

FOR_EACH_MACHINE
static void block(const float *a, const float *b, size_t n, float limit, sums *to)
{
    float a_sq[LANES] = {0}, b_sq[LANES] = {0}, d_sq[LANES] = {0};
    float a_max[LANES] = {0}, b_max[LANES] = {0}, d_max[LANES] = {0};
    int flushed[LANES] = {0}, saturated[LANES] = {0};
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int j = 0; j < LANES; j++) {
            float x = a[k + j], y = b[k + j], d = x - y;
            float ax = fabsf(x), ay = fabsf(y), ad = fabsf(d);
            a_sq[j] += x * x;
            b_sq[j] += y * y;
            d_sq[j] += d * d;
            a_max[j] = ax > a_max[j] ? ax : a_max[j];
            b_max[j] = ay > b_max[j] ? ay : b_max[j];
            d_max[j] = ad > d_max[j] ? ad : d_max[j];
            flushed[j] += (y == 0.0f) & (x != 0.0f);
            saturated[j] += (ay == limit) & (ax > limit);
        }
    for (int j = 0; k < n; k++, j++) {
        float x = a[k], y = b[k], d = x - y;
        a_sq[j] += x * x;
        b_sq[j] += y * y;
        d_sq[j] += d * d;
        a_max[j] = fabsf(x) > a_max[j] ? fabsf(x) : a_max[j];
        b_max[j] = fabsf(y) > b_max[j] ? fabsf(y) : b_max[j];
        d_max[j] = fabsf(d) > d_max[j] ? fabsf(d) : d_max[j];
        flushed[j] += (y == 0.0f) & (x != 0.0f);
        saturated[j] += (fabsf(y) == limit) & (fabsf(x) > limit);
    }
    for (int j = 0; j < LANES; j++) {
        to->a_sq += a_sq[j];
        to->b_sq += b_sq[j];
        to->d_sq += d_sq[j];
        to->absmax = a_max[j] > to->absmax ? a_max[j] : to->absmax;
        to->largest_value = b_max[j] > to->largest_value ? b_max[j] : to->largest_value;
        to->largest = d_max[j] > to->largest ? d_max[j] : to->largest;
        to->flushed += flushed[j];
        to->saturated += saturated[j];
    }
}

/* Sums over n elements; limit is the largest finite magnitude of b's format, or a NaN where b has none of its own. */
EXPORTED void narrowcast_error_sums(const float *a, const float *b, size_t n, float limit, sums *to)
{
    *to = (sums){0};
    for (size_t k = 0; k < n; k += BLOCK)
        block(a + k, b + k, n - k < BLOCK ? n - k : BLOCK, limit, to);
}

/* The installer treats this as an extension module; whoever imports it is told better.  Declared here by hand, because
 * Python's headers are often not installed. */
extern void *PyExc_ImportError;
extern void PyErr_SetString(void *, const char *);

EXPORTED void *PyInit__sums(void)
{
    PyErr_SetString(PyExc_ImportError, "converter.numerics._sums is no module: converter.numerics.compiled calls it");
    return NULL;
}
