//! The table of primitives with their C signatures, made once for each instruction set.
//!
//! Every row becomes one `unsafe extern "C"` function per instruction set, compiled with its features. Pointers
//! may have any alignment; n may be anything, zero included. What the arguments mean is documented where
//! the row's body points.

use super::Symbol;
use super::element::{Bf16, Bool, F16, F32, F64, I8, I32, U32, gather, load, round, store};
use super::random;
use super::reduce::{Max, Min, Product, Sum, accumulate, reduce};
use super::scalar::{self, map2};

/// Functions with the given attribute, under names that object files link with, and `SYMBOLS`, which lists them by name.
macro_rules! functions {
    ($module:ident $attribute:tt $($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? { $body:expr })*) => {
        $(
            #$attribute
            #[unsafe(export_name = concat!("kernfusion_", stringify!($module), "_", stringify!($name)))]
            #[allow(unused_unsafe, reason = "the row of `zero_upper` needs none")]
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller keeps the contract of the function called, and has the features.
                unsafe { $body }
            }
        )*
        pub(in super::super) static SYMBOLS: &[Symbol] = &[
            $(Symbol { name: stringify!($name), address: $name as *const u8 }),*
        ];
    };
}

macro_rules! primitives {
    ($module:ident $attribute:tt $lanes:ty, $exp:expr, $log:expr, $tanh:expr, $sigmoid:expr, $erf:expr) => {
        pub(super) mod $module {
            use super::*;
            functions! {
                $module $attribute
                exp_f32 (dst: *mut f32, src: *const f32, n: usize) { $exp(dst, src, n) }
                log_f32 (dst: *mut f32, src: *const f32, n: usize) { $log(dst, src, n) }
                tanh_f32(dst: *mut f32, src: *const f32, n: usize) { $tanh(dst, src, n) }
                sigmoid_f32(dst: *mut f32, src: *const f32, n: usize) { $sigmoid(dst, src, n) }
                erf_f32 (dst: *mut f32, src: *const f32, n: usize) { $erf(dst, src, n) }
                sin_f32 (dst: *mut f32, src: *const f32, n: usize) { scalar::map(dst, src, n, f32::sin) }
                cos_f32 (dst: *mut f32, src: *const f32, n: usize) { scalar::map(dst, src, n, f32::cos) }
                exp_f64 (dst: *mut f64, src: *const f64, n: usize) { scalar::map(dst, src, n, f64::exp) }
                log_f64 (dst: *mut f64, src: *const f64, n: usize) { scalar::map(dst, src, n, f64::ln) }
                tanh_f64(dst: *mut f64, src: *const f64, n: usize) { scalar::map(dst, src, n, f64::tanh) }
                sigmoid_f64(dst: *mut f64, src: *const f64, n: usize) { scalar::map(dst, src, n, scalar::sigmoid) }
                erf_f64 (dst: *mut f64, src: *const f64, n: usize) { scalar::map(dst, src, n, scalar::erf) }
                sin_f64 (dst: *mut f64, src: *const f64, n: usize) { scalar::map(dst, src, n, f64::sin) }
                cos_f64 (dst: *mut f64, src: *const f64, n: usize) { scalar::map(dst, src, n, f64::cos) }
                pow_f32(dst: *mut f32, x: *const f32, y: *const f32, n: usize) { map2(dst, x, y, n, f32::powf) }
                pow_f64(dst: *mut f64, x: *const f64, y: *const f64, n: usize) { map2(dst, x, y, n, f64::powf) }

                sum_f32(src: *const f32, n: usize) -> f32 { reduce::<$lanes, Sum>(src, n, 0.0) }
                sum_f64(src: *const f64, n: usize) -> f64 { reduce::<[f64; 16], Sum>(src, n, 0.0) }
                sum_i32(src: *const i32, n: usize) -> i32 { reduce::<[i32; 16], Sum>(src, n, 0) }
                sum_u32(src: *const u32, n: usize) -> u32 { reduce::<[u32; 16], Sum>(src, n, 0) }
                product_f32(src: *const f32, n: usize) -> f32 { reduce::<$lanes, Product>(src, n, 1.0) }
                product_f64(src: *const f64, n: usize) -> f64 { reduce::<[f64; 16], Product>(src, n, 1.0) }
                product_i32(src: *const i32, n: usize) -> i32 { reduce::<[i32; 16], Product>(src, n, 1) }
                product_u32(src: *const u32, n: usize) -> u32 { reduce::<[u32; 16], Product>(src, n, 1) }
                max_f32(src: *const f32, n: usize) -> f32 { reduce::<$lanes, Max>(src, n, f32::NEG_INFINITY) }
                max_f64(src: *const f64, n: usize) -> f64 { reduce::<[f64; 16], Max>(src, n, f64::NEG_INFINITY) }
                max_i32(src: *const i32, n: usize) -> i32 { reduce::<[i32; 16], Max>(src, n, i32::MIN) }
                max_u32(src: *const u32, n: usize) -> u32 { reduce::<[u32; 16], Max>(src, n, u32::MIN) }
                min_f32(src: *const f32, n: usize) -> f32 { reduce::<$lanes, Min>(src, n, f32::INFINITY) }
                min_f64(src: *const f64, n: usize) -> f64 { reduce::<[f64; 16], Min>(src, n, f64::INFINITY) }
                min_i32(src: *const i32, n: usize) -> i32 { reduce::<[i32; 16], Min>(src, n, i32::MAX) }
                min_u32(src: *const u32, n: usize) -> u32 { reduce::<[u32; 16], Min>(src, n, u32::MAX) }

                accumulate_sum_f32(acc: *mut f32, src: *const f32, n: usize) { accumulate::<f32, Sum>(acc, src, n) }
                accumulate_sum_f64(acc: *mut f64, src: *const f64, n: usize) { accumulate::<f64, Sum>(acc, src, n) }
                accumulate_sum_i32(acc: *mut i32, src: *const i32, n: usize) { accumulate::<i32, Sum>(acc, src, n) }
                accumulate_sum_u32(acc: *mut u32, src: *const u32, n: usize) { accumulate::<u32, Sum>(acc, src, n) }
                accumulate_product_f32(acc: *mut f32, src: *const f32, n: usize) { accumulate::<f32, Product>(acc, src, n) }
                accumulate_product_f64(acc: *mut f64, src: *const f64, n: usize) { accumulate::<f64, Product>(acc, src, n) }
                accumulate_product_i32(acc: *mut i32, src: *const i32, n: usize) { accumulate::<i32, Product>(acc, src, n) }
                accumulate_product_u32(acc: *mut u32, src: *const u32, n: usize) { accumulate::<u32, Product>(acc, src, n) }
                accumulate_max_f32(acc: *mut f32, src: *const f32, n: usize) { accumulate::<f32, Max>(acc, src, n) }
                accumulate_max_f64(acc: *mut f64, src: *const f64, n: usize) { accumulate::<f64, Max>(acc, src, n) }
                accumulate_max_i32(acc: *mut i32, src: *const i32, n: usize) { accumulate::<i32, Max>(acc, src, n) }
                accumulate_max_u32(acc: *mut u32, src: *const u32, n: usize) { accumulate::<u32, Max>(acc, src, n) }
                accumulate_min_f32(acc: *mut f32, src: *const f32, n: usize) { accumulate::<f32, Min>(acc, src, n) }
                accumulate_min_f64(acc: *mut f64, src: *const f64, n: usize) { accumulate::<f64, Min>(acc, src, n) }
                accumulate_min_i32(acc: *mut i32, src: *const i32, n: usize) { accumulate::<i32, Min>(acc, src, n) }
                accumulate_min_u32(acc: *mut u32, src: *const u32, n: usize) { accumulate::<u32, Min>(acc, src, n) }

                load_f32 (dst: *mut f32, src: *const u8, stride: isize, n: usize) { load::<F32>(dst, src, stride, n) }
                load_bf16(dst: *mut f32, src: *const u8, stride: isize, n: usize) { load::<Bf16>(dst, src, stride, n) }
                load_f16 (dst: *mut f32, src: *const u8, stride: isize, n: usize) { load::<F16>(dst, src, stride, n) }
                load_f64 (dst: *mut f64, src: *const u8, stride: isize, n: usize) { load::<F64>(dst, src, stride, n) }
                load_i32 (dst: *mut i32, src: *const u8, stride: isize, n: usize) { load::<I32>(dst, src, stride, n) }
                load_u32 (dst: *mut u32, src: *const u8, stride: isize, n: usize) { load::<U32>(dst, src, stride, n) }
                load_i8  (dst: *mut i32, src: *const u8, stride: isize, n: usize) { load::<I8>(dst, src, stride, n) }
                load_bool(dst: *mut i32, src: *const u8, stride: isize, n: usize) { load::<Bool>(dst, src, stride, n) }
                store_f32 (dst: *mut u8, stride: isize, src: *const f32, n: usize) { store::<F32>(dst, stride, src, n) }
                store_bf16(dst: *mut u8, stride: isize, src: *const f32, n: usize) { store::<Bf16>(dst, stride, src, n) }
                store_f16 (dst: *mut u8, stride: isize, src: *const f32, n: usize) { store::<F16>(dst, stride, src, n) }
                store_f64 (dst: *mut u8, stride: isize, src: *const f64, n: usize) { store::<F64>(dst, stride, src, n) }
                store_i32 (dst: *mut u8, stride: isize, src: *const i32, n: usize) { store::<I32>(dst, stride, src, n) }
                store_u32 (dst: *mut u8, stride: isize, src: *const u32, n: usize) { store::<U32>(dst, stride, src, n) }
                store_i8  (dst: *mut u8, stride: isize, src: *const i32, n: usize) { store::<I8>(dst, stride, src, n) }
                store_bool(dst: *mut u8, stride: isize, src: *const i32, n: usize) { store::<Bool>(dst, stride, src, n) }
                gather_f32(dst: *mut f32, src: *const u8, stride: isize, index: *const i32, index_stride: isize, limit: i64, n: usize) {
                    gather::<F32>(dst, src, stride, index, index_stride, limit, n)
                }
                gather_bf16(dst: *mut f32, src: *const u8, stride: isize, index: *const i32, index_stride: isize, limit: i64, n: usize) {
                    gather::<Bf16>(dst, src, stride, index, index_stride, limit, n)
                }
                gather_f16(dst: *mut f32, src: *const u8, stride: isize, index: *const i32, index_stride: isize, limit: i64, n: usize) {
                    gather::<F16>(dst, src, stride, index, index_stride, limit, n)
                }
                gather_f64(dst: *mut f64, src: *const u8, stride: isize, index: *const i32, index_stride: isize, limit: i64, n: usize) {
                    gather::<F64>(dst, src, stride, index, index_stride, limit, n)
                }
                gather_i32(dst: *mut i32, src: *const u8, stride: isize, index: *const i32, index_stride: isize, limit: i64, n: usize) {
                    gather::<I32>(dst, src, stride, index, index_stride, limit, n)
                }
                gather_u32(dst: *mut u32, src: *const u8, stride: isize, index: *const i32, index_stride: isize, limit: i64, n: usize) {
                    gather::<U32>(dst, src, stride, index, index_stride, limit, n)
                }
                gather_i8(dst: *mut i32, src: *const u8, stride: isize, index: *const i32, index_stride: isize, limit: i64, n: usize) {
                    gather::<I8>(dst, src, stride, index, index_stride, limit, n)
                }
                gather_bool(dst: *mut i32, src: *const u8, stride: isize, index: *const i32, index_stride: isize, limit: i64, n: usize) {
                    gather::<Bool>(dst, src, stride, index, index_stride, limit, n)
                }
                round_bf16(dst: *mut f32, src: *const f32, n: usize) { round::<Bf16>(dst, src, n) }
                round_f16 (dst: *mut f32, src: *const f32, n: usize) { round::<F16>(dst, src, n) }

                philox(dst: *mut u32, n: usize, seed: u32, node: u32, step: u32, start: u64, stride: u64) {
                    random::philox(dst, n, seed, node, step, start, stride)
                }
                zero_upper() { super::super::zero_upper() }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
use super::elementary::{Erf, Exp, Log, Sigmoid, Tanh};
#[cfg(target_arch = "x86_64")]
use super::vector::{
    map,
    x86::{Avx2, Avx512},
};

#[cfg(target_arch = "x86_64")]
primitives! {
    avx512 [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    Avx512, map::<Avx512, Exp>, map::<Avx512, Log>, map::<Avx512, Tanh>, map::<Avx512, Sigmoid>, map::<Avx512, Erf>
}
#[cfg(target_arch = "x86_64")]
primitives! {
    avx2 [target_feature(enable = "avx2,fma")]
    [Avx2; 2], map::<Avx2, Exp>, map::<Avx2, Log>, map::<Avx2, Tanh>, map::<Avx2, Sigmoid>, map::<Avx2, Erf>
}
primitives! {
    portable [inline(never)]
    [f32; 16],
    |dst, src, n| scalar::map(dst, src, n, f32::exp),
    |dst, src, n| scalar::map(dst, src, n, f32::ln),
    |dst, src, n| scalar::map(dst, src, n, f32::tanh),
    |dst, src, n| scalar::map(dst, src, n, |x: f32| 1.0 / (1.0 + (-x).exp())),
    |dst, src, n| scalar::map(dst, src, n, scalar::erf_f32)
}
