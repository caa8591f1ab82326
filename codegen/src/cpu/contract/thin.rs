//! Products with few rows (decoding a token): B is read once, in its own order, and never packed.
//!
//! Where B is contiguous along k, an element of C is a dot product in the lanes of a few registers, one row of B after
//! another: memory gives a thread almost twice as much along one line as along four. Where B is contiguous along n, rows of B
//! are added up. Which of the two, and so the order of summation, depends on the layout of B only.

use super::driver::{Run, Space, chunks};
use super::kernel::KC;
use super::pack::Source;
use super::{Contraction, Element, Output, Precision, TILE_COLUMNS};
use crate::cpu::tiles::vector::Lanes;
use std::ops::Range;

/// The most rows: beyond, packing B pays.
const MOST_ROWS: usize = 8;
/// Rows of C that one kernel call computes.
pub(super) const ROWS: usize = 4;
/// Rows of B that are added up between two visits of C.
const DEPTH: usize = 32;

/// `(a, lda, b, k, c)`: `c[i]` = Σ_p a[i · lda + p] · b[p] for the rows of A.
pub(super) type Dot = unsafe fn(*const f32, usize, *const u8, usize, &mut [f32; ROWS]);
/// `(a, lda, b, c, ldc, n)`: c[i · ldc + j] += Σ_p a[i · lda + p] · b[p][j] for j < n.
pub(super) type Axpy = unsafe fn(*const f32, usize, &[*const u8], *mut f32, usize, usize);

/// The kernels of one instruction set, by rows: for lines of B of `f32` and of `bf16`.
pub(super) struct Thin {
    pub dot: [[Dot; ROWS]; 2],
    pub axpy: [[Axpy; ROWS]; 2],
}

// No closures in the kernels below: compiled without the instruction set's features, they would be calls.

/// Sums that are under way at once in each row of C: an addition waits for the one before it.
const fn chains(rows: usize) -> usize {
    if rows <= 2 { 4 } else { 2 }
}

/// # Safety
/// As `Dot`; the instruction set is there.
#[inline(always)]
pub(super) unsafe fn dot<L: Lanes, const R: usize, const NARROW: bool>(
    a: *const f32,
    lda: usize,
    b: *const u8,
    k: usize,
    c: &mut [f32; ROWS],
) {
    let (lines, whole) = (k - k % (chains(R) * L::LANES), k - k % L::LANES);
    // SAFETY: rows of A and B have k values.
    unsafe {
        let mut sums = [[L::splat(0.0); chains(1)]; R];
        for p in (0..lines).step_by(chains(R) * L::LANES) {
            for chain in 0..chains(R) {
                let p = p + chain * L::LANES;
                let line: L = at::<L, NARROW>(b, p, L::LANES);
                for (i, sums) in sums.iter_mut().enumerate() {
                    sums[chain] = L::fma(L::load(a.add(i * lda + p)), line, sums[chain]);
                }
            }
        }
        for p in (lines..whole).step_by(L::LANES) {
            let line: L = at::<L, NARROW>(b, p, L::LANES);
            for (i, sums) in sums.iter_mut().enumerate() {
                sums[0] = L::fma(L::load(a.add(i * lda + p)), line, sums[0]);
            }
        }
        if whole < k {
            let line: L = at::<L, NARROW>(b, whole, k - whole);
            for (i, sums) in sums.iter_mut().enumerate() {
                sums[1] = L::fma(L::load_first(a.add(i * lda + whole), k - whole), line, sums[1]);
            }
        }
        for (c, sums) in c.iter_mut().zip(sums) {
            *c = match chains(R) {
                2 => (sums[0] + sums[1]).sum(),
                _ => ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum(),
            };
        }
    }
}

/// Registers of each row of C that are summed at once.
const fn vectors(rows: usize) -> usize {
    if rows <= 2 { 4 } else { 2 }
}

