//! Matrix products `C[b, m, n] = epilogue(Σ_k A[b, m, k] · B[b, n, k])` on a pool of threads.
//!
//! Operands lie anywhere that an `Axis` can describe and are packed on the way; a prologue may compute an operand
//! block by block while it is packed, an epilogue works on tiles of C while they are in cache. The batch and one side
//! of C, mostly the longer, are divided among threads, k never is: every element of C has one order of summation, so that
//! results are the same bits for any number of threads and in any place of a tile.

mod ahead;
mod blocking;
mod bytes;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no other processor has kernels for it"))]
mod fixed;
mod gemv;
mod generic;
mod half_bytes;
mod kernels;
pub(crate) mod later;
mod line;
mod macrokernel;
mod microkernel;
mod pack;
mod packer;
mod pairs;
mod peak;
pub(crate) mod single_thread;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod transposed;
mod trial;
mod workspace;

pub use bytes::MOST_TERMS as MOST_TERMS_OF_BYTES;
pub use generic::{GenericContraction, Layout, Number};
pub use half_bytes::ScaleType;
pub use peak::peak;
pub use workspace::Workspaces;

use crate::isa::Isa;
use crate::memory::OutOfMemory;
use crate::pool::Pool;
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::sync::Arc;

/// The widest tile, in columns, that a prologue is given, and an epilogue that works on [any](Tiles::Any) tiles or on strips.
pub const TILE_COLUMNS: usize = 384;

/// Where element i along one axis of an operand lies, in elements from the operand's start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Axis {
    /// At `i · stride`, for `i < len`.
    Strided {
        /// How many elements there are.
        len: usize,
        /// In elements; zero repeats one.
        stride: isize,
    },
    /// At `table[i]`: axes made of several axes, and gathers.
    Table(Arc<[isize]>),
}

impl Axis {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Axis::Strided { len, .. } => *len,
            Axis::Table(table) => table.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where element `i` lies.
    ///
    /// # Panics
    /// A table has no element `i`.
    pub fn at(&self, i: usize) -> isize {
        self.offsets().at(i)
    }

    fn offsets(&self) -> pack::Offsets<'_> {
        match self {
            Axis::Strided { stride, .. } => pack::Offsets::Strided(*stride),
            Axis::Table(table) => pack::Offsets::Table(table),
        }
    }
}

/// What an operand's memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// IEEE single precision.
    F32,
    /// The upper half of an `F32`.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Signed bytes, as the numbers that they are.
    I8,
    /// Whole numbers from −8 to 7, in groups of 32 with a scale of a type, of B alone: byte j of a group has number j, plus 8, in its lower half
    /// and number 16 + j in its upper half. Strides are in bytes, and k is contiguous, of whole groups. The scale of the group at byte i is
    /// number i / 16 of [`Buffers::scales`].
    HalfByte(ScaleType),
}

impl Element {
    /// Bytes of what strides count: an element, or two half bytes.
    pub fn size(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 | Element::F16 => 2,
            Element::I8 | Element::HalfByte(_) => 1,
        }
    }

    fn is_half_byte(self) -> bool {
        matches!(self, Element::HalfByte(_))
    }

    /// The size in bytes of this number of values.
    fn bytes(self, values: usize) -> usize {
        if self.is_half_byte() { values / 2 } else { values * self.size() }
    }
}

/// A factor: element (b, i, p) lies at `batch.at(b) + outer.at(i) + k.at(p)`. Fast where `outer` or `k` has
/// stride 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operand {
    /// What its memory holds.
    pub element: Element,
    /// Rows of C for A (length m), columns of C for B (length n).
    pub outer: Axis,
    /// The axis that is summed over.
    pub k: Axis,
    /// One matrix per element.
    pub batch: Axis,
}

/// A matrix of a factor in memory.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// The first element.
    pub(crate) start: *const u8,
    /// What memory holds.
    pub(crate) element: Element,
    /// Rows of C for A, columns of C for B.
    pub(crate) outer: &'a Axis,
    /// The axis that is summed over.
    pub(crate) k: &'a Axis,
}

