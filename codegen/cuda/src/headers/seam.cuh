// One kernel source, two bodies. What a kernel may use beyond plain C++ stands here: barriers, shuffles, asynchronous
// copies and tensor cores. NVRTC takes the device body, inline PTX; any other compiler takes the emulator, which runs
// the same source on the CPU, so that it can be tested where there is no GPU.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// A tile of a product is computed by so many threads; every other block has a multiple of a warp.
constexpr int THREADS = 256;
constexpr int WARP = 32;

// The arguments of a function that does the work of several kernels.
template <int COUNT> struct Pointers {
  void* at[COUNT];
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define KERNEL extern "C" __global__ void
// How many blocks of a function a multiprocessor should run at once; it is compiled again for fewer where that many leave too few registers.
#ifdef FEWER_BLOCKS
#define BLOCKS(most) FEWER_BLOCKS
#else
#define BLOCKS(most) most
#endif
#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
// A few turns at a time, whose loads are under way together.
#define UNROLL_SOME _Pragma("unroll 4")
// As many as a thread should have loads under way at least.
#define UNROLL_MANY _Pragma("unroll 16")
#define ROLLED _Pragma("unroll 1")
// A table that no thread writes.
#define CONSTANT __constant__ const
// An array in memory that the block's threads share; its content is anything until they have written it.
#define SHARED(T, name, count) __shared__ __align__(16) T name[count]
// As SHARED, in memory that launches ask for, as much as they like: from a number of bytes on.
#define LAUNCHED_SHARED(T, name, offset, count)        \
  extern __shared__ __align__(1024) u8 launched_shared[]; \
  T* name = (T*)(launched_shared + (offset))

// The value of the lane whose number differs in these bits.
template <class T> DEVICE T shuffle_xor(T value, int bits) {
  return __shfl_xor_sync(0xffffffffu, value, bits);
}

// Whether this holds for any lane.
DEVICE bool any_of_warp(bool holds) { return __any_sync(0xffffffffu, holds); }

// Starts a copy of 16 aligned bytes from global to shared memory, of which the first `bytes` are read, and the others are zeros.
// If there are none to be read, the source may be anywhere.
DEVICE void copy_async(void* to, const void* from, int bytes) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}

// The same of all 16 bytes.
DEVICE void copy_async(void* to, const void* from) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// As copy_async, of one number of four or eight bytes, or of a zero.
template <int BYTES> DEVICE void copy_number(void* to, const void* from, bool is_there) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES), "r"(is_there ? BYTES : 0)
               : "memory");
}

// Asks the second cache for the line that has this address.
DEVICE void prefetch_line(const void* place) { asm volatile("prefetch.global.L2 [%0];" ::"l"(place)); }

// Ends this thread's group of copies.
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most so many of this thread's groups are under way.
template <int GROUPS> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory"); }

