//! Operands of products that are computed while they are packed: normalised rows, an activation, a conversion. The row program writes
//! a block of them at a time, which lies in cache until it is packed, so that they are never in memory as a whole.
//!
//! ```text
//! a = gelu(load h[1536·k0 + r0])      for each block:  stage[k0, r0] = gelu(h[…]);  pack stage
//! ```
//!
//! Lines of a block run along the axis along which memory is contiguous: along k, or across it.

use super::contraction::{Factor, is_of_few_rows, lies_along_k, packed_factor, runs_in_tiles};
use super::normalise::regroup;
use super::row::{Row, Target, Write, WriteMode};
use super::schedule::is_call;
use super::wide::Vectors;
use super::{Lowering, schedule, tile};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::common_stride;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    BufferId, Domain, Form, Index, Instr, InstrKind, Kernel, Operand, Product, Region, Scalar, Store,
    StoreMode,
};
use kernfusion_runtime::product::ComputedFactor;
use std::ops::Range;

/// Elements of the other operand at most, so that all of it is packed once or twice, and this one computed no more often.
const OTHER_OPERAND: usize = 4 << 20;
/// Elements of the result at most where B is computed and k is long: its sums fit into the buffers of a thread, else B would be computed
/// again for other rows.
const RESULT: usize = 2 << 20;
/// Values of k up to which B is packed whole.
const SHORT: usize = 4096;

/// Which operand of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    fn operand(self, product: &Product) -> &Operand {
        match self {
            Side::A => &product.a,
            Side::B => &product.b,
        }
    }

    /// The axes of the domain that the operand has beside k.
    fn outer(self, domain: &Domain) -> Range<usize> {
        match self {
            Side::A => domain.row_axes(),
            Side::B => domain.column_axes(),
        }
    }
}

/// How a computed operand is walked.
struct Walk<'k> {
    /// The load that has most of what is read.
    load: &'k Instr,
    along_k: bool,
}

/// Why an operand that a kernel computes should be in memory, if it should.
pub(super) fn refusal(kernel: &Kernel) -> Option<&'static str> {
    let sides = kernel.products().iter().flat_map(|product| [(product, Side::A), (product, Side::B)]);
    let in_tiles = runs_in_tiles(kernel);
    let is_computed = |&(product, side): &(&Product, Side)| {
        let is_packed = || in_tiles && side == Side::B && reads_half_bytes(&kernel.domain, product);
        side.operand(product).plain().is_none() && !is_packed()
    };
    let mut computed = sides.filter(is_computed).peekable();
    let are_bytes = |(product, side): &(&Product, Side)| {
        let operand = side.operand(product);
        operand.region.is_widened_byte(operand.value)
    };
    if computed.clone().any(|side| are_bytes(&side)) {
        return Some("on the CPU, bytes that are multiplied lie in memory");
    }
    if computed.peek().is_some() && !in_tiles {
        return Some("on the CPU, what computes operands works for one product of floats and its tiles");
    }
    computed.find_map(|(product, side)| refused(&kernel.domain, product, side))
}

/// Whether the second operand of a product that runs in tiles is read as the half bytes that it is kept in.
fn reads_half_bytes(domain: &Domain, product: &Product) -> bool {
    // A single column is computed with the operands exchanged.
    let [rows, columns] = [domain.row_axes(), domain.column_axes()].map(|axes| domain.extent(axes));
    (columns > 1 || rows == 1) && packed_factor(&product.b, domain, &product.k).is_some()
}

fn refused(domain: &Domain, product: &Product, side: Side) -> Option<&'static str> {
    let Some(walk) = walk(domain, product, side) else {
        return Some("on the CPU, a computed operand of a product is read along one contiguous axis");
    };
    let [m, n] = [domain.row_axes(), domain.column_axes()].map(|axes| domain.extent(axes));
    let k: usize = product.k.iter().product();
    let b_along_k = if side == Side::B { walk.along_k } else { lies_along_k(domain, product) };
    if is_of_few_rows(domain, b_along_k) {
        return Some("on the CPU, products of few rows read their operands as they lie");
    }
    let is_repeated = match side {
        Side::A => n * k > OTHER_OPERAND,
        Side::B => k > SHORT && m * n > RESULT,
    };
    if is_repeated {
        return Some("on the CPU, the operand would be computed for every block of a large product");
    }
    // Threads divide the longer side of the result; each one packs all of the operand along the other side.
    let by_rows = m >= n;
    let by_all = by_rows == (side == Side::B);
    let costly = side.operand(product).region.instrs.iter().any(|instr| is_call(&instr.kind));
    (by_all && costly).then_some("on the CPU, every thread would compute the operand")
}

