//! Register tiles: `C[R, NR] (+)= A[R, k] · B[k, NR]`, the only code here that multiplies large matrices.
//!
//! Both operands are streams of 32-bit *words*: a word is one `f32`, two neighbours along k in `bf16` or in [fixed point](super::fixed), or two or four of
//! [bytes](super::bytes).
//! A is row-major with the constant stride `LDA`, so its packing is a row copy and a prologue sees ordinary
//! rows. B comes in panels `[k][NR]`. An element of C is the sum of its products in the order of k, whatever
//! tile it is in; so results do not depend on how C is divided.

use super::Element;
use super::ahead::{Ahead, Fetched, LINE, Reach, Streams};
use super::bytes::Bytes;
use super::fixed;
use super::gemv::Gemv;
use super::later::Later;
use super::pack::{Narrow, PackA, PackB};
use crate::amx::Tiles;
use crate::math::vector::Lanes;

/// The most words of k in one packed block; C is read and written once per block.
pub(super) const KC: usize = 384;
/// The same for tiles: a strip of A and a panel of B are 24 KiB each, so that L1 holds one of them while the other comes from L2. Twice as
/// many words took 1.1 times as long for a whole step of `thesis` in bf16 on an Intel Xeon with 48 KiB of L1, two thirds as many 1.05.
#[cfg(target_arch = "x86_64")]
pub(super) const TILES_KC: usize = 192;
/// Row stride of a packed A block, in words. A constant, so that the rows are displacements of one address
/// register; 25 cache lines, so that they fall into different sets of the L1 cache.
pub(super) const LDA: usize = KC + 16;
/// Values of the largest register tile.
const LARGEST_TILE: usize = 32 * 32;

/// How many words ahead operands are prefetched.
const WORDS_AHEAD: usize = 8;
/// Where a tile's results go, and what is prefetched beside.
pub(super) struct TileOutput {
    pub c: *mut f32,
    pub ldc: usize,
    /// Adds to C instead of overwriting it.
    pub accumulate: bool,
    /// Whether no values of k follow: sums of whole numbers become floats.
    pub is_last: bool,
    pub writes: Streams,
    pub reads: Streams,
    /// What is packed later, on the tile unit; other kernels prefetch it as if it was read.
    pub later: Ahead,
}

impl TileOutput {
    /// Starts another tile at `c`, and prefetches nothing but its rows of C.
    pub(super) fn restart(&mut self, c: *mut f32) {
        let ptr = c.cast_const().cast();
        self.c = c;
        self.writes.first_mut().ptr = ptr;
        self.reads.truncate(0);
        self.reads.first_mut().ptr = ptr;
        self.later = Ahead { ptr, stride: 0, ..self.later };
    }

    /// So many columns further on.
    pub(super) fn advance(&mut self, columns: usize) {
        self.c = self.c.wrapping_add(columns);
        self.writes.advance(columns);
        self.reads.advance(columns);
    }
}

/// `(rows, words of k, a, b, target)`: the words are those of whole steps.
pub(super) type Tile = unsafe fn(usize, usize, *const u32, *const u32, &TileOutput);
/// As [`Tile`], of a [`Strip::Across`] with its stride.
pub(super) type Across = unsafe fn(usize, usize, *const u32, usize, *const u32, &TileOutput);
/// `(dst, src, stride, n)`: widens elements to `f32`, as `math::element::load`.
pub(super) type Load = unsafe fn(*mut f32, *const u8, isize, usize);
/// `(dst, stride, src, n)`: narrows `f32` to elements, as `math::element::store`.
pub(super) type Store = unsafe fn(*mut u8, isize, *const f32, usize);
/// `(dst, src, n)`: rounds to bf16 and back.
pub(super) type Round = unsafe fn(*mut f32, *const f32, usize);

/// Rows of A, as a tile reads them.
#[derive(Clone, Copy)]
pub(super) enum Strip {
    /// Packed: one row behind the other, `LDA` words apart.
    Packed(*const u32),
    /// Read in place: the words of neighbouring rows are adjacent, and the second number is the stride along k, in words.
    Across(*const u32, usize),
}

