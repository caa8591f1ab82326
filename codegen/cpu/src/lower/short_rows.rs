//! Reductions of very short rows, written out: a map over the rows, whose lanes are rows.
//!
//! ```text
//! reduce sum over rows [R], columns [2] of x[r, c]   →   map over [R]: x[r, 0] + x[r, 1]
//! ```
//!
//! What comes before and after the columns of one row costs as much for two of them as for a hundred.

use kernfusion_codegen::analysis::{indices_mut, operands_mut, reduces, scatters};
use kernfusion_ir::kernel::{
    Direction, Domain, Form, Index, Instr, InstrKind, Kernel, Region, Scalar, Store,
};
use kernfusion_ir::{Binary, DType, ReduceOp};

/// Columns that are written out at most.
const COLUMNS: usize = 4;

/// The kernel without its columns, if these are few, and reduced as they are.
pub(super) fn written_out(kernel: &Kernel) -> Option<Kernel> {
    let (domain, region) = (&kernel.domain, &kernel.region);
    let columns = domain.column_axes();
    let count = domain.extent(columns.clone());
    let is_plain = |instr: &Instr| match instr.kind {
        InstrKind::Reduce(_, Direction::Columns, x) => {
            let dtypes = [instr.dtype, region.instr(x).dtype];
            dtypes.iter().all(|dtype| matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::U32))
        }
        InstrKind::Reduce(_, Direction::Rows, _) | InstrKind::Producer(_) => false,
        _ => true,
    };
    let suits = kernel.form == Form::Reduce
        && (1..=COLUMNS).contains(&count)
        && domain.extent(0..columns.start) > count
        && reduces(region, Direction::Columns)
        && region.instrs.iter().all(is_plain)
        && !scatters(kernel);
    if !suits {
        return None;
    }
    let mut short = Region::default();
    let mut values = Columns(vec![]);
    for (at, instr) in region.instrs.iter().enumerate() {
        if let InstrKind::Reduce(op, _, x) = instr.kind {
            let combine = match op {
                ReduceOp::Sum => Binary::Add,
                ReduceOp::Max => Binary::Max,
                ReduceOp::Min => Binary::Min,
            };
            let all = (1..count).fold(values.at(x, 0), |all, column| {
                short.push(InstrKind::Binary(combine, all, values.at(x, column)), instr.dtype)
            });
            values.0.push(vec![all]);
            continue;
        }
        let varies = region.varies(Scalar(at as u32), columns.clone(), domain);
        let copies = (0..if varies { count } else { 1 }).map(|column| {
            let kind = at_column(&instr.kind, domain, column, |value| values.at(value, column));
            short.push(kind, instr.dtype)
        });
        let copies = copies.collect();
        values.0.push(copies);
    }
    let mut stores: Vec<Store> = vec![];
    for store in &kernel.stores {
        let is_once = values.0[store.value.0 as usize].len() == 1 && !store.index.varies(columns.clone());
        for column in 0..if is_once { 1 } else { count } {
            let mut index = store.index.clone();
            fix(&mut index, domain, column);
            index.indirect.iter_mut().for_each(|term| term.value = values.at(term.value, column));
            stores.push(Store { value: values.at(store.value, column), index, ..store.clone() });
        }
    }
    Some(Kernel {
        form: Form::Map,
        domain: Domain::flat(domain.axes[..columns.start].to_vec()),
        region: short,
        stores,
        ..kernel.clone()
    })
}

/// What became of each value: one for each column, or one for all.
struct Columns(Vec<Vec<Scalar>>);

impl Columns {
    fn at(&self, value: Scalar, column: usize) -> Scalar {
        let values = &self.0[value.0 as usize];
        values.get(column).copied().unwrap_or(values[0])
    }
}

/// An instruction at one column, with its operands there.
fn at_column(kind: &InstrKind, domain: &Domain, column: usize, of: impl Fn(Scalar) -> Scalar) -> InstrKind {
    let mut kind = kind.clone();
    operands_mut(&mut kind).into_iter().for_each(|operand| *operand = of(*operand));
    indices_mut(&mut kind).into_iter().for_each(|index| fix(index, domain, column));
    kind
}

/// Puts the coordinates of a column into an index.
fn fix(index: &mut Index, domain: &Domain, column: usize) {
    let mut rest = column;
    for axis in domain.column_axes().rev() {
        let extent = domain.axes[axis];
        index.offset += index.strides[axis] * (rest % extent) as i64;
        rest /= extent;
    }
    index.strides.truncate(domain.column_axes().start);
}
