//! Products that a library of matrix products can do as well: kernels that are nothing but one product of matrices as they lie in
//! memory, or of stacks of them.
//!
//! ```text
//! store Σ_k a[b, r, k]·b[b, c, k] → d[b, r, c]     D = op(A)·op(B), column by column, `count` times
//! ```
//!
//! Libraries keep matrices column by column, so a result that lies row by row is computed as its transpose, with operands that
//! change places.

use super::source::Slot;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    Contraction, Domain, Form, Index, InstrKind, Kernel, Operand, Product, StoreMode,
};
use std::ops::Range;

/// Alignment of buffers in bytes, as plans have it.
const ALIGNMENT: usize = 64;

/// D = op(A)·op(B) for each matrix of three stacks, with sums in `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixProduct {
    /// Of A and B.
    pub operands: DType,
    /// Of D.
    pub result: DType,
    /// Whether operands are rounded to TF32.
    pub tf32: bool,
    /// Rows and columns of D, and what is summed over.
    pub extents: [usize; 3],
    /// Matrices in each stack.
    pub count: usize,
    /// A, B, D.
    pub matrices: [Matrix; 3],
}

/// A stack of matrices in memory: element (row, column) of matrix `i` is `apart`·i + `leading`·column + row elements from its
/// start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Whether op is the transposition: what lies in memory has columns for rows.
    pub is_transposed: bool,
    /// Rows in memory.
    pub rows: usize,
    /// Columns in memory.
    pub columns: usize,
    /// From a column to the next.
    pub leading: usize,
    /// From a matrix to the next; operands may be one and the same for all.
    pub apart: usize,
    /// Bytes that divide the address of the first element.
    pub alignment: usize,
}

/// Where a stack begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) slot: usize,
    /// In bytes.
    pub(super) offset: usize,
}

/// A way of a library to compute a product, which that version of it alone understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Algorithm {
    /// The library's own description.
    pub words: [u64; 8],
    /// Bytes of memory that it takes beside the matrices.
    pub workspace: usize,
}

/// How often and how far one walks along a matrix.
#[derive(Debug, Clone, Copy)]
struct Axis {
    extent: usize,
    stride: i64,
}

/// The slot of an operand or of the result, and the index map into it.
type Place<'k> = (usize, &'k Index);

/// A kernel, whose axes are merged, as a product of matrices and where A, B and D begin; `None` if it is anything more, or if
/// its operands do not lie in memory as matrices.
pub(super) fn matrix_product(
    kernel: &Kernel,
    slots: &[Slot],
    tf32: bool,
) -> Option<(MatrixProduct, [Start; 3])> {
    let product = only_product(kernel)?;
    let places = [load(&product.a)?, load(&product.b)?, stored(kernel)?];
    let [operands, result] = types(places, slots)?;
    let domain = &kernel.domain;
    let axes = Axes { domain, extents: [&domain.axes[..], &product.k].concat() };
    let (layouts, places, extents) = axes.arranged(places)?;
    let located =
        |at: usize| located(layouts[at], places[at], axes.axis(domain.outer_axes(), places[at])?, slots);
    let [a, b, d] = [located(0)?, located(1)?, located(2)?];
    let count = domain.extent(domain.outer_axes());
    let tf32 = tf32 && operands == DType::F32;
    let product = MatrixProduct { operands, result, tf32, extents, count, matrices: [a.0, b.0, d.0] };
    let is_empty = count == 0 || extents.contains(&0);
    (!is_empty).then_some((product, [a.1, b.1, d.1]))
}

/// The axes of a product: those of its domain, then those that are summed over.
struct Axes<'k> {
    domain: &'k Domain,
    extents: Vec<usize>,
}

