//! Elements as they lie in memory, and the lanes that kernels compute on: loads, stores, gathers, roundings.
//!
//! | element | bytes | lane |
//! |---|---|---|
//! | `F32`, `Bf16`, `F16`, `Byte` | 4, 2, 2, 1 | `f32` |
//! | `F64`, `I32`, `U32` | 8, 4, 4 | `f64`, `i32`, `u32` |
//! | `I8` | 1 | `i32` |
//! | `Bool` (0 or 1) | 1 | `i32` mask, 0 or -1 |
//!
//! Conversions are branchless integer code, so that the compiler vectorises them on every instruction set and
//! all of them agree bit for bit, subnormal numbers included.

/// A type of element in memory.
pub(crate) trait Element {
    /// What memory holds.
    type Stored: Copy;
    /// What kernels compute on.
    type Lane: Copy;
    fn widen(stored: Self::Stored) -> Self::Lane;
    /// Rounds to nearest, ties to even.
    fn narrow(lane: Self::Lane) -> Self::Stored;
}

macro_rules! plain {
    ($($element:ident $type:ident),*) => {$(
        pub(crate) struct $element;
        impl Element for $element {
            type Stored = $type;
            type Lane = $type;
            #[inline(always)]
            fn widen(stored: $type) -> $type {
                stored
            }
            #[inline(always)]
            fn narrow(lane: $type) -> $type {
                lane
            }
        }
    )*};
}
plain!(F32 f32, F64 f64, I32 i32, U32 u32);

pub(crate) struct Bf16;
pub(crate) struct F16;
pub(crate) struct I8;
/// `I8` where a product reads it.
pub(crate) struct Byte;
pub(crate) struct Bool;

impl Element for Bf16 {
    type Stored = u16;
    type Lane = f32;

    #[inline(always)]
    fn widen(stored: u16) -> f32 {
        f32::from_bits(u32::from(stored) << 16)
    }

    #[inline(always)]
    fn narrow(lane: f32) -> u16 {
        let bits = lane.to_bits();
        // Just under half of the last place, and the rest of it where that place is odd. The carry may reach
        // infinity, as it should.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        // A NaN keeps its sign and upper payload, and becomes quiet.
        let nan = bits | 0x0040_0000;
        ((if lane.is_nan() { nan } else { rounded }) >> 16) as u16
    }
}

impl Element for F16 {
    type Stored = u16;
    type Lane = f32;

    #[inline(always)]
    fn widen(stored: u16) -> f32 {
        let sign = (u32::from(stored) & 0x8000) << 16;
        let magnitude = (u32::from(stored) & 0x7fff) << 13;
        // Moves the exponent bias from 15 to 127; exact for subnormal numbers too.
        let finite = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
        let special = magnitude | 0x7f80_0000;
        f32::from_bits(sign | if magnitude >= 0x7c00 << 13 { special } else { finite })
    }

    #[inline(always)]
    fn narrow(lane: f32) -> u16 {
        let bits = lane.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // Normal results: as for bf16, with 13 bits to drop and the bias moved from 127 to 15.
        let normal = magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
        // Subnormal results: beside ½ the last place of an f32 is 2⁻²⁴, the last place of an f16, so that
        // the addition rounds.
        let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if magnitude < 113 << 23 { small } else { normal };
        let nan = 0x7e00 | ((magnitude >> 13) & 0x1ff);
        // From 65520 on the nearest value is infinity.
        let large = if lane.is_nan() { nan } else { 0x7c00 };
        let result = if magnitude >= 0x477f_f000 { large } else { finite };
        (result | ((bits >> 16) & 0x8000)) as u16
    }
}

impl Element for I8 {
    type Stored = i8;
    type Lane = i32;

    #[inline(always)]
    fn widen(stored: i8) -> i32 {
        i32::from(stored)
    }

    /// Lanes hold values that bytes have.
    #[inline(always)]
    fn narrow(lane: i32) -> i8 {
        lane as i8
    }
}

impl Element for Byte {
    type Stored = i8;
    type Lane = f32;