/// # Safety
/// As `Axpy`; the instruction set is there, C has R rows.
#[inline(always)]
pub(super) unsafe fn axpy<L: Lanes, const R: usize, const NARROW: bool>(
    a: *const f32,
    lda: usize,
    b: &[*const u8],
    c: *mut f32,
    ldc: usize,
    n: usize,
) {
    let (blocks, whole) = (n - n % (vectors(R) * L::LANES), n - n % L::LANES);
    // SAFETY: rows of B and C have n values.
    unsafe {
        for j in (0..blocks).step_by(vectors(R) * L::LANES) {
            let mut sums = [[L::splat(0.0); vectors(1)]; R];
            for (i, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums[..vectors(R)].iter_mut().enumerate() {
                    *sum = L::load(c.add(i * ldc + j + v * L::LANES));
                }
            }
            for (p, b) in b.iter().enumerate() {
                for v in 0..vectors(R) {
                    let line: L = at::<L, NARROW>(*b, j + v * L::LANES, L::LANES);
                    for (i, sums) in sums.iter_mut().enumerate() {
                        sums[v] = L::fma(L::splat(*a.add(i * lda + p)), line, sums[v]);
                    }
                }
            }
            for (i, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums[..vectors(R)].iter().enumerate() {
                    sum.store(c.add(i * ldc + j + v * L::LANES));
                }
            }
        }
        for j in (blocks..n).step_by(L::LANES) {
            // The last one may have fewer lanes.
            let lanes = if j < whole { L::LANES } else { n - whole };
            let mut sums = [L::splat(0.0); R];
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = load(c.add(i * ldc + j), lanes);
            }
            for (p, b) in b.iter().enumerate() {
                let line: L = at::<L, NARROW>(*b, j, lanes);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = L::fma(L::splat(*a.add(i * lda + p)), line, *sum);
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                match lanes == L::LANES {
                    true => sum.store(c.add(i * ldc + j)),
                    false => sum.store_first(c.add(i * ldc + j), lanes),
                }
            }
        }
    }
}

/// # Safety
/// The instruction set is there, and `lanes` values at `source`.
#[inline(always)]
unsafe fn load<L: Lanes>(source: *const f32, lanes: usize) -> L {
    // SAFETY: the caller's contract.
    unsafe { if lanes == L::LANES { L::load(source) } else { L::load_first(source, lanes) } }
}

/// Values of a line of B, from one of them on.
///
/// # Safety
/// The instruction set is there, and the line has so many values.
#[inline(always)]
unsafe fn at<L: Lanes, const NARROW: bool>(line: *const u8, first: usize, lanes: usize) -> L {
    // SAFETY: the caller's contract.
    unsafe {
        if !NARROW {
            return load(line.cast::<f32>().add(first), lanes);
        }
        let source = line.cast::<u16>().add(first);
        if lanes == L::LANES { L::widen(source) } else { L::widen_first(source, lanes) }
    }
}

/// Whether a contraction is computed here.
pub(super) fn suits(job: &Contraction) -> bool {
    let adds = matches!(job.output, Output::Direct { adds: true, .. });
    job.m <= MOST_ROWS && !adds && (job.b.k.offsets().unit() || job.b.outer.offsets().unit())
}

/// Row stride of A as it is staged, in values.
fn stride(job: &Contraction) -> usize {
    job.k.next_multiple_of(16) + 16
}

/// Buffers that are needed: A, a stage of B (of which there are two), tiles of C; in words.
pub(super) fn words(job: &Contraction) -> (usize, usize, usize) {
    let stage = stride(job).max(DEPTH * TILE_COLUMNS);
    (job.m * stride(job), stage, job.m * TILE_COLUMNS)
}

/// Computes some columns of one matrix of C.
///
/// # Safety
/// As `Contraction::run`; the space is as large as `words` says.
pub(super) unsafe fn piece(run: &Run<'_>, batch: usize, columns: Range<usize>, space: &Space) {
    let (job, b) = (run.job, run.source(&run.job.b, run.buffers.b, batch));
    // SAFETY: as promised; a tile is finished before the epilogue sees it.
    unsafe {
        stage_a(run, batch, space.a.cast());
        for n in chunks(columns, TILE_COLUMNS) {
            let (c, ldc) = match &job.output {
                Output::Direct { batch: matrices, ldc, .. } => {
                    (run.buffers.c.wrapping_offset(matrices.at(batch)).wrapping_add(n.start), *ldc)
                }
                Output::Tile => (space.sums, TILE_COLUMNS),
            };
            if b.k.unit() {
                columns_by_dots(run, &b, n.clone(), c, ldc, space);
            } else {
                columns_by_lines(run, &b, n.clone(), c, ldc, space);
            }
            if let Some(hook) = job.epilogue {
                run.call(hook, c, ldc, (0, n.start), (job.m, n.len()), batch);
            }
        }
    }
}

