//! Products of bytes: sums of whole numbers, which are exact, and so the same bits whatever computes them in whatever order.
//!
//! A word is four bytes where the processor multiplies these (`vpdpbusd` of AVX-512 VNNI and of AVX-VNNI, `tdpbssd` of the tile unit), else two numbers of 16
//! bits. `vpdpbusd` takes one of its operands as unsigned: columns of B have 128 added to them, and the sums of a row of A begin with −128 times the sum
//! of the row, which stands behind its words. Lines of B in products of few rows get 128 added in registers.
//!
//! Sums are whole numbers in the lanes of `f32`, and in C between two blocks of k; with the last block they become floats.

use super::gemv::Dot;
use super::line::Line;
use super::microkernel::{Arithmetic, KC, LDA, TileOutput};
#[cfg(target_arch = "x86_64")]
use super::pack::x86::bytes::BytePlaces;
#[cfg(target_arch = "x86_64")]
use super::pack::x86::{pack_b_f32, pack_b_f32_of_8};
use super::pack::{Block, Offsets, PanelSize, Source};
use crate::math::vector::Lanes;
use std::marker::PhantomData;

/// The most terms of a sum that is surely a whole number of 32 bits.
pub const MOST_TERMS: usize = (i32::MAX as usize) / (128 * 128);

/// What depends on how words are made of bytes.
pub(super) struct Bytes {
    /// As `PackA`, of any layout.
    pub pack_a: unsafe fn(&Source<'_>, usize, usize, *mut u32),
    /// As `PackB`, of any layout.
    pub pack_b: unsafe fn(&Source<'_>, usize, usize, *mut u32, PanelSize),
    /// Bytes of a word in products of few rows.
    pub values: usize,
    /// `(row, k, out, lda)`: a row of A for these.
    pub stage: unsafe fn(*const i8, usize, *mut u32, usize),
    /// By rows: up to twelve, where registers hold their sums with two lines, so that lines are read once.
    pub dots: &'static [Dot],
}

/// How words are made of bytes.
pub(super) trait Format {
    /// Bytes of a word.
    const VALUES: usize;
    /// Words that are multiplied at a time: there are zeros up to a multiple of them.
    const STEP: usize = 1;
    /// Whether the processor surely has AVX-512.
    const IS_OF_AVX512: bool = false;
    /// Whether the bytes of B have 128 added to them.
    const IS_RAISED: bool = false;

    /// The words of `count` bytes.
    ///
    /// # Safety
    /// So many bytes at `from`, and room for their words.
    unsafe fn words(from: *const i8, count: usize, out: *mut u32);

    /// The word of four bytes, of which it takes the first [`VALUES`](Self::VALUES).
    fn word(values: [i8; MOST_VALUES]) -> u32;
}

/// The most bytes of a word.
const MOST_VALUES: usize = 4;

/// Words of two numbers of 16 bits.
pub(super) struct Halves;

impl Format for Halves {
    const VALUES: usize = 2;

    #[inline(always)]
    unsafe fn words(from: *const i8, count: usize, out: *mut u32) {
        let out = out.cast::<i16>();
        // SAFETY: the caller's contract.
        unsafe {
            for i in 0..count {
                out.add(i).write(i16::from(*from.add(i)));
            }
            if count % 2 == 1 {
                out.add(count).write(0);
            }
        }
    }

    #[inline(always)]
    fn word([first, second, ..]: [i8; MOST_VALUES]) -> u32 {
        let half = |value: i8| u32::from(i16::from(value) as u16);
        half(first) | half(second) << 16
    }
}

/// Words of four bytes, those of B unsigned, in registers of AVX-512 or of AVX2.
pub(super) struct QuadsOf<const AVX512: bool>;
pub(super) type Quads = QuadsOf<true>;
pub(super) type QuadsOfAvx2 = QuadsOf<false>;

impl<const AVX512: bool> Format for QuadsOf<AVX512> {
    const VALUES: usize = 4;
    const IS_OF_AVX512: bool = AVX512;
    const IS_RAISED: bool = true;

    #[inline(always)]
    unsafe fn words(from: *const i8, count: usize, out: *mut u32) {
        // SAFETY: the caller's contract.
        unsafe { quads(from, count, out) }
    }

    #[inline(always)]
    fn word(values: [i8; MOST_VALUES]) -> u32 {
        quad(values)
    }
}

/// Words of four bytes, as the tile unit multiplies them.
#[cfg(target_arch = "x86_64")]
pub(super) struct TileQuads;

#[cfg(target_arch = "x86_64")]
impl Format for TileQuads {
    const VALUES: usize = 4;
    const STEP: usize = super::tiles::STEP;
    const IS_OF_AVX512: bool = true;

    #[inline(always)]
    unsafe fn words(from: *const i8, count: usize, out: *mut u32) {
        // SAFETY: the caller's contract.
        unsafe { quads(from, count, out) }
    }

    #[inline(always)]
    fn word(values: [i8; MOST_VALUES]) -> u32 {
        quad(values)
    }
}

/// Bytes as they lie, and zeros up to a whole word.
#[inline(always)]
unsafe fn quads(from: *const i8, count: usize, out: *mut u32) {
    let out = out.cast::<i8>();
    // SAFETY: the caller's contract.
    unsafe {
        from.copy_to_nonoverlapping(out, count);
        out.add(count).write_bytes(0, count.next_multiple_of(4) - count);
    }
}

#[inline(always)]
fn quad(values: [i8; MOST_VALUES]) -> u32 {
    u32::from_le_bytes(values.map(|value| value as u8))
}

/// Added to four bytes without a carry, it makes signed ones 128 larger and unsigned.
const RAISED: u32 = 0x8080_8080;
/// Where the word stands with which the sums of a packed row begin.
const START: usize = KC;

/// What the sums of a row begin with, if the other operand is 128 too large.
#[inline(always)]
unsafe fn start_of(row: *const i8, count: usize) -> i32 {
    let mut sum = 0;
    for i in 0..count {
        // SAFETY: the caller's contract.
        sum += i32::from(unsafe { *row.add(i) });
    }
    -128 * sum
}

/// `N` neighbouring rows (or columns) whose values lie across k, of which `count` are there.
struct Across<'a, const N: usize> {
    source: &'a Source<'a>,
    count: usize,
    /// Whether they lie side by side.
    is_run: bool,
}

impl<'a, const N: usize> Across<'a, N> {
    /// The first `count` rows of a source.
    #[inline(always)]
    fn new(source: &'a Source<'a>, count: usize) -> Self {
        Across { source, count, is_run: count == N && source.outer.run(N) == N }
    }

