//! Images with short rows, as one row each. What windows read of them is under bounds of rows and of columns, which keep two axes apart that are
//! one in memory.
//!
//! ```text
//! map [n, c, 14, 14] of x[n, c, h + 1, w + 1] if h + 1 < 14 and w + 1 < 14
//!   →   map [n, c, 196] of x[n, c, p + 15] if ⌊p / 14⌋ + 1 < 14 and p mod 14 + 1 < 14
//! ```
//!
//! A row of 14 fills one vector of sixteen, but what comes before and after the points of a row costs more than they do.

use kernfusion_codegen::analysis::{indices, indices_mut, operands_mut, reduces, scatters};
use kernfusion_ir::kernel::{Bound, Direction, Domain, Index, Indirect, InstrKind, Kernel, Region, Scalar};
use kernfusion_ir::{Binary, DType, Literal};

/// Rows of images at most: longer ones fill vectors.
const LONGEST: usize = 63;
/// Binary digits of the fraction that a division multiplies with.
const DIGITS: u32 = 20;

/// A normalised kernel with its last two axes as one, if memory lies so and bounds alone keep them apart.
pub(super) fn flattened(kernel: &Kernel) -> Option<Kernel> {
    let domain = &kernel.domain;
    let inner = domain.axes.len() - 1;
    let rows = inner.checked_sub(1)?;
    let [height, width] = [domain.axes[rows], domain.axes[inner]];
    let is_reduced = reduces(&kernel.region, Direction::Columns);
    // Of a reduction both are columns; a map has all axes but the last one outside.
    let suits = match is_reduced {
        true => rows >= domain.outer + domain.rows,
        false => domain.rows == 0 && domain.outer == inner,
    };
    let is_plain = !scatters(kernel) && !reduces(&kernel.region, Direction::Rows);
    if !suits || !is_plain || width > LONGEST {
        return None;
    }
    let is_linear = |index: &Index| index.strides[rows] == width as i64 * index.strides[inner];
    let mut bounds = kernel.region.instrs.iter().flat_map(|instr| bounds(&instr.kind));
    let is_apart = bounds.any(|bound| !is_linear(&bound.coordinate));
    let own = kernel.region.instrs.iter().flat_map(|instr| own_index(&instr.kind));
    let mut own = own.chain(kernel.stores.iter().map(|store| &store.index));
    if !is_apart || !own.all(is_linear) {
        return None;
    }
    let mut region = Region::default();
    let [row, column] = row_and_column(&mut region, rows, height, width)?;
    let terms = |index: &Index| {
        let term = |value, limit, axis: usize| Indirect { value, limit, stride: index.strides[axis] };
        [term(row, height, rows), term(column, width, inner)].into_iter().filter(|term| term.stride != 0)
    };
    let flat = |index: &mut Index| {
        if !is_linear(index) {
            index.indirect.extend(terms(index));
            index.strides[inner] = 0;
        }
        index.strides.remove(rows);
    };
    let mut values: Vec<Scalar> = vec![];
    for instr in &kernel.region.instrs {
        let mut kind = instr.kind.clone();
        operands_mut(&mut kind).into_iter().for_each(|operand| *operand = values[operand.0 as usize]);
        indices_mut(&mut kind).into_iter().for_each(flat);
        values.push(region.push(kind, instr.dtype));
    }
    let mut stores = kernel.stores.clone();
    for store in &mut stores {
        store.value = values[store.value.0 as usize];
        store.index.indirect.iter_mut().for_each(|term| term.value = values[term.value.0 as usize]);
        flat(&mut store.index);
    }
    let axes = [&domain.axes[..rows], &[height * width]].concat();
    let outer = if is_reduced { domain.outer } else { rows };
    Some(Kernel { domain: Domain { axes, outer, ..domain.clone() }, region, stores, ..kernel.clone() })
}

/// The bounds of a load or a condition.
fn bounds(kind: &InstrKind) -> &[Bound] {
    match kind {
        InstrKind::Load { guard, .. } => guard,
        InstrKind::InRange(bounds) => bounds,
        _ => &[],
    }
}

/// The index maps of an instruction that are not those of bounds.
fn own_index(kind: &InstrKind) -> Option<&Index> {
    match kind {
        InstrKind::InRange(_) => None,
        kind => indices(kind).into_iter().next(),
    }
}

/// ⌊p / width⌋ and p mod width at the point p of the last axis: a multiplication, if that gives them at every point.
fn row_and_column(region: &mut Region, last: usize, height: usize, width: usize) -> Option<[Scalar; 2]> {
    let factor = (1u64 << DIGITS).div_ceil(width as u64);
    let is_exact = |point: u64| {
        let product = point * factor;
        product <= u64::from(u32::MAX) && product >> DIGITS == point / width as u64
    };
    if !(0..(height * width) as u64).all(is_exact) {
        return None;
    }
    let mut number = |value: f64| region.push(InstrKind::Constant(Literal::new(value)), DType::U32);
    let [factor, digits, width] = [number(factor as f64), number(f64::from(DIGITS)), number(width as f64)];
    let point = region.push(InstrKind::Coordinate(Index::axis(last + 1, last)), DType::U32);
    let mut binary = |op, x, y| region.push(InstrKind::Binary(op, x, y), DType::U32);
    let product = binary(Binary::Mul, point, factor);
    let row = binary(Binary::Shr, product, digits);
    let before = binary(Binary::Mul, row, width);
    Some([row, binary(Binary::Sub, point, before)])
}