/// A as rows of `f32`, worked on by the prologue and rounded.
unsafe fn stage_a(run: &Run<'_>, batch: usize, out: *mut f32) {
    let (job, ld) = (run.job, stride(run.job));
    let a = run.source(&job.a, run.buffers.a, batch);
    // SAFETY: the buffer has m rows of `ld` values.
    unsafe {
        (0..job.m).for_each(|i| a.row(i, job.k, out.add(i * ld)));
        if let Some(hook) = job.prologue {
            for k in chunks(0..job.k, KC) {
                run.call(hook, out.add(k.start), ld, (0, k.start), (job.m, k.len()), batch);
            }
        }
        if job.precision == Precision::Bf16 {
            (0..job.m).for_each(|i| (run.kernels.round)(out.add(i * ld), out.add(i * ld), job.k));
        }
    }
}

/// Which of the kernels multiplies lines of B: those of `bf16` are widened in registers.
fn lines(job: &Contraction) -> usize {
    usize::from(job.b.element == Element::Bf16)
}

/// A line of B in memory, or widened and rounded in `stage`.
unsafe fn line(run: &Run<'_>, at: *const u8, count: usize, stage: *mut f32) -> *const u8 {
    let job = run.job;
    let rounds = job.precision == Precision::Bf16;
    if job.b.element == Element::Bf16 || job.b.element == Element::F32 && !rounds {
        return at;
    }
    // SAFETY: `count` elements of unit stride lie there, and the stage holds as many.
    unsafe {
        run.kernels.load(job.b.element)(stage, at, 1, count);
        if rounds {
            (run.kernels.round)(stage, stage, count);
        }
    }
    stage.cast()
}

unsafe fn columns_by_dots(
    run: &Run<'_>,
    b: &Source<'_>,
    columns: Range<usize>,
    c: *mut f32,
    ldc: usize,
    space: &Space,
) {
    let (job, ld) = (run.job, stride(run.job));
    for column in columns.clone() {
        // SAFETY: the stage holds k values.
        let line = unsafe { line(run, b.at(column, 0), job.k, space.stage[0]) };
        for rows in chunks(0..job.m, ROWS) {
            let mut sums = [0.0; ROWS];
            let a = space.a.cast::<f32>().wrapping_add(rows.start * ld);
            // SAFETY: `stage_a` made the rows; C has these rows and this column.
            unsafe {
                run.kernels.thin.dot[lines(job)][rows.len() - 1](a, ld, line, job.k, &mut sums);
                for (i, sum) in rows.zip(sums) {
                    c.add(i * ldc + column - columns.start).write_unaligned(sum);
                }
            }
        }
    }
}

unsafe fn columns_by_lines(
    run: &Run<'_>,
    b: &Source<'_>,
    columns: Range<usize>,
    c: *mut f32,
    ldc: usize,
    space: &Space,
) {
    let (job, ld, n) = (run.job, stride(run.job), columns.len());
    // SAFETY: C has these rows and columns; `stage_a` made the rows of A; the stage holds `DEPTH` lines.
    unsafe {
        (0..job.m).for_each(|i| c.add(i * ldc).cast::<u8>().write_bytes(0, n * 4));
        for k in chunks(0..job.k, DEPTH) {
            let mut addresses = [std::ptr::null(); DEPTH];
            for (slot, p) in addresses.iter_mut().zip(k.clone()) {
                let stage = space.stage[0].add((p - k.start) * TILE_COLUMNS);
                *slot = line(run, b.at(columns.start, p), n, stage);
            }
            for rows in chunks(0..job.m, ROWS) {
                let a = space.a.cast::<f32>().wrapping_add(rows.start * ld + k.start);
                let c = c.add(rows.start * ldc);
                run.kernels.thin.axpy[lines(job)][rows.len() - 1](a, ld, &addresses[..k.len()], c, ldc, n);
            }
        }
    }
}