    /// Values `p` of k.
    ///
    /// # Safety
    /// The source has them.
    #[inline(always)]
    unsafe fn values(&self, p: usize) -> [i8; N] {
        // SAFETY: the caller's contract.
        unsafe {
            if self.is_run {
                return self.source.at(0, p).cast::<[i8; N]>().read();
            }
            let mut values = [0; N];
            for (i, value) in values.iter_mut().enumerate().take(self.count) {
                *value = self.source.at(i, p).cast::<i8>().read();
            }
            values
        }
    }

    /// The words of values `first..` of k, of which there are `depth` in all; beyond rows and values are zeros.
    ///
    /// # Safety
    /// The source has these elements.
    #[inline(always)]
    unsafe fn words<F: Format>(&self, first: usize, depth: usize) -> [u32; N] {
        let mut rows = [[0; N]; MOST_VALUES];
        for (p, row) in (first..depth).zip(&mut rows[..F::VALUES]) {
            // SAFETY: the caller's contract.
            *row = unsafe { self.values(p) };
        }
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            *word = F::word([rows[0][i], rows[1][i], rows[2][i], rows[3][i]]);
        }
        words
    }
}

/// Rows of A that are packed together where they lie across k.
const ROWS_ACROSS: usize = 32;
/// Words of them that are made together.
#[cfg(target_arch = "x86_64")]
const WORDS_ACROSS: usize = 16;