impl Strip {
    /// From another row and another word of k on.
    pub(super) fn from(self, row: usize, word: usize) -> Self {
        match self {
            Strip::Packed(a) => Strip::Packed(a.wrapping_add(row * LDA + word)),
            Strip::Across(a, stride) => Strip::Across(a.wrapping_add(word * stride + row), stride),
        }
    }
}

/// The least of k that is multiplied at a time; beyond the end of k there are zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Values of k.
    pub values: usize,
    /// The words that they are packed into.
    pub words: usize,
}

impl Step {
    /// Words are `f32`.
    pub(super) const F32: Step = Step { values: 1, words: 1 };
    /// Words are pairs of bf16.
    pub(super) const PAIR: Step = Step { values: 2, words: 1 };
    /// Words are four bytes.
    pub(super) const QUAD: Step = Step { values: 4, words: 1 };
    /// Words are pairs of whole numbers, of a block with a scale.
    pub(super) const FIXED: Step = Step { values: fixed::VALUES, words: fixed::WORDS };

    /// Words of the whole steps that fit into `values` values of k. A step has a power of two of them, so this shifts: a 64-bit division for
    /// each tile would cost as much as several of its steps.
    pub(super) fn words_within(&self, values: usize) -> usize {
        (values >> self.values.trailing_zeros()) * self.words
    }
}

/// Everything that depends on the instruction set and the precision.
pub(super) struct Kernels {
    /// Rows of the register tile.
    pub mr: usize,
    /// Columns of the register tile.
    pub nr: usize,
    /// Rows of a packed A block, a multiple of `mr`: the block stays in L2.
    pub mc: usize,
    /// Words of k in a packed block, whole steps: a strip of A stays in L1.
    pub kc: usize,
    /// What is multiplied at a time.
    pub step: Step,
    /// Rows that a tile on the tile unit prefetches with every step.
    pub rows_ahead: usize,
    /// Whether they are for a tile unit, of the processor or emulated.
    pub is_tiled: bool,
    /// Whether it runs on the tile unit, which each thread configures.
    pub uses_tiles: bool,
    /// The register tile, of any number of rows up to `mr`.
    pub tile: Tile,
    /// The left half of the register tile's columns, where that takes half the time.
    pub half: Option<Tile>,
    /// Both for a [`Strip::Across`], where words are `f32`.
    pub across: Option<[Across; 2]>,
    pub pack_a: PackA,
    /// As `pack_a`, into words that are `f32`.
    pub pack_a_f32: PackA,
    pub pack_b: PackB,
    /// The same two of operands of bf16, where there are such.
    pub narrow: Option<Narrow>,
    /// Where operands are bytes, which have a packing of their own.
    pub bytes: Option<&'static Bytes>,
    pub gemv: &'static Gemv,
    pub load: [Load; 4],
    pub store: [Store; 4],
    pub round: Round,
}

impl Kernels {
    pub(super) fn load(&self, element: Element) -> Load {
        self.load[place(element)]
    }

    pub(super) fn store(&self, element: Element) -> Store {
        self.store[place(element)]
    }

    /// Whether operands are packed in fixed point.
    pub(super) fn is_fixed(&self) -> bool {
        self.step == Step::FIXED
    }

    /// Whether words are pairs of bf16.
    pub(super) fn multiplies_pairs(&self) -> bool {
        self.bytes.is_none() && self.narrow.is_some() && self.step.values == 2 * self.step.words
    }

    /// Whether values are taken apart, and parts multiplied, on a tile unit: a tile has several products.
    pub(super) fn takes_apart(&self) -> bool {
        self.is_tiled && self.step.words * 2 > self.step.values
    }

    /// How many words `depth` values of k are packed into.
    pub(super) fn words(&self, depth: usize) -> usize {
        self.step.words_within(depth + self.step.values - 1)
    }

    /// Values of k in a block.
    pub(super) fn block(&self) -> usize {
        self.kc / self.step.words * self.step.values
    }