impl Axes<'_> {
    /// How an index map walks along a group of axes, if that is one.
    fn axis(&self, group: Range<usize>, (_, index): Place<'_>) -> Option<Axis> {
        match group.len() {
            0 => Some(Axis { extent: 1, stride: 0 }),
            1 => Some(Axis { extent: self.extents[group.start], stride: index.strides[group.start] }),
            _ => None,
        }
    }

    /// Operands and result as a library has them: layouts, which places they are of, and rows, columns and terms.
    fn arranged<'k>(&self, [a, b, d]: [Place<'k>; 3]) -> Option<([Matrix; 3], [Place<'k>; 3], [usize; 3])> {
        let depth = self.domain.axes.len()..self.extents.len();
        let (rows, columns) = (self.domain.row_axes(), self.domain.column_axes());
        let (down, along) = (self.axis(rows.clone(), d)?, self.axis(columns.clone(), d)?);
        let (a, b) = ((a, self.axis(rows, a)?), (b, self.axis(columns, b)?));
        // A result row by row is its transpose column by column.
        let is_turned = leading(along, down).is_some();
        let (first, second) = if is_turned { (b, a) } else { (a, b) };
        let (down, along) = if is_turned { (along, down) } else { (down, along) };
        let whole = Matrix { leading: leading(down, along)?, ..Matrix::of(down.extent, along.extent, false) };
        let terms = [self.axis(depth.clone(), first.0)?, self.axis(depth, second.0)?];
        let layouts = [oriented(first.1, terms[0])?, oriented(terms[1], second.1)?, whole];
        Some((layouts, [first.0, second.0, d], [down.extent, along.extent, terms[0].extent]))
    }
}

/// The product of a kernel that has one and nothing after it.
fn only_product(kernel: &Kernel) -> Option<&Product> {
    match &kernel.form {
        Form::Contraction(Contraction { products, consumers, .. }) if consumers.is_empty() => {
            let [product] = &products[..] else { return None };
            Some(product)
        }
        _ => None,
    }
}

/// The types of both operands and of the result, if libraries have them, and if no operand is overwritten.
fn types([a, b, d]: [Place<'_>; 3], slots: &[Slot]) -> Option<[DType; 2]> {
    let [operands, others, result] = [a, b, d].map(|(slot, _)| slots[slot].dtype);
    let is_known = match operands {
        DType::F32 => result == DType::F32,
        DType::BF16 | DType::F16 => result == operands || result == DType::F32,
        DType::F64 | DType::I32 | DType::U32 | DType::I8 | DType::Bool => false,
    };
    let is_overwritten = [a, b].iter().any(|(slot, _)| slots[*slot].is_clobbered);
    (is_known && operands == others && !is_overwritten).then_some([operands, result])
}

/// A stack of matrices of this layout, and where it begins.
fn located(layout: Matrix, (slot, index): Place<'_>, stack: Axis, slots: &[Slot]) -> Option<(Matrix, Start)> {
    let offset = usize::try_from(index.offset).ok()? * slots[slot].dtype.size();
    // The slices of a loop begin at multiples of their size.
    let together = offset | slots[slot].bytes | ALIGNMENT;
    let apart = usize::try_from(stack.stride).ok()?;
    Some((Matrix { apart, alignment: 1 << together.trailing_zeros(), ..layout }, Start { slot, offset }))
}

impl Matrix {
    fn of(rows: usize, columns: usize, is_transposed: bool) -> Self {
        Matrix { is_transposed, rows, columns, leading: rows, apart: 0, alignment: 1 }
    }
}

/// The slot and the index map of an operand that is nothing but a load.
fn load(operand: &Operand) -> Option<Place<'_>> {
    match &operand.region.instr(operand.value).kind {
        InstrKind::Load { buffer, index, guard } if guard.is_empty() && index.indirect.is_empty() => {
            Some((buffer.0 as usize, index))
        }
        _ => None,
    }
}

/// The slot and the index map of the only store of a kernel that stores sums as they are, or rounded to the buffer's type.
fn stored(kernel: &Kernel) -> Option<Place<'_>> {
    let [store] = &kernel.stores[..] else { return None };
    let mut value = store.value;
    let mut types = vec![];
    loop {
        let instr = kernel.region.instr(value);
        types.push(instr.dtype);
        match instr.kind {
            InstrKind::Cast(from) => value = from,
            InstrKind::Producer(0) => break,
            _ => return None,
        }
    }
    // What is rounded twice is not what a library gives.
    types.dedup();
    let is_plain = match types[..] {
        [_] => true,
        [_, sum] => sum == DType::F32,
        _ => false,
    };
    let is_set = store.mode == StoreMode::Set && store.index.indirect.is_empty();
    (is_plain && is_set).then_some((store.buffer.0 as usize, &store.index))
}