/// Packs up to 32 rows of A that lie across k; says whether they lie so that it can.
///
/// # Safety
/// As `PackA`; the source has these elements, and the machine AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pack_lines_of_a(source: &Source<'_>, rows: usize, depth: usize, out: *mut u32) -> bool {
    let Some(places) = BytePlaces::of(source.outer, rows) else { return false };
    let mut words = [[0; ROWS_ACROSS]; WORDS_ACROSS];
    for first in (0..depth).step_by(4 * WORDS_ACROSS) {
        let values = (depth - first).min(4 * WORDS_ACROSS);
        let words = &mut words[..values.div_ceil(4)];
        // SAFETY: the caller's contract.
        unsafe {
            places.pack(&source.from(0, first), values, 0, words);
            for i in 0..rows {
                let row = out.add(i * LDA + first / 4);
                words.iter().enumerate().for_each(|(w, words)| row.add(w).write(words[i]));
            }
        }
    }
    true
}

/// # Safety
/// As `PackA`; the source has these elements.
#[inline(always)]
pub(super) unsafe fn pack_a<F: Format>(source: &Source<'_>, rows: usize, depth: usize, out: *mut u32) {
    let words = depth.div_ceil(F::VALUES);
    let row_of = |i: usize| out.wrapping_add(i * LDA);
    if !source.k.unit() {
        for first in (0..rows).step_by(ROWS_ACROSS) {
            let count = ROWS_ACROSS.min(rows - first);
            let source = source.from(first, 0);
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's contract; a format of AVX-512 is used where it is there.
            if F::IS_OF_AVX512 && unsafe { pack_lines_of_a(&source, count, depth, row_of(first)) } {
                continue;
            }
            let across = Across::<ROWS_ACROSS>::new(&source, count);
            for w in 0..words {
                // SAFETY: the caller's contract.
                unsafe {
                    let words = across.words::<F>(w * F::VALUES, depth);
                    (0..count).for_each(|i| row_of(first + i).add(w).write(words[i]));
                }
            }
        }
    }
    for i in 0..rows {
        let row = row_of(i);
        // SAFETY: the caller's contract.
        unsafe {
            if source.k.unit() {
                F::words(source.at(i, 0).cast(), depth, row);
            }
            row.add(words).write_bytes(0, words.next_multiple_of(F::STEP) - words);
            if F::IS_RAISED {
                row.add(START).cast::<i32>().write(start_of(row.cast(), depth));
            }
        }
    }
}

/// Packs B along rows of memory, if its columns lie in whole words along k.
///
/// # Safety
/// As `PackB`; the source has these elements, and the machine the format's instruction set.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pack_words_of_b<F: Format, const NR: usize>(
    source: &Source<'_>,
    columns: usize,
    depth: usize,
    out: *mut u32,
    panels: PanelSize,
) -> bool {
    let Offsets::Strided(stride) = source.outer else { return false };
    let are_words = source.k.unit() && stride % 4 == 0 && depth.is_multiple_of(4);
    if F::VALUES < MOST_VALUES || !are_words {
        return false;
    }
    let block = Block { base: source.base.cast(), outer: Offsets::Strided(stride / 4), k: source.k };
    // SAFETY: the same elements in words.
    unsafe {
        match F::IS_OF_AVX512 {
            true => pack_b_f32(&block, columns, depth / 4, out, panels),
            false => pack_b_f32_of_8(&block, columns, depth / 4, out, panels),
        }
        if F::IS_RAISED {
            for panel in 0..columns.div_ceil(NR) {
                let words = out.add(panel * panels.stride);
                for w in 0..panels.words * NR {
                    words.add(w).write(words.add(w).read() ^ RAISED);
                }
            }
        }
    }
    true
}