    /// The number of tiles that cover these rows and columns of C.
    pub(super) fn tiles(&self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.mr) * columns.div_ceil(self.nr)
    }

    /// Lets the next tile prefetch what is packed later. The tile has `rows` rows and `words` words.
    pub(super) fn prefetch_later(
        &self,
        later: &mut Later<'_>,
        (rows, words): (usize, usize),
        target: &mut TileOutput,
    ) {
        later.next_tile();
        if !later.is_due() {
            return;
        }
        let bytes = LINE.max(4 * self.nr);
        if self.is_tiled {
            let reach = Reach { rows: words / self.step.words * self.rows_ahead, bytes };
            target.later = later.piece(reach).unwrap_or(target.later);
            return;
        }
        let taken = (target.writes.count + target.reads.count) * rows;
        let mut free = (words / (bytes / LINE)).saturating_sub(taken);
        while free > 0 && !target.reads.is_full() {
            let reach = Reach { rows: rows.min(free), bytes };
            let Some(piece) = later.piece(reach) else { return };
            target.reads.push(piece);
            free -= reach.rows;
        }
    }

    /// The fewest columns that a tile computes.
    pub(super) fn column_unit(&self) -> usize {
        if self.half.is_some() { self.nr / 2 } else { self.nr }
    }

    /// The tile unit, configured for this thread as long as it is held; `None` where these kernels do without.
    ///
    /// # Safety
    /// The machine has these kernels' instruction set.
    pub(super) unsafe fn configured(&self) -> Option<Tiles> {
        // SAFETY: the instruction set has tiles.
        self.uses_tiles.then(|| unsafe { Tiles::configured() })
    }

    /// The tile of `rows` rows for `columns` of a panel: where these do not fill its registers, computes a whole tile in scratch and
    /// copies what is valid.
    ///
    /// # Safety
    /// As the tile's, but only `columns` columns of C are touched.
    pub(super) unsafe fn multiply(
        &self,
        (rows, columns): (usize, usize),
        words: usize,
        a: Strip,
        b: *const u32,
        target: &TileOutput,
    ) {
        let (width, tile, number) = match self.half {
            Some(half) if columns <= self.nr / 2 => (self.nr / 2, half, 1),
            _ => (self.nr, self.tile, 0),
        };
        // SAFETY: the caller's contract.
        let multiply = |target: &TileOutput| unsafe {
            match a {
                Strip::Packed(a) => tile(rows, words, a, b, target),
                Strip::Across(a, stride) => {
                    let across = self.across.expect("words are f32")[number];
                    across(rows, words, a, stride, b, target);
                }
            }
        };
        if columns == width {
            return multiply(target);
        }
        let mut whole = [0.0; LARGEST_TILE];
        let c = whole.as_mut_ptr();
        let at = |row: usize| (c.wrapping_add(row * width), target.c.wrapping_add(row * target.ldc));
        // SAFETY: `whole` holds a register tile, of which the part that exists is copied.
        unsafe {
            for (scratch, c) in (0..rows).map(at).filter(|_| target.accumulate) {
                scratch.copy_from_nonoverlapping(c, columns);
            }
            multiply(&TileOutput { c, ldc: width, ..*target });
            for (scratch, c) in (0..rows).map(at) {
                c.copy_from_nonoverlapping(scratch, columns);
            }
        }
    }
}

/// An element's place in tables of conversions.
fn place(element: Element) -> usize {
    match element {
        Element::F32 => 0,
        Element::Bf16 => 1,
        Element::F16 => 2,
        // Half bytes are not converted, but counted in bytes.
        Element::I8 | Element::HalfByte(_) => 3,
    }
}

