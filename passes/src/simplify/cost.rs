//! What a value costs, in seconds of the nominal machine that fusion's own prices are for: an estimate of what fusion will leave.
//!
//! Elementwise ops fuse, so they cost arithmetic; products, reductions and ops that move elements read and write memory.
//! An elementwise value that a product reads must also be written; the extraction adds that once for each such value.
//! Views cost next to nothing, but not nothing, so that of two equal programs the shorter wins.

use crate::fuse::cost::{computing_element, moving};
use kernfusion_ir::{DType, DotGeneral, KernelEntry, Op, TensorType};

/// Seconds for the existence of a node.
const NODE: f64 = 1e-8;
/// Multiplications and additions a second in products of `f32`.
const PRODUCTS: f64 = 220e9;
/// Seconds for an axis of a product, so that axes of extent 1 are left outside.
const AXIS: f64 = 2e-9;

/// How a value reaches those who read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// It is computed wherever it is read.
    Fused,
    /// It is its operand, read at other coordinates.
    View,
    /// It lies in memory, or costs nothing to make again.
    Settled,
}

/// How the result of an op reaches its readers.
pub(super) fn reach(op: &Op) -> Reach {
    match op.entry() {
        KernelEntry::Scalar => Reach::Fused,
        KernelEntry::View => Reach::View,
        KernelEntry::Input
        | KernelEntry::Generated
        | KernelEntry::Movement
        | KernelEntry::Reduction
        | KernelEntry::Contraction
        | KernelEntry::Scatter
        | KernelEntry::Loop
        | KernelEntry::Collective => Reach::Settled,
    }
}

/// What an op needs of its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// Nothing: it is a view, or has no operands.
    Nothing,
    /// Their elements, in its own order.
    Elements,
    /// That they lie in memory.
    Memory,
}

/// What an op needs of its operands.
pub(super) fn reads(op: &Op) -> Reads {
    match op.entry() {
        KernelEntry::Input | KernelEntry::Generated | KernelEntry::View => Reads::Nothing,
        KernelEntry::Scalar | KernelEntry::Movement | KernelEntry::Reduction => Reads::Elements,
        KernelEntry::Contraction | KernelEntry::Scatter | KernelEntry::Loop | KernelEntry::Collective => {
            Reads::Memory
        }
    }
}

/// Seconds to read or write a value.
pub(super) fn access(ty: &TensorType) -> f64 {
    moving(ty.bytes())
}

/// Seconds for one op.
pub(super) fn cost(op: &Op, operands: &[&TensorType], ty: &TensorType) -> f64 {
    let all = || operands.iter().map(|ty| access(ty)).sum::<f64>();
    NODE + match op.entry() {
        KernelEntry::Input | KernelEntry::Generated => 0.0,
        KernelEntry::View => 0.0,
        KernelEntry::Scalar => computing_element(op) * ty.elements() as f64,
        // Read, guarded and written.
        KernelEntry::Movement => 2.0 * access(ty),
        KernelEntry::Reduction => access(operands[0]) + computing_element(op) * operands[0].elements() as f64,
        KernelEntry::Contraction => {
            let Op::DotGeneral(dot) = op else { unreachable!("the only contraction is dot_general") };
            let axes = operands.iter().map(|ty| ty.rank()).sum::<usize>() + ty.rank();
            // Of two equal products, the one that sums along rows of its left operand.
            let along_rows = dot.lhs_contract.contains(&operands[0].rank().wrapping_sub(1));
            let axes = axes + usize::from(!along_rows);
            AXIS * axes as f64
                + all()
                + access(ty)
                + multiplications(dot, operands[0], ty) / rate(operands[0].dtype)
        }
        KernelEntry::Scatter | KernelEntry::Loop | KernelEntry::Collective => all() + 2.0 * access(ty),
    }
}

fn multiplications(dot: &DotGeneral, left: &TensorType, ty: &TensorType) -> f64 {
    let summed: f64 = dot.lhs_contract.iter().map(|&axis| left.shape[axis] as f64).product();
    2.0 * summed * ty.elements() as f64
}

/// Half-precision products run at twice the rate.
fn rate(dtype: DType) -> f64 {
    if dtype.size() == 2 { 2.0 * PRODUCTS } else { PRODUCTS }
}
