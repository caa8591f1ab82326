//! Products with few rows, but too many for `gemv` (tiles of a prompt): computed as Cᵀ = B · Aᵀ.
//!
//! Of the two operands one is packed by copying rows, or the runs of which they are made, the other one is transposed into panels. Here B is
//! large and used for few rows of A, so that transposing it would take half as long as multiplying it. Rows of B are copied and A goes into panels
//! instead; finished blocks of Cᵀ are transposed, which are smaller than B by the length of the sums. Each element is the same
//! sum in the same order either way, so that no bit depends on it.

use super::blocking::{GemmCall, Space};
use super::microkernel::{Kernels, LDA, Step};
use super::pack::{Block, Offsets, RUN};
use super::{Buffers, Contraction, Element, Output, Precision, STREAMS, TILE_COLUMNS, Tiles, gemv};
use std::ops::Range;

/// Packed words of A at most: 4 MiB.
const MOST_WORDS: usize = 1 << 20;
/// Rows of C at least: fewer would leave most of a panel empty.
const LEAST_ROWS: usize = 9;

/// The job and its buffers with the operands exchanged, if that is faster.
pub(super) fn of(job: &Contraction, buffers: &Buffers) -> Option<(Contraction, Buffers)> {
    let adds = matches!(job.output, Output::Direct { adds: true, .. });
    let few = (LEAST_ROWS..=TILE_COLUMNS.min(job.n / 2)).contains(&job.m) && job.m * job.k <= MOST_WORDS;
    // Products of parts are added in an order that is another one when operands are exchanged.
    let same_bits = !matches!(job.precision, Precision::X3 | Precision::X6);
    let (outer, k) = (job.b.outer.offsets(), job.b.k.offsets());
    let packs_runs = Kernels::of(job.isa, job.precision).step == Step::F32
        && matches!(job.b.element, Element::F32 | Element::Bf16);
    // Where B lies in runs both ways, the longer ones are copied.
    let lies_in_runs = || {
        let length = k.run(job.k);
        length >= RUN && outer.step_of_runs(job.n).is_none_or(|step| outer.run_by(step, job.n) < length)
    };
    let along_k = k.unit() || packs_runs && !outer.unit() && lies_in_runs();
    let suits = few && !gemv::suits(job) && same_bits && along_k && job.is_plain() && !adds && job.k > 0;
    suits.then(|| {
        let job = Contraction {
            m: job.n,
            n: job.m,
            a: job.b.clone(),
            b: job.a.clone(),
            output: Output::Tile,
            // Rows of Cᵀ are handed over once they are whole, and finished.
            tiles: Tiles::Rows,
            epilogue: None,
            ..job.clone()
        };
        let nothing = [None; STREAMS];
        (job, Buffers { a: buffers.b, b: buffers.a, reads: nothing, writes: nothing, ..*buffers })
    })
}

/// Room for a block of Cᵀ, transposed.
pub(super) fn words(job: &Contraction) -> usize {
    job.n.next_multiple_of(16) * LDA
}

/// Hands over finished rows of Cᵀ, which are columns of C.
///
/// # Safety
/// As `Contraction::run`; the sums of the space hold the rows.
pub(super) unsafe fn finish(
    gemm: &GemmCall<'_>,
    asked: &Contraction,
    space: &Space,
    batch: usize,
    rows: Range<usize>,
) {
    let stride = Offsets::Strided(gemm.blocking.sum_stride as isize);
    let block = Block { base: space.sums.cast_const(), outer: Offsets::Strided(1), k: stride };
    // SAFETY: the sums have `rows` rows of m values, and the room m rows of `LDA` words.
    unsafe { (gemm.kernels.pack_a_f32)(&block, asked.m, rows.len(), space.transposed.cast()) };
    let (tile, ld) = match &asked.output {
        Output::Tile => (space.transposed, LDA),
        Output::Direct { batch: matrices, ldc, .. } => {
            let c = gemm.buffers.c.wrapping_offset(matrices.at(batch)).wrapping_add(rows.start);
            for i in 0..asked.m {
                let (to, from) = (c.wrapping_add(i * ldc), space.transposed.wrapping_add(i * LDA));
                // SAFETY: C, of any alignment, has these rows and columns.
                unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.cast(), 4 * rows.len()) };
            }
            (c, *ldc)
        }
    };
    if let Some(hook) = asked.epilogue {
        // SAFETY: the tile is finished.
        unsafe { gemm.call(hook, tile, ld, (0, rows.start), (asked.m, rows.len()), batch) };
    }
}
