//! The register tile of the tile unit (AMX): 32 × 32 sums in four tiles, 16 words of k (32 values of bf16) at a step.
//!
//! Packed operands are what the unit wants as they lie: 16 words of 16 rows of A are one tile, 16 × 16 words of a panel of B
//! another one. Words beyond the end of k are zeros in both; rows beyond the end are multiplied, too, and not stored.
//!
//! Beside products of bf16 there are those of `f32` in parts, each of which is what those before it left of the value: a step has 16
//! words of each part, and several products. A word has value i of 32 in its lower half and value i + 16 in its upper one, so that whole
//! registers are taken apart and put together without exchanging lanes; and parts are the upper halves of `f32`, rounded
//! by one addition of integers. Sums begin from what C holds, or from zero.
//!
//! Words of four bytes have products of their own, whose sums are whole numbers until the last block of k.
//!
//! A step's sums are the same bits in the processor and in [`emulated`]: even and odd places of k are summed apart from zero, by
//! fused multiply-adds in the order of k, both sums are added, and then added to what the tile holds. Subnormal operands and results
//! count as zero, whatever the thread's rounding mode says (Intel's Software Developer's Manual, TDPBF16PS).

use super::microkernel::{LDA, TileOutput};
use std::arch::asm;

/// Rows and columns of the register tile.
pub(super) const SIDE: usize = 32;
/// Words of k that an instruction multiplies.
pub(super) const STEP: usize = 16;

/// The sums of a register tile.
type Sums = [f32; SIDE * SIDE];

/// Which parts of the words of A and of B are multiplied, in this order, which loads them seldom.
type Products = &'static [(usize, usize)];
const BF16: Products = &[(0, 0)];
const X3: Products = &[(0, 1), (0, 0), (1, 0)];
const X6: Products = &[(2, 0), (1, 0), (1, 1), (0, 1), (0, 0), (0, 2)];

/// Which values of k are in the halves of word `w` of a part.
pub(super) fn split_places(w: usize) -> [usize; 2] {
    let lower = w / STEP * 2 * STEP + w % STEP;
    [lower, lower + STEP]
}

/// Added to the bits of an `f32`, it rounds to the nearest number whose lower half is zero. It may turn a NaN into zero, so the last
/// part, which must keep it, does not add it to a NaN.
pub(super) const HALF: i32 = 0x8000;

/// Whether part number `part` is rounded to nearest (ties away from zero) and not towards zero. The first of several always is, so that
/// what it leaves has either sign. Of three, the other two hold every digit that is left, so nothing is rounded away.
pub(super) fn rounds(part: usize, parts: usize) -> bool {
    part == 0 || part + 1 == parts && parts < 3
}

macro_rules! register_tiles {
    ($($name:ident $emulated:ident $work:ident $products:ident $parts:literal)*) => {$(
        /// The register tile on the processor's tile unit.
        ///
        /// # Safety
        /// As [`super::microkernel::Tile`]; A has memory for 32 rows, and this thread's tiles are configured.
        pub(super) unsafe fn $name(
            rows: usize,
            words: usize,
            a: *const u32,
            b: *const u32,
            target: &TileOutput,
        ) {
            // SAFETY: the caller's contract; `with_all_rows` has a whole tile.
            unsafe {
                if rows == SIDE {
                    $work(words, a, b, target);
                } else {
                    with_all_rows(rows, target, |target| $work(words, a, b, target));
                }
            }
        }

        /// The same in portable code.
        ///
        /// # Safety
        /// As on the tile unit, without tiles; the machine has AVX-512.
        pub(super) unsafe fn $emulated(
            rows: usize,
            words: usize,
            a: *const u32,
            b: *const u32,
            target: &TileOutput,
        ) {
            // SAFETY: as above.
            unsafe { emulated::<$parts>($products, (rows, words), a, b, target) }
        }
    )*};
}
register_tiles! {
    bf16 emulated_bf16 multiply_bf16 BF16 1
    x3 emulated_x3 multiply_x3 X3 2
    x6 emulated_x6 multiply_x6 X6 3
}

/// Works on a copy of the target that has all rows.
unsafe fn with_all_rows(rows: usize, target: &TileOutput, work: impl FnOnce(&TileOutput)) {
    let mut sums: Sums = [0.0; SIDE * SIDE];
    // SAFETY: the target has `rows` rows, the copy all of them.
    unsafe {
        let line = |i: usize| target.c.wrapping_add(i * target.ldc);
        if target.accumulate {
            for (i, sums) in sums.chunks_exact_mut(SIDE).enumerate().take(rows) {
                line(i).copy_to_nonoverlapping(sums.as_mut_ptr(), SIDE);
            }
        }
        work(&TileOutput { c: sums.as_mut_ptr(), ldc: SIDE, ..*target });
        for (i, sums) in sums.chunks_exact(SIDE).enumerate().take(rows) {
            sums.as_ptr().copy_to_nonoverlapping(line(i), SIDE);
        }
    }
}