impl<'a> Matrix<'a> {
    /// Matrix `batch` of an operand that starts at `base`.
    pub(crate) fn of(operand: &'a Operand, base: *const u8, batch: usize) -> Self {
        let offset = operand.batch.at(batch).wrapping_mul(operand.element.size() as isize);
        let (outer, k) = (&operand.outer, &operand.k);
        Matrix { start: base.wrapping_offset(offset), element: operand.element, outer, k }
    }
}

/// Where results go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Output {
    /// Into C as `f32`: element (b, i, j) at `batch.at(b) + i · ldc + j`. An epilogue works in place on C.
    Direct {
        /// Whether results are added to what C holds, in the order of the batch; several products may then share a matrix.
        adds: bool,
        /// One matrix per element.
        batch: Axis,
        /// From row to row, in elements.
        ldc: usize,
    },
    /// To the epilogue only, which must store them; every tile is handed over exactly once.
    Tile,
}

impl Output {
    /// The matrices that results go to, if they go to C.
    pub(crate) fn batch_mut(&mut self) -> Option<&mut Axis> {
        match self {
            Output::Direct { batch, .. } => Some(batch),
            Output::Tile => None,
        }
    }
}

/// What tiles an epilogue is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tiles {
    /// Any rows and columns, each entry once.
    #[default]
    Any,
    /// Strips: all rows of a tile have the same number when they are divided by [`register_rows`], and a column is in one tile of each
    /// strip. So what is computed for each strip is the same for any number of threads.
    Strips,
    /// Strips of whole rows.
    Rows,
}

/// What is multiplied; sums are `f32` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Precision {
    /// The operands as `f32`.
    #[default]
    F32,
    /// The operands rounded to bf16, also those that a prologue computes.
    Bf16,
    /// The operands as sums of two bf16 each, 16 digits of 24, and the three largest of the four products, where there is a tile
    /// unit; else as `f32`. Not for values below 2⁻¹¹⁷, whose lower parts count as zero; what is not finite becomes NaN.
    X3,
    /// The operands as sums of three bf16 each, all their digits, and the six largest of the nine products, where there is a tile unit;
    /// else as `f32`. Not for values below 2⁻¹¹⁰, as before; what is not finite becomes NaN.
    X6,
    /// Both operands as the bytes that memory holds, without prologues: sums are whole numbers, exact, and rounded once. There are at most
    /// [`MOST_TERMS_OF_BYTES`] terms.
    Int8,
    /// The operands in fixed point, where the processor multiplies pairs of whole numbers of 16 bits and has no tiles; else as
    /// [`Bf16`](Self::Bf16). 128 values of k of a row of A or of a column of B, from a multiple of 128 on, are whole numbers up to 4,095 times a
    /// scale, which is the largest of their magnitudes over 4,095. What is not finite is not finite in C either. Not for blocks whose largest
    /// values multiply to less than 2⁻¹⁰², which lose digits, or to more than 2¹⁵¹, whose sums are not finite.
    Fixed,
}

/// The fewest rows and columns that are worth packing in fixed point.
const LEAST_OF_FIXED: usize = 32;

impl Precision {
    /// Whether products of this precision are faster in [fixed point](Precision::Fixed): where the processor multiplies pairs of whole numbers of 16 bits,
    /// and what they would be computed in is `f32`.
    pub fn gains_by_fixed_point(self, isa: Isa) -> bool {
        let [exact, fixed] =
            [self, Precision::Fixed].map(|precision| microkernel::Kernels::of(isa, precision));
        exact.step == microkernel::Step::F32 && fixed.is_fixed()
    }

    /// Whether operands are rounded to bf16 where they are multiplied as `f32`, or as they lie.
    fn rounds_to_bf16(self) -> bool {
        matches!(self, Precision::Bf16 | Precision::Fixed)
    }
}

/// Rows of the register tile. A product whose rows are a multiple of it fills every tile.
pub fn register_rows(isa: Isa, precision: Precision) -> usize {
    microkernel::Kernels::of(isa, precision).mr
}

/// Whether products of bf16 are computed in `f32`, since the processor has nothing for bf16, or nothing that is faster.
pub fn multiplies_bf16_in_f32(isa: Isa) -> bool {
    microkernel::Kernels::of(isa, Precision::Bf16).step == microkernel::Step::F32
}