// Loads four matrices of 8×8 numbers of 16 bits from shared memory. Lane 8i + j of the warp has the address of line j of matrix i,
// 16 aligned bytes; lane 4g + q gets, as word i, the numbers 2q and 2q + 1 of line g of matrix i or, transposed, number g of its
// lines 2q and 2q + 1.
template <bool IS_TRANSPOSED> DEVICE void load_matrices(u32* words, const void* line) {
  const u32 address = (u32)__cvta_generic_to_shared(line);
  if constexpr (IS_TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

// d += a·b of a warp, 16×16 by 16×8, operands of bf16, sums of f32.
DEVICE void mma_bf16(float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// As mma_bf16, operands of f16.
DEVICE void mma_f16(float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d += a·b of a warp, 16×8 by 8×8, operands of f32 whose lower 13 bits are zero.
DEVICE void mma_tf32(float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Products of a warpgroup, four warps (wgmma): they read matrices in shared memory and add to sums in registers while the threads go on.
// Its operands are found by 64 bits each: bits 0 to 13 have the address, 16 to 29 the distance of 64 rows to the next ones if
// neighbours lie along rows, 32 to 45 that of eight lines to the next ones, all in units of 16 bytes; bits 62 and 63 are 1 for the
// 128-byte swizzle.

// Where something lies in the block's shared memory, in bytes.
DEVICE u32 shared_address(const void* place) { return (u32)__cvta_generic_to_shared(place); }

// Lets products read, after a barrier of the block, what this thread has written to shared memory, its copies among it.
DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Begins a group of products: what this thread has done to their sums is done.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Ends a group of products.
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most so many groups of products are under way.
template <int GROUPS> DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory"); }

// Keeps the compiler from computing with a sum before a wait that it does not know to change it, or after a product begins.
DEVICE void keep_in_place(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
DEVICE void keep_in_place(u32& word) { asm volatile("" : "+r"(word)::"memory"); }

#define NAMES_32                                                                                              \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
  "%29,%30,%31"
#define NAMES_64                                                                                             \
  NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,"   \
           "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_128                                                                                             \
  NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,"    \
           "%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108," \
           "%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define SUMS_4(how, d, at) how(d[at]), how(d[at + 1]), how(d[at + 2]), how(d[at + 3])
#define SUMS_16(how, d, at) SUMS_4(how, d, at), SUMS_4(how, d, at + 4), SUMS_4(how, d, at + 8), SUMS_4(how, d, at + 12)
#define SUMS_32(how, d) SUMS_16(how, d, 0), SUMS_16(how, d, 16)
#define SUMS_64(how, d) SUMS_32(how, d), SUMS_16(how, d, 32), SUMS_16(how, d, 48)
#define SUMS_128(how, d) SUMS_64(how, d), SUMS_16(how, d, 64), SUMS_16(how, d, 80), SUMS_16(how, d, 96), SUMS_16(how, d, 112)

// Starts d += a·b of a warpgroup, 64×16 by 16×COLUMNS, sums of f32, or d = a·b. Lane 4g + q of warp w has, for each eight columns j, the
// sums of row 16w + g and columns 8j + 2q, 8j + 2q + 1, then those of row 16w + g + 8. The first operand lies in shared memory or in
// registers, where each warp has its 16 rows as `mma_bf16` takes them, and which stay as they are until the product is waited for.
template <class T, int COLUMNS, bool A_ALONG_ROWS, bool B_ALONG_ROWS> struct WarpgroupProduct;
#define WARPGROUP_PRODUCT(TYPE, COLUMNS, NAMES, SUMS, MATRICES, FRAGMENTS)                                             \
  template <bool A_ALONG_ROWS, bool B_ALONG_ROWS> struct WarpgroupProduct<TYPE, COLUMNS, A_ALONG_ROWS, B_ALONG_ROWS> { \
    template <bool ADDS = true> DEVICE static void start(float* d, u64 a, u64 b) {                                     \
      if constexpr (ADDS)                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." #TYPE "." #TYPE " {" NAMES "}, " MATRICES ";"\
                     : SUMS("+f", d)                                                                                   \
                     : "l"(a), "l"(b), "n"(1), "n"(A_ALONG_ROWS), "n"(B_ALONG_ROWS)                                    \
                     : "memory");                                                                                      \
      else                                                                                                             \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." #TYPE "." #TYPE " {" NAMES "}, " MATRICES ";"\
                     : SUMS("=f", d)                                                                                   \
                     : "l"(a), "l"(b), "n"(0), "n"(A_ALONG_ROWS), "n"(B_ALONG_ROWS)                                    \
                     : "memory");                                                                                      \
    }                                                                                                                  \
    DEVICE static void start(float* d, const u32* a, u64 b) {                                                          \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." #TYPE "." #TYPE " {" NAMES "}, " FRAGMENTS ";"\
                   : SUMS("+f", d)                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(B_ALONG_ROWS)                             \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  };
#define WARPGROUP_PRODUCTS(TYPE)                                                                                       \
  struct TYPE;                                                                                                         \
  WARPGROUP_PRODUCT(TYPE, 64, NAMES_32, SUMS_32,                                                                       \
                    "%32, %33, %34, 1, 1, %35, %36", "{%32, %33, %34, %35}, %36, 1, 1, 1, %37")                        \
  WARPGROUP_PRODUCT(TYPE, 128, NAMES_64, SUMS_64,                                                                      \
                    "%64, %65, %66, 1, 1, %67, %68", "{%64, %65, %66, %67}, %68, 1, 1, 1, %69")                        \
  WARPGROUP_PRODUCT(TYPE, 256, NAMES_128, SUMS_128,                                                                    \
                    "%128, %129, %130, 1, 1, %131, %132", "{%128, %129, %130, %131}, %132, 1, 1, 1, %133")
WARPGROUP_PRODUCTS(bf16)
WARPGROUP_PRODUCTS(f16)

// x rounded to 10 bits of fraction, to nearest, ties away from zero.
DEVICE u32 tf32_bits(float x) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

DEVICE float float_of_bits(u32 bits) { return __uint_as_float(bits); }

// Four of the bytes of x, numbers 0 to 3, and of y, 4 to 7: each is chosen by half a byte of the selector, the lowest by the lowest.
DEVICE u32 bytes_of(u32 x, u32 y, u32 selector) { return __byte_perm(x, y, selector); }
DEVICE u32 bits_of_float(float x) { return __float_as_uint(x); }
DEVICE double double_of_bits(u64 bits) { return __longlong_as_double((long long)bits); }

// Two numbers of 16 bits, the first one in the lower half.
DEVICE u32 bf16_pair(float x, float y) {
  u32 bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
  return bits;
}
DEVICE u32 half_pair(float x, float y) {
  u32 bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
  return bits;
}

// The bf16 nearest to x, ties to even; a NaN stays one. Pairs are converted faster than single numbers.
DEVICE u16 bf16_bits(float x) { return (u16)bf16_pair(x, 0.0f); }

// The f16 nearest to x, ties to even.
DEVICE u16 half_bits(float x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

DEVICE float half_value(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// The larger one; NaN if either is.
DEVICE float maximum(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// x − y, of a product x as it is rounded elsewhere, too: never one operation with the multiplication.
DEVICE float difference(float x, float y) { return __fsub_rn(x, y); }

// 2^x, off by two units of the last place; 0 for less than 2⁻¹²⁶.
DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1/x, off by a unit of the last place; 0 for more than 2¹²⁶.
DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else
#include "emulator.hpp"
#endif