// Loads of 32 rows of one part of A, one half of the rows at a time, of one part of B, and products of both.
macro_rules! upper {
    ($part:literal) => {
        concat!("tileloadd tmm4, [{a} + {a_stride} + 64*", $part, "]\n")
    };
}
macro_rules! lower {
    ($part:literal) => {
        concat!("tileloadd tmm5, [{a} + {a_stride} + {half} + 64*", $part, "]\n")
    };
}
macro_rules! columns {
    ($part:literal) => {
        concat!(
            "tileloaddt1 tmm6, [{b} + {b_stride} + 2048*",
            $part,
            "]\ntileloaddt1 tmm7, [{b} + {b_stride} + 2048*",
            $part,
            " + 64]\n"
        )
    };
}
macro_rules! dots {
    () => {
        "tdpbf16ps tmm0, tmm4, tmm6\ntdpbf16ps tmm1, tmm4, tmm7\ntdpbf16ps tmm2, tmm5, tmm6\ntdpbf16ps tmm3, tmm5, tmm7\n"
    };
}
// Prefetches of two rows of the first of what is written, of the first of what is read, and of two pieces of what is packed later.
macro_rules! ahead {
    () => {
        "prefetchw [{writes}]
        prefetchw [{writes} + 64]
        prefetcht0 [{reads}]
        prefetcht0 [{reads} + 64]
        prefetchw [{writes} + {writes_stride}]
        prefetchw [{writes} + {writes_stride} + 64]
        prefetcht0 [{reads} + {reads_stride}]
        prefetcht0 [{reads} + {reads_stride} + 64]
        lea {writes}, [{writes} + 2*{writes_stride}]
        lea {reads}, [{reads} + 2*{reads_stride}]
        prefetcht1 [{later}]
        prefetcht1 [{later} + 64]
        prefetcht1 [{later} + {later_stride}]
        prefetcht1 [{later} + {later_stride} + 64]
        lea {later}, [{later} + 2*{later_stride}]\n"
    };
}

/// All 32 rows. Tiles 0 to 3 are the sums, 4 and 5 rows of A, 6 and 7 columns of B. B streams from the L2 cache, and its loads
/// carry the hint not to displace A from L1.
macro_rules! multiply {
    ($name:ident $parts:literal: $($step:expr),*) => {
        unsafe fn $name(words: usize, a: *const u32, b: *const u32, target: &TileOutput) {
            debug_assert!(words.is_multiple_of($parts * STEP));
            // Bytes from row to row of A and of B, and from row 0 to row 16 of A.
            const A: usize = LDA * 4;
            const B: usize = SIDE * 4;
            const HALF: usize = 16 * A;
            let stride = target.ldc * 4;
            macro_rules! product {
                ($start:literal) => {
                    asm!(
                        $start,
                        "test {steps}, {steps}",
                        "jz 3f",
                        "2:",
                        concat!($($step),*),
                        "add {a}, {a_step}",
                        "add {b}, {b_step}",
                        "dec {steps}",
                        "jnz 2b",
                        "3:",
                        "tilestored [{c} + {stride}], tmm0",
                        "tilestored [{c} + {stride} + 64], tmm1",
                        "mov {a}, {stride}",
                        "shl {a}, 4",
                        "add {c}, {a}",
                        "tilestored [{c} + {stride}], tmm2",
                        "tilestored [{c} + {stride} + 64], tmm3",
                        steps = inout(reg) words / ($parts * STEP) => _,
                        a = inout(reg) a => _,
                        b = inout(reg) b => _,
                        a_stride = in(reg) A,
                        b_stride = in(reg) B,
                        half = const HALF,
                        a_step = const $parts * STEP * 4,
                        b_step = const $parts * STEP * B,
                        c = inout(reg) target.c => _,
                        stride = inout(reg) stride => _,
                        writes = inout(reg) target.writes.first().ptr => _,
                        writes_stride = in(reg) target.writes.first().stride,
                        reads = inout(reg) target.reads.first().ptr => _,
                        reads_stride = in(reg) target.reads.first().stride,
                        later = inout(reg) target.later.ptr => _,
                        later_stride = in(reg) target.later.stride,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack)
                    )
                };
            }
            // SAFETY: the caller's contract; prefetches may point anywhere.
            unsafe {
                if target.accumulate {
                    product!(
                        "tileloadd tmm0, [{c} + {stride}]
                        tileloadd tmm1, [{c} + {stride} + 64]
                        shl {stride}, 4
                        add {c}, {stride}
                        shr {stride}, 4
                        tileloadd tmm2, [{c} + {stride}]
                        tileloadd tmm3, [{c} + {stride} + 64]
                        shl {stride}, 4
                        sub {c}, {stride}
                        shr {stride}, 4"
                    );
                } else {
                    product!("tilezero tmm0\ntilezero tmm1\ntilezero tmm2\ntilezero tmm3");
                }
            }
        }
    };
}
// The upper rows are multiplied while the lower ones are loaded.
multiply! { multiply_bf16 1:
    columns!(0), upper!(0), "tdpbf16ps tmm0, tmm4, tmm6\ntdpbf16ps tmm1, tmm4, tmm7\n",
    lower!(0), "tdpbf16ps tmm2, tmm5, tmm6\ntdpbf16ps tmm3, tmm5, tmm7\n", ahead!()
}
multiply! { multiply_x3 2:
    columns!(1), upper!(0), lower!(0), dots!(),
    columns!(0), dots!(),
    upper!(1), lower!(1), dots!(), ahead!()
}
multiply! { multiply_x6 3:
    columns!(0), upper!(2), lower!(2), dots!(), ahead!(),
    upper!(1), lower!(1), dots!(), ahead!(),
    columns!(1), dots!(), ahead!(),
    upper!(0), lower!(0), dots!(), ahead!(),
    columns!(0), dots!(),
    columns!(2), dots!()
}