/// # Safety
/// As `PackB`; the source has these elements.
#[inline(always)]
pub(super) unsafe fn pack_b<F: Format, const NR: usize>(
    source: &Source<'_>,
    columns: usize,
    depth: usize,
    out: *mut u32,
    panels: PanelSize,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller has the format's instruction set.
    if unsafe { pack_words_of_b::<F, NR>(source, columns, depth, out, panels) } {
        return;
    }
    let raised = if F::IS_RAISED { RAISED } else { 0 };
    if !source.k.unit() {
        for first in (0..columns).step_by(NR) {
            let panel = out.wrapping_add(first / NR * panels.stride);
            let source = source.from(first, 0);
            let count = NR.min(columns - first);
            #[cfg(target_arch = "x86_64")]
            if F::IS_OF_AVX512
                && let Some(places) = BytePlaces::of(source.outer, count)
            {
                // SAFETY: the caller's contract; a format of AVX-512 has panels of 32 columns, and is used where it is there.
                unsafe {
                    let panel = std::slice::from_raw_parts_mut(panel.cast(), panels.words);
                    places.pack(&source, depth, raised, panel);
                }
                continue;
            }
            let across = Across::<NR>::new(&source, count);
            for w in 0..panels.words {
                // SAFETY: the caller's contract.
                unsafe {
                    let words = across.words::<F>(w * F::VALUES, depth);
                    panel.add(w * NR).cast::<[u32; NR]>().write(words.map(|word| word ^ raised));
                }
            }
        }
        return;
    }
    let mut words = [0; 2 * KC];
    for j in 0..columns.next_multiple_of(NR) {
        let out = out.wrapping_add(j / NR * panels.stride + j % NR);
        // SAFETY: the caller's contract; columns beyond the last one are zeros.
        unsafe {
            words[..panels.words].fill(0);
            if j < columns {
                F::words(source.at(j, 0).cast(), depth, words.as_mut_ptr());
            }
            for (w, word) in words[..panels.words].iter().enumerate() {
                out.add(w * NR).write(word ^ raised);
            }
        }
    }
}

/// # Safety
/// As [`Bytes::stage`]: `k` is in whole words, and sixteen words of the row lie behind them.
#[inline(always)]
unsafe fn stage<F: Format>(row: *const i8, k: usize, out: *mut u32, lda: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        F::words(row, k, out);
        let last = out.add(lda - LAST);
        last.write_bytes(0, LAST);
        if F::IS_RAISED {
            last.cast::<i32>().write(start_of(row, k));
        }
    }
}

/// Words behind a row of A in products of few rows: a register that its sums begin with.
const LAST: usize = 16;

/// Words of a format, multiplied in lanes of this kind.
pub(super) struct Whole<F, L>(PhantomData<(F, L)>);

impl<F: Format, L: Lanes> Arithmetic for Whole<F, L>
where
    Self: Multiplies<L>,
{
    type Sum = L;
    type Words = L;
    #[inline(always)]
    unsafe fn start(row: *const u32) -> L {
        // SAFETY: the caller's contract; packing has left a word there.
        unsafe { if F::IS_RAISED { L::splat(row.add(START).cast::<f32>().read()) } else { L::splat(0.0) } }
    }
    #[inline(always)]
    unsafe fn words(b: *const u32) -> L {
        // SAFETY: the caller's contract.
        unsafe { <L as Arithmetic>::words(b) }
    }
    #[inline(always)]
    unsafe fn broadcast(a: *const u32) -> L {
        // SAFETY: the caller's contract.
        unsafe { <L as Arithmetic>::broadcast(a) }
    }
    #[inline(always)]
    unsafe fn multiply_add(sum: L, a: L, b: L) -> L {
        // SAFETY: the caller's contract.
        unsafe { Self::add(a, b, sum) }
    }
    #[inline(always)]
    unsafe fn put(sum: L, c: *mut f32, target: &TileOutput) {
        // SAFETY: the caller's contract.
        unsafe {
            let sum = if target.accumulate { sum.add_whole(L::load(c)) } else { sum };
            (if target.is_last { sum.whole_to_float() } else { sum }).store(c);
        }
    }
}

/// The products of words of A and of packed words of B.
pub(super) trait Multiplies<L> {
    /// # Safety
    /// The instruction set is there.
    unsafe fn add(a: L, b: L, sum: L) -> L;
}

impl<L: Lanes> Multiplies<L> for Whole<Halves, L> {
    #[inline(always)]
    unsafe fn add(a: L, b: L, sum: L) -> L {
        L::add_halves(a, b, sum)
    }
}

impl<const AVX512: bool, L: Lanes> Multiplies<L> for Whole<QuadsOf<AVX512>, L> {
    #[inline(always)]
    unsafe fn add(a: L, b: L, sum: L) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::add_quads(b, a, sum) }
    }
}

/// Lines of bytes that are widened to numbers of 16 bits.
pub(super) struct HalvesLine;
/// Lines of bytes in words of four.
pub(super) struct QuadsLine;

impl Line for HalvesLine {
    type Stored = [i8; 2];
    const IS_WHOLE: bool = true;
    #[inline(always)]
    unsafe fn multiply_add<L: Lanes>(row: L, line: L, sum: L) -> L {
        L::add_halves(row, line, sum)
    }
}