/// What rows of A hold that are packed for products in bf16: pairs, or words of `f32` where there are no products of pairs.
pub fn packed_bf16(isa: Isa) -> Element {
    match microkernel::Kernels::of(isa, Precision::Bf16).multiplies_pairs() {
        true => Element::Bf16,
        false => Element::F32,
    }
}

/// Stores `n` values as elements, `stride` elements apart.
///
/// # Safety
/// The machine has the instruction set; `src` has the values, and `dst` room for the elements.
pub(crate) unsafe fn store(
    isa: Isa,
    element: Element,
    dst: *mut u8,
    stride: isize,
    src: *const f32,
    n: usize,
) {
    let kernels = microkernel::Kernels::of(isa, Precision::F32);
    // SAFETY: the caller's contract.
    unsafe { kernels.store(element)(dst, stride, src, n) }
}

/// `(tile, ld, row, column, rows, columns, batch, context)`: works in place on a tile of finished results
/// (epilogue: rows are m, columns n), or writes a block of an operand ([`Prologue`]). `row` and `column`
/// are the tile's place in its matrix, which is number `batch`; rows of the tile are `ld` elements apart. It is
/// called from several threads at once, with tiles of at most `TILE_COLUMNS` columns, or whole rows ([`Tiles`]).
pub type TileFn = unsafe extern "C" fn(*mut f32, usize, usize, usize, usize, usize, usize, *const c_void);

/// Computes an operand that is no matrix in memory, while it is packed. An element may be computed more than once.
#[derive(Clone, Copy, Debug)]
pub struct Prologue {
    /// Writes a block, as `f32`.
    pub function: TileFn,
    /// Whether the columns of its tiles are k and the rows m (or n); else the other way round.
    pub along_k: bool,
}

/// A batch of products, as compiled; `run` adds the buffers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contraction {
    /// Which kernels to run.
    pub isa: Isa,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums; none gives zeros.
    pub k: usize,
    /// Number of products.
    pub batch: usize,
    /// The factor with the rows of C.
    pub a: Operand,
    /// The factor with the columns of C.
    pub b: Operand,
    /// Where results go.
    pub output: Output,
    /// What is multiplied.
    pub precision: Precision,
    /// What the epilogue is given.
    pub tiles: Tiles,
    /// What computes A and B, where something does. Then `a` or `b` says where most of what it reads lies, to be prefetched.
    #[serde(skip)]
    pub prologues: [Option<Prologue>; 2],
    /// Works on finished tiles of C.
    #[serde(skip)]
    pub epilogue: Option<TileFn>,
}

/// A matrix that the epilogue reads or writes at the coordinates of C: element (b, i, j) at `start + b · batch + i · row + j · size`,
/// all in bytes. It is only prefetched while tiles are multiplied, which hides most of its memory time.
#[derive(Clone, Copy, Debug)]
pub struct Touched {
    /// Element (0, 0, 0).
    pub start: *const u8,
    /// Of an element.
    pub size: usize,
    /// From row to row.
    pub row: usize,
    /// From matrix to matrix.
    pub batch: isize,
}

/// How many matrices are prefetched to be read, and how many to be written.
pub const STREAMS: usize = 4;

/// The memory of one run.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Start of A.
    pub a: *const u8,
    /// Start of B.
    pub b: *const u8,
    /// Start of the scales of B, where it is [half bytes](Element::HalfByte). They are aligned in any way.
    pub scales: *const u8,
    /// Start of C; not used by `Output::Tile`.
    pub c: *mut f32,
    /// Handed to prologues and epilogue.
    pub context: *const c_void,
    /// What the epilogue reads, as far as that is known.
    pub reads: [Option<Touched>; STREAMS],
    /// What the epilogue of `Output::Tile` writes, as far as that is known.
    pub writes: [Option<Touched>; STREAMS],
}

// SAFETY: threads only share the pointers; `Contraction::run` states what may be done through them.
unsafe impl Sync for Buffers {}