multiply! { multiply_bytes 1:
    columns!(0), upper!(0), "tdpbssd tmm0, tmm4, tmm6\ntdpbssd tmm1, tmm4, tmm7\n",
    lower!(0), "tdpbssd tmm2, tmm5, tmm6\ntdpbssd tmm3, tmm5, tmm7\n", ahead!()
}

/// The register tile of words of four bytes on the processor's tile unit.
///
/// # Safety
/// As [`bf16`].
pub(super) unsafe fn bytes(rows: usize, words: usize, a: *const u32, b: *const u32, target: &TileOutput) {
    // SAFETY: the caller's contract; `with_all_rows` has a whole tile.
    unsafe {
        if rows == SIDE {
            multiply_bytes(words, a, b, target);
        } else {
            with_all_rows(rows, target, |target| multiply_bytes(words, a, b, target));
        }
        for i in (0..rows).filter(|_| target.is_last) {
            let row = target.c.wrapping_add(i * target.ldc).cast::<[i32; SIDE]>();
            let sums = row.read_unaligned();
            row.cast::<[f32; SIDE]>().write_unaligned(sums.map(|sum| sum as f32));
        }
    }
}

/// The same in portable code.
///
/// # Safety
/// As [`emulated_bf16`].
pub(super) unsafe fn emulated_bytes(
    rows: usize,
    words: usize,
    a: *const u32,
    b: *const u32,
    target: &TileOutput,
) {
    debug_assert!(words.is_multiple_of(STEP));
    for i in 0..rows {
        // SAFETY: the caller's contract; sums are read only if the target has some.
        unsafe {
            let row = target.c.wrapping_add(i * target.ldc).cast::<[i32; SIDE]>();
            let mut sums = if target.accumulate { row.read_unaligned() } else { [0; SIDE] };
            for w in 0..words {
                let x = a.add(i * LDA + w).read().to_ne_bytes();
                let line = b.add(w * SIDE).cast::<[[u8; 4]; SIDE]>().read_unaligned();
                for (sum, y) in sums.iter_mut().zip(line) {
                    for (x, y) in x.into_iter().zip(y) {
                        *sum += i32::from(x as i8) * i32::from(y as i8);
                    }
                }
            }
            match target.is_last {
                true => row.cast::<[f32; SIDE]>().write_unaligned(sums.map(|sum| sum as f32)),
                false => row.write_unaligned(sums),
            }
        }
    }
}

/// So many rows in portable code.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn emulated<const PARTS: usize>(
    products: Products,
    (rows, words): (usize, usize),
    a: *const u32,
    b: *const u32,
    target: &TileOutput,
) {
    debug_assert!(words.is_multiple_of(PARTS * STEP));
    for i in 0..rows {
        // SAFETY: the caller's contract; sums are read only if the target has some.
        unsafe {
            let to = target.c.wrapping_add(i * target.ldc).cast::<[f32; SIDE]>();
            let mut row = if target.accumulate { to.read_unaligned() } else { [0.0; SIDE] };
            for step in (0..words).step_by(PARTS * STEP) {
                for &(of_a, of_b) in products {
                    let a = a.add(i * LDA + step + of_a * STEP);
                    let b = b.add((step + of_b * STEP) * SIDE);
                    let (mut even, mut odd) = ([0.0; SIDE], [0.0; SIDE]);
                    for p in 0..STEP {
                        let line = b.add(p * SIDE).cast::<[u32; SIDE]>().read_unaligned();
                        let (x, y) = (lower(*a.add(p)), upper(*a.add(p)));
                        for j in 0..SIDE {
                            even[j] = flushed(f32::mul_add(x, lower(line[j]), even[j]));
                            odd[j] = flushed(f32::mul_add(y, upper(line[j]), odd[j]));
                        }
                    }
                    for j in 0..SIDE {
                        row[j] = flushed(flushed(row[j]) + flushed(even[j] + odd[j]));
                    }
                }
            }
            to.write_unaligned(row);
        }
    }
}

/// The value of a word at an even place of k.
#[inline(always)]
fn lower(word: u32) -> f32 {
    flushed(f32::from_bits(word << 16))
}

/// The value of a word at an odd place of k.
#[inline(always)]
fn upper(word: u32) -> f32 {
    flushed(f32::from_bits(word & 0xffff_0000))
}

/// Zero instead of a subnormal number.
#[inline(always)]
pub(super) fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0f32.copysign(x) } else { x }
}