/// From a column to the next, if rows are neighbours in memory and columns do not overlap.
fn leading(rows: Axis, columns: Axis) -> Option<usize> {
    let is_along = rows.extent == 1 || rows.stride == 1;
    let leading = if columns.extent == 1 { rows.extent as i64 } else { columns.stride };
    (is_along && leading >= rows.extent as i64).then_some(leading as usize)
}

/// How rows × columns lie in memory.
fn oriented(rows: Axis, columns: Axis) -> Option<Matrix> {
    if let Some(leading) = leading(rows, columns) {
        return Some(Matrix { leading, ..Matrix::of(rows.extent, columns.extent, false) });
    }
    let leading = leading(columns, rows)?;
    Some(Matrix { leading, ..Matrix::of(columns.extent, rows.extent, true) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::kernel::{BufferId, Region, Store};

    /// `d[o, m, n] = Σ a[o, m, k]·b[o, n, k]` with these distances between outer points, rows or columns, and terms.
    fn kernel(extents: [usize; 4], [a, b, d]: [[i64; 3]; 3], offset: i64) -> Kernel {
        let operand = |slot: u32, strides: Vec<i64>| {
            let mut region = Region::default();
            let index = Index { offset, strides, indirect: vec![] };
            let load = InstrKind::Load { buffer: BufferId(slot), index, guard: vec![] };
            let value = region.push(load, DType::F32);
            Operand { region, value }
        };
        let [outer, m, n, k] = extents;
        let product = Product {
            k: vec![k],
            a: operand(0, vec![a[0], a[1], 0, a[2]]),
            b: operand(1, vec![b[0], 0, b[1], b[2]]),
            dtype: DType::F32,
        };
        let mut region = Region::default();
        let value = region.push(InstrKind::Producer(0), DType::F32);
        let index = Index { offset, strides: d.to_vec(), indirect: vec![] };
        let stores = vec![Store { value, buffer: BufferId(2), index, mode: StoreMode::Set }];
        let domain = Domain { axes: vec![outer, m, n], outer: 1, rows: 1 };
        let form = Form::Contraction(vec![product].into());
        kernfusion_codegen::axes::merged(&Kernel {
            name: "k".into(),
            form,
            domain,
            region,
            stores,
            covers: vec![],
        })
    }

    fn slots() -> Vec<Slot> {
        let slot = |name: &str| Slot::new(name.into(), DType::F32, 4096, false);
        ["a", "b", "d"].map(slot).to_vec()
    }

    /// Elements of D by their place in memory: pairs of places in A's and B's memory.
    type Terms = std::collections::BTreeMap<usize, Vec<[usize; 2]>>;

    /// Which elements are multiplied for which, as a library understands the description.
    fn described(product: &MatrixProduct, starts: &[Start; 3]) -> Terms {
        let mut terms = Terms::new();
        // Operands in the kernel's order, which may not be the library's.
        let at = |which: usize, matrix: usize, row: usize, column: usize| {
            let stack = &product.matrices[which];
            let (row, column) = if stack.is_transposed { (column, row) } else { (row, column) };
            assert!(row < stack.rows && column < stack.columns && stack.leading >= stack.rows);
            starts[which].offset / 4 + matrix * stack.apart + column * stack.leading + row
        };
        let [rows, columns, depth] = product.extents;
        for (matrix, row, column) in points([product.count, rows, columns]) {
            let pairs = (0..depth).map(|k| {
                let pair =
                    [(starts[0].slot, at(0, matrix, row, k)), (starts[1].slot, at(1, matrix, k, column))];
                if pair[0].0 == 0 { pair.map(|(_, place)| place) } else { [pair[1].1, pair[0].1] }
            });
            assert!(terms.insert(at(2, matrix, row, column), pairs.collect()).is_none(), "results overlap");
        }
        terms
    }

    fn points([outer, rows, columns]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..outer * rows * columns).map(move |at| (at / (rows * columns), at / columns % rows, at % columns))
    }

    fn wanted([outer, m, n, k]: [usize; 4], [a, b, d]: [[i64; 3]; 3], offset: i64) -> Terms {
        let place = |strides: [i64; 3], point: [usize; 3]| {
            let terms = strides.iter().zip(point).map(|(stride, at)| stride * at as i64);
            (offset + terms.sum::<i64>()) as usize
        };
        let entry = |(o, r, c)| {
            let pairs = (0..k).map(|k| [place(a, [o, r, k]), place(b, [o, c, k])]);
            (place(d, [o, r, c]), pairs.collect())
        };
        points([outer, m, n]).map(entry).collect()
    }

    #[test]
    fn descriptions_multiply_what_kernels_do() {
        let layout = |rows: usize, columns: usize, is_transposed: bool| {
            let (rows, columns) = (rows as i64, columns as i64);
            if is_transposed { [rows * columns, 1, rows] } else { [rows * columns, columns, 1] }
        };
        let mut cases = vec![];
        for extents in [[1, 5, 3, 4], [3, 2, 4, 5], [2, 1, 5, 3], [2, 5, 1, 3], [2, 4, 3, 1], [1, 1, 1, 1]] {
            let [_, m, n, k] = extents;
            for flags in 0..8 {
                let is = |bit: u32| flags >> bit & 1 == 1;
                cases.push((extents, [layout(m, k, is(0)), layout(n, k, is(1)), layout(m, n, is(2))], 0));
            }
        }
        // Heads beside each other; an operand for all; wider matrices than are read.
        cases.push(([3, 10, 6, 8], [[8, 24, 1], [8, 24, 1], [6, 18, 1]], 0));
        cases.push(([3, 10, 6, 8], [[0, 8, 1], [48, 8, 1], [60, 6, 1]], 0));
        cases.push(([3, 10, 6, 8], [[200, 11, 1], [90, 1, 9], [99, 1, 16]], 5));
        for (extents, layouts, offset) in cases {
            let kernel = kernel(extents, layouts, offset);
            let found = matrix_product(&kernel, &slots(), false);
            let (product, starts) = found.unwrap_or_else(|| panic!("{extents:?} {layouts:?}"));
            assert_eq!(
                described(&product, &starts),
                wanted(extents, layouts, offset),
                "{extents:?} {layouts:?}"
            );
            // Of an offset of five elements, bytes divide by four.
            let alignment = if offset == 0 { 64 } else { 4 };
            assert!(product.matrices.iter().all(|matrix| matrix.alignment == alignment));
        }
    }

    #[test]
    fn what_is_no_matrix_is_no_product_of_matrices() {
        let plain = [[42, 7, 1], [35, 7, 1], [30, 5, 1]];
        let found =
            |extents, layouts, slots: &[Slot]| matrix_product(&kernel(extents, layouts, 0), slots, false);
        let extents = [2, 6, 5, 7];
        assert!(found(extents, plain, &slots()).is_some());
        // No neighbours in memory, columns that overlap, an element for all, backwards.
        for a in [[120, 20, 2], [42, 3, 1], [42, 7, 0], [42, -7, 1]] {
            assert_eq!(found(extents, [a, plain[1], plain[2]], &slots()), None, "{a:?}");
        }
        assert_eq!(found([2, 6, 5, 0], plain, &slots()), None);
        let change = |at: usize, change: fn(&mut Slot)| {
            let mut slots = slots();
            change(&mut slots[at]);
            slots
        };
        for slots in [
            change(0, |slot| slot.dtype = DType::BF16),
            change(2, |slot| slot.dtype = DType::BF16),
            change(1, |slot| slot.is_clobbered = true),
        ] {
            assert_eq!(found(extents, plain, &slots), None, "{slots:?}");
        }
    }
}