impl Contraction {
    /// Computes all products.
    ///
    /// # Errors
    /// There is no memory for packed operands.
    ///
    /// # Panics
    /// The axes' lengths are not those of the product, `Output::Tile` has no epilogue, or there are fewer
    /// workspaces than threads.
    ///
    /// # Safety
    /// The machine has `isa`. The operands' and the output's axes stay inside the buffers, and C, whose elements
    /// are distinct, does not overlap the operands. Prologues and epilogue may be called from several threads
    /// with these arguments. Workspaces that [keep](Workspaces::keeping) B are used for this product only, and forget a B that changes.
    pub unsafe fn run(
        &self,
        buffers: &Buffers,
        pool: &Pool,
        workspaces: &Workspaces,
    ) -> Result<(), OutOfMemory> {
        self.check();
        if self.m == 0 || self.n == 0 || self.batch == 0 {
            return Ok(());
        }
        // What is packed once is not worth another way.
        let transposed = transposed::of(self, buffers).filter(|_| !workspaces.keeps());
        let (job, buffers) = transposed.as_ref().map_or((self, buffers), |(job, buffers)| (job, buffers));
        let asked = transposed.is_some().then_some(self);
        let run = |way| {
            let call = blocking::GemmCall::new(job, buffers, pool.threads(), asked, way);
            workspaces.reserve(pool.threads(), call.bytes())?;
            pool.run(&|t| {
                workspaces.packing(t, |memory, packed| {
                    // SAFETY: the caller's contract; threads write disjoint parts of C.
                    unsafe { call.part(t, pool.threads(), memory, packed) };
                });
            });
            Ok(())
        };
        match !workspaces.keeps() && blocking::has_two_ways(job, pool.threads()) {
            true => trial::run(job, pool.threads(), run),
            false => run(trial::Way::First),
        }
    }

    /// Whether this product is faster in [fixed point](Precision::Fixed): with rows and columns enough, sums that fill their blocks, and operands that are
    /// packed as they lie.
    pub fn gains_by_fixed_point(&self) -> bool {
        let words = microkernel::Kernels::of(self.isa, Precision::Fixed).words(self.k);
        let lies_in_lines = |operand: &Operand| operand.outer.offsets().unit() || operand.k.offsets().unit();
        self.precision.gains_by_fixed_point(self.isa)
            && self.m.min(self.n) >= LEAST_OF_FIXED
            && 3 * words < 2 * self.k
            && [&self.a, &self.b].into_iter().all(lies_in_lines)
    }

    /// Whether operands are packed as they lie in memory, and the epilogue takes any tile: what the ways for few rows can do.
    fn is_plain(&self) -> bool {
        self.prologues.iter().all(Option::is_none) && self.tiles == Tiles::Any
    }

    /// Columns of the widest tile.
    fn tile_columns(&self) -> usize {
        if self.tiles == Tiles::Rows { self.n } else { TILE_COLUMNS }
    }

    fn check(&self) {
        for (operand, outer) in [(&self.a, self.m), (&self.b, self.n)] {
            let lengths = (operand.outer.len(), operand.k.len(), operand.batch.len());
            assert_eq!(lengths, (outer, self.k, self.batch), "lengths (outer, k, batch) of an operand");
        }
        assert!(!self.a.element.is_half_byte(), "half bytes are of B");
        if self.precision == Precision::Int8 {
            assert_eq!([self.a.element, self.b.element], [Element::I8; 2], "products of bytes");
            let adds = matches!(self.output, Output::Direct { adds: true, .. });
            assert!(!adds && self.prologues.iter().all(Option::is_none), "bytes lie in memory");
            assert!(self.k <= MOST_TERMS_OF_BYTES, "sums of 32 bits");
        }
        let in_groups = self.b.k.offsets().unit() && self.k.is_multiple_of(half_bytes::GROUP);
        assert!(in_groups || !self.b.element.is_half_byte(), "half bytes lie in groups along k");
        match &self.output {
            Output::Direct { batch, .. } => {
                assert_eq!(batch.len(), self.batch, "length of the output's batch")
            }
            Output::Tile => assert!(self.epilogue.is_some(), "somebody must store the tiles"),
        }
    }
}