impl Line for QuadsLine {
    type Stored = f32;
    const IS_WHOLE: bool = true;
    #[inline(always)]
    unsafe fn start<L: Lanes>(row: *const f32, lda: usize) -> L {
        // SAFETY: the caller's contract; `stage` has left a register there.
        unsafe { L::load(row.add(lda - LAST)) }
    }
    #[inline(always)]
    unsafe fn multiply_add<L: Lanes>(row: L, line: L, sum: L) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::add_quads(line.raised(), row, sum) }
    }
}

/// The [`Bytes`] of one instruction set: the format of packed words, the columns of a panel, and the kernels for few rows.
macro_rules! bytes {
    ($module:ident $attribute:tt packed as $packed:ty, panels of $nr:literal, $($count:literal)* rows as $rows:ty, $lanes:ty, $line:ty) => {
        pub(super) mod $module {
            use super::*;
            use crate::gemm::gemv;
            #$attribute
            unsafe fn pack_a(source: &Source<'_>, rows: usize, depth: usize, out: *mut u32) {
                // SAFETY: the caller's contract.
                unsafe { super::pack_a::<$packed>(source, rows, depth, out) }
            }
            #$attribute
            unsafe fn pack_b(
                source: &Source<'_>,
                columns: usize,
                depth: usize,
                out: *mut u32,
                panels: PanelSize,
            ) {
                // SAFETY: the caller's contract.
                unsafe { super::pack_b::<$packed, $nr>(source, columns, depth, out, panels) }
            }
            #$attribute
            unsafe fn stage(row: *const i8, k: usize, out: *mut u32, lda: usize) {
                // SAFETY: the caller's contract.
                unsafe { super::stage::<$rows>(row, k, out, lda) }
            }
            #$attribute
            unsafe fn dot<const R: usize>(
                a: *const f32,
                lda: usize,
                b: &gemv::Lines,
                k: usize,
                c: *mut f32,
                ldc: usize,
                adds: bool,
            ) {
                // SAFETY: the caller's contract.
                unsafe { gemv::dot::<$lanes, R, $line>(a, lda, b, k, c, ldc, adds) }
            }
            pub(in crate::gemm) static BYTES: Bytes = Bytes {
                pack_a,
                pack_b,
                values: <$rows as Format>::VALUES,
                stage,
                dots: &[$(dot::<$count>),*],
            };
        }
    };
}

bytes! {
    portable [inline(never)] packed as Halves, panels of 8, 1 2 3 4 5 6 rows as Halves, crate::math::vector::Portable, HalvesLine
}
#[cfg(target_arch = "x86_64")]
bytes! {
    avx2 [target_feature(enable = "avx2,fma")]
    packed as Halves, panels of 16, 1 2 3 4 5 6 rows as Halves, crate::math::vector::x86::Avx2, HalvesLine
}
#[cfg(target_arch = "x86_64")]
bytes! {
    avx512 [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    packed as Halves, panels of 32, 1 2 3 4 5 6 7 8 9 10 11 12 rows as Halves, crate::math::vector::x86::Avx512, HalvesLine
}
#[cfg(target_arch = "x86_64")]
bytes! {
    vnni [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
    packed as Quads, panels of 32, 1 2 3 4 5 6 7 8 9 10 11 12 rows as Quads, crate::math::vector::x86::Avx512, QuadsLine
}
#[cfg(target_arch = "x86_64")]
bytes! {
    avx_vnni [target_feature(enable = "avx2,fma,avxvnni")]
    packed as QuadsOfAvx2, panels of 16, 1 2 3 4 5 6 rows as QuadsOfAvx2, crate::math::vector::x86::Avx2, QuadsLine
}
#[cfg(target_arch = "x86_64")]
bytes! {
    tile_unit [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
    packed as TileQuads, panels of 32, 1 2 3 4 5 6 7 8 9 10 11 12 rows as Quads, crate::math::vector::x86::Avx512, QuadsLine
}
#[cfg(target_arch = "x86_64")]
bytes! {
    emulated_tiles [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    packed as TileQuads, panels of 32, 1 2 3 4 5 6 7 8 9 10 11 12 rows as Halves, crate::math::vector::x86::Avx512, HalvesLine
}