/// How words are multiplied.
pub(super) trait Arithmetic {
    /// Accumulators.
    type Sum: Lanes;
    /// As many words as accumulators have lanes.
    type Words: Copy;
    unsafe fn words(b: *const u32) -> Self::Words;
    /// One word in every lane.
    unsafe fn broadcast(a: *const u32) -> Self::Words;
    unsafe fn multiply_add(sum: Self::Sum, a: Self::Words, b: Self::Words) -> Self::Sum;
    /// The [tile] of R rows and V registers of columns.
    ///
    /// # Safety
    /// As for that.
    #[inline(always)]
    unsafe fn tile<const R: usize, const V: usize>(
        words: usize,
        a: *const u32,
        strides: (usize, usize),
        b: *const u32,
        target: &TileOutput,
    ) where
        Self: Sized,
    {
        // SAFETY: the caller's contract.
        unsafe { tile::<Self, R, V>(words, a, strides, b, target) }
    }
    /// What the sums of a packed row begin with.
    #[inline(always)]
    unsafe fn start(_row: *const u32) -> Self::Sum {
        // SAFETY: the caller's contract.
        unsafe { Self::Sum::splat(0.0) }
    }
    /// Stores a sum, or adds it to what is there.
    #[inline(always)]
    unsafe fn put(sum: Self::Sum, c: *mut f32, target: &TileOutput) {
        // SAFETY: the caller's contract.
        unsafe { (if target.accumulate { sum + Self::Sum::load(c) } else { sum }).store(c) }
    }
}

impl<L: Lanes> Arithmetic for L {
    type Sum = L;
    type Words = L;
    #[inline(always)]
    unsafe fn words(b: *const u32) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::load(b.cast()) }
    }
    #[inline(always)]
    unsafe fn broadcast(a: *const u32) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::splat(*a.cast::<f32>()) }
    }
    #[inline(always)]
    unsafe fn multiply_add(sum: L, a: L, b: L) -> L {
        L::fma(a, b, sum)
    }
}

/// The tile of R rows and V registers of columns, of the two that a panel has.
///
/// # Safety
/// The instruction set is there; `a` has R rows of `words` words at these strides from row to row and along k, `b` as many rows of NR
/// words, the target R rows of V registers of values.
#[inline(always)]
unsafe fn tile<A: Arithmetic, const R: usize, const V: usize>(
    words: usize,
    a: *const u32,
    strides: (usize, usize),
    b: *const u32,
    target: &TileOutput,
) {
    let (lanes, nr) = (A::Sum::LANES, 2 * A::Sum::LANES);
    // SAFETY: the caller's contract; prefetches may point anywhere.
    unsafe {
        let mut sums = [[A::Sum::splat(0.0); V]; R];
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = [A::start(a.add(i * strides.0)); V];
        }
        // At most one line with a word, or with two words if there are enough: in a burst they would occupy the miss buffers that the stream
        // of B needs, and each takes the place of a load.
        let mut fetched = Fetched::<R>::new([&target.writes, &target.reads], (V * lanes * 4).div_ceil(LINE));
        let pace = fetched.pace(words);
        let mut next = if fetched.is_done() { usize::MAX } else { 0 };
        for word in 0..words {
            if word == next {
                fetched.line();
                next = if fetched.is_done() { usize::MAX } else { word + pace };
            }
            multiply_word::<A, R, V>(&mut sums, a.add(word * strides.1), strides, b.add(word * nr));
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                A::put(sum, target.c.add(i * target.ldc + v * lanes), target);
            }
        }
    }
}

/// Multiplies one word of R rows of A with V registers of B.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(super) unsafe fn multiply_word<A: Arithmetic, const R: usize, const V: usize>(
    sums: &mut [[A::Sum; V]; R],
    a: *const u32,
    (row_stride, stride): (usize, usize),
    b: *const u32,
) {
    let lanes = A::Sum::LANES;
    // SAFETY: the caller's contract; prefetches may point anywhere.
    unsafe {
        for line in (0..V * lanes * 4).step_by(LINE) {
            prefetch(b.wrapping_add(WORDS_AHEAD * 2 * lanes).cast::<u8>().wrapping_add(line));
        }
        if row_stride == 1 {
            // A line or two of every word.
            for i in [0, R - 1] {
                prefetch(a.wrapping_add(WORDS_AHEAD * stride + i).cast());
            }
        }
        let mut columns = [A::words(b); V];
        for (v, column) in columns.iter_mut().enumerate().skip(1) {
            *column = A::words(b.add(v * lanes));
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            let x = A::broadcast(a.add(i * row_stride));
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = A::multiply_add(*sum, x, column);
            }
        }
    }
}

/// Fetches a cache line that is read soon.
#[inline(always)]
pub(super) fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of the baseline, and it may point anywhere.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