/// How an operand can be computed block by block, if it can.
fn walk<'k>(domain: &Domain, product: &'k Product, side: Side) -> Option<Walk<'k>> {
    let extents = [&domain.axes[..], &product.k].concat();
    let (outer, k) = (side.outer(domain), domain.axes.len()..extents.len());
    let region = &side.operand(product).region;
    let stride = |index: &Index, axes: &Range<usize>| {
        common_stride(&extents[axes.clone()], &index.strides[axes.clone()])
    };
    let along = |instr: &Instr| match &instr.kind {
        InstrKind::Load { index, .. } => match (stride(index, &outer)?, stride(index, &k)?) {
            (0, _) | (_, 0) => None,
            (_, 1) => Some(true),
            (1, _) => Some(false),
            _ => None,
        },
        _ => None,
    };
    let matrices =
        region.instrs.iter().filter_map(|instr| Some(Walk { load: instr, along_k: along(instr)? }));
    let found = matrices.max_by_key(|walk| walk.load.dtype.size())?;
    let columns = if found.along_k { k } else { outer };
    let inner = columns.rev().find(|&axis| extents[axis] > 1)?;
    let all = Domain { axes: extents.clone(), outer: 0, rows: 0 };
    let fits = |instr: &Instr| match &instr.kind {
        InstrKind::Load { index, guard, .. } => {
            guard.is_empty() && index.indirect.is_empty() && matches!(index.strides[inner], 0 | 1)
        }
        InstrKind::Random { seed, step, .. } => {
            [seed, step].iter().all(|&&value| !region.varies(value, 0..extents.len(), &all))
        }
        _ => true,
    };
    let fits = region.instrs.iter().all(|instr| instr.dtype != DType::F64 && fits(instr));
    fits.then_some(found)
}

impl Lowering<'_> {
    /// The function that computes an operand block by block, and the factor that says what of memory is prefetched for it.
    pub(super) fn prologue(
        &mut self,
        kernel: &Kernel,
        product: &Product,
        side: Side,
    ) -> Result<Option<(ComputedFactor, Factor)>, CodegenError> {
        let domain = &kernel.domain;
        let Some(Walk { load, along_k }) = walk(domain, product, side) else { return Ok(None) };
        let InstrKind::Load { buffer, index, .. } = &load.kind else { unreachable!("a load is walked") };
        let operand = side.operand(product);
        let is_bf16 = operand.region.instr(operand.value).dtype == DType::BF16;
        let slot = buffer.0 as usize;
        let factor = Factor {
            slot,
            dtype: load.dtype,
            is_bf16,
            is_bytes: false,
            index: index.clone(),
            choice: None,
            scales: None,
        };
        let (outer, k) = (side.outer(domain), domain.axes.len()..domain.axes.len() + product.k.len());
        let (lines, columns) = if along_k { (outer, k) } else { (k, outer) };
        let groups = [domain.outer_axes(), lines, columns].map(|axes| axes.collect::<Vec<_>>());
        let function = self.block_function(&[&domain.axes[..], &product.k].concat(), operand, groups)?;
        Ok(Some((ComputedFactor { function, along_k }, factor)))
    }

    /// The function that writes tiles of an operand over axes of these extents, in groups: batch, lines, and along a line.
    fn block_function(
        &mut self,
        extents: &[usize],
        operand: &Operand,
        groups: [Vec<usize>; 3],
    ) -> Result<usize, CodegenError> {
        // An order of elements that keeps no axes apart: it is the tile that is written.
        let mut index = Index::constant(extents.len(), 0);
        let mut next = 1;
        for &axis in groups.iter().flatten().rev() {
            index.strides[axis] = next;
            next *= extents[axis] as i64;
        }
        let value = unrounded(&operand.region, operand.value);
        let store = Store { value, buffer: BufferId(0), index, mode: StoreMode::Set };
        let whole = Kernel {
            name: String::new(),
            form: Form::Map,
            domain: Domain { axes: extents.to_vec(), outer: 0, rows: 0 },
            region: operand.region.clone(),
            stores: vec![store],
            covers: vec![],
        };
        let merged = regroup(&whole, groups);
        let [store] = &merged.stores[..] else { unreachable!("made above") };
        let write = Write {
            value: store.value,
            target: Target::Tile,
            dtype: DType::F32,
            index: store.index.clone(),
            mode: WriteMode::Set,
        };
        let (axes, fixed) = (merged.domain.axes.clone(), merged.domain.axes.len() - 1);
        let row = Row::new(merged.region.clone(), vec![write], axes, fixed, self.facts.clobbered.clone());
        self.check_row(&row)?;
        let schedule = schedule::schedule(&row, Vectors::of(self.isa));
        let capacity = tile::capacity(&row);
        self.needs_zeros(&row, capacity);
        let (slots, name) = (self.facts.dtypes.len(), self.facts.name.clone());
        let place = tile::Place { scratch: None, capacity, strip: None };
        tile::build(self.functions, &name, &row, &schedule, &merged.domain, slots, &place)
    }
}

/// A value before it is rounded to bf16, if that is the last step: packing does it.
fn unrounded(region: &Region, value: Scalar) -> Scalar {
    match region.instr(value).kind {
        InstrKind::Cast(x)
            if region.instr(value).dtype == DType::BF16 && region.instr(x).dtype == DType::F32 =>
        {
            x
        }
        _ => value,
    }
}