    #[inline(always)]
    fn widen(stored: i8) -> f32 {
        f32::from(stored)
    }

    #[inline(always)]
    fn narrow(lane: f32) -> i8 {
        lane as i8
    }
}

impl Element for Bool {
    type Stored = u8;
    type Lane = i32;

    #[inline(always)]
    fn widen(stored: u8) -> i32 {
        -i32::from(stored != 0)
    }

    #[inline(always)]
    fn narrow(lane: i32) -> u8 {
        u8::from(lane != 0)
    }
}

/// `dst[i] = src[i · stride]`, widened; the stride counts elements, and 0 repeats one.
///
/// # Safety
/// `dst` covers n lanes, `src` every element named, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn load<E: Element>(dst: *mut E::Lane, src: *const u8, stride: isize, n: usize) {
    let src = src.cast::<E::Stored>();
    // SAFETY: the caller's contract; memory of any alignment.
    unsafe {
        match stride {
            _ if n == 0 => {}
            0 => {
                let value = E::widen(src.read_unaligned());
                (0..n).for_each(|i| dst.add(i).write_unaligned(value));
            }
            1 => (0..n).for_each(|i| dst.add(i).write_unaligned(E::widen(src.add(i).read_unaligned()))),
            _ => {
                for i in 0..n {
                    let value = src.offset(i as isize * stride).read_unaligned();
                    dst.add(i).write_unaligned(E::widen(value));
                }
            }
        }
    }
}

/// `dst[i · stride] = src[i]`, rounded to the element type; the stride counts elements.
///
/// # Safety
/// `src` covers n lanes, `dst` every element named, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn store<E: Element>(dst: *mut u8, stride: isize, src: *const E::Lane, n: usize) {
    let dst = dst.cast::<E::Stored>();
    // SAFETY: the caller's contract; memory of any alignment.
    unsafe {
        if stride == 1 {
            (0..n).for_each(|i| dst.add(i).write_unaligned(E::narrow(src.add(i).read_unaligned())));
        } else {
            for i in 0..n {
                let value = E::narrow(src.add(i).read_unaligned());
                dst.offset(i as isize * stride).write_unaligned(value);
            }
        }
    }
}

/// `dst[i] = src[i · stride + clamp(index[i], 0, limit - 1) · index_stride]`, widened; strides count elements.
///
/// # Safety
/// `limit` is at least 1, `dst` covers n lanes, `index` n numbers, `src` every element that can be named.
#[inline(always)]
pub(crate) unsafe fn gather<E: Element>(
    dst: *mut E::Lane,
    src: *const u8,
    stride: isize,
    index: *const i32,
    index_stride: isize,
    limit: i64,
    n: usize,
) {
    let src = src.cast::<E::Stored>();
    for i in 0..n {
        // SAFETY: the caller's contract; memory of any alignment.
        unsafe {
            let row = i64::from(index.add(i).read_unaligned()).min(limit - 1).max(0) as isize;
            let value = src.offset(i as isize * stride + row * index_stride).read_unaligned();
            dst.add(i).write_unaligned(E::widen(value));
        }
    }
}

/// `dst[i] = src[i]` rounded to the element type and back; `dst` may be `src`.
///
/// # Safety
/// Both pointers cover n values, and are equal or do not overlap.
#[inline(always)]
pub(crate) unsafe fn round<E: Element<Lane = f32>>(dst: *mut f32, src: *const f32, n: usize) {
    // Whole blocks are read before they are written, which vectorises in place too.
    const BLOCK: usize = 16;
    let whole = n - n % BLOCK;
    // SAFETY: the caller's contract; memory of any alignment.
    unsafe {
        for i in (0..whole).step_by(BLOCK) {
            let mut block = src.add(i).cast::<[f32; BLOCK]>().read_unaligned();
            for value in &mut block {
                *value = E::widen(E::narrow(*value));
            }
            dst.add(i).cast::<[f32; BLOCK]>().write_unaligned(block);
        }
        for i in whole..n {
            dst.add(i).write_unaligned(E::widen(E::narrow(src.add(i).read_unaligned())));
        }
    }
}
