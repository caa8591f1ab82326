//! The time below which a kernel cannot fall on a machine: its bytes over the bandwidth, or its arithmetic over the peaks, whichever is longer.
//!
//! Arithmetic is products over their peak, and the instructions of everything else over half of the peak of exact `f32`, at which each of
//! them takes the place of a multiplication with an addition. Functions count as many instructions as their polynomials have. Products of
//! `f32` come from the same units, so that the times add up; those of `bf16` may come from a unit of their own.
//!
//! Bytes are those that have to move at least; what finds its operands in a cache can be faster than its floor.

use kernfusion_codegen::Peaks;
use kernfusion_ir::kernel::{
    Contraction, Form, Instr, InstrKind, Kernel, KernelGraph, Operand, Region, Scalar,
};
use kernfusion_ir::{Binary, DType, Unary};

/// Rates of a round machine, of the order of a processor of two cores: for pictures that are the same everywhere.
pub const NOMINAL: Peaks = Peaks {
    bandwidth: 20e9,
    reads: 20e9,
    f32_products: 200e9,
    bf16_products: 400e9,
    int8_products: 800e9,
    scalars: 100e9,
};

/// The least time of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floor {
    /// In seconds.
    pub seconds: f64,
    /// What it comes from: `bytes`, `scalars`, `bf16`, `int8` or the name of other products, `iterations` of a loop.
    pub bound: &'static str,
}

/// The floor of one of a graph's kernels. `wide` is what products of `f32` are called.
pub fn floor(graph: &KernelGraph, kernel: &Kernel, peaks: &Peaks, wide: &'static str) -> Floor {
    if let Some(repeated) = kernel.repeated() {
        let body = repeated.graph();
        let floors = body.kernels.iter().map(|kernel| floor(body, kernel, peaks, wide).seconds);
        return Floor { seconds: repeated.iterations as f64 * floors.sum::<f64>(), bound: "iterations" };
    }
    let share = computed_share(kernel);
    let [full, narrow, whole] = multiplications(kernel).map(|operations| operations * share);
    let scalars = scalars(kernel) * share / peaks.scalars;
    let full = full / peaks.f32_products;
    let bounds = [
        (memory_time(graph.bytes_read_and_written(kernel), peaks), "bytes"),
        (narrow / peaks.bf16_products, "bf16"),
        (whole / peaks.int8_products, "int8"),
        (full + scalars, if full > scalars { wide } else { "scalars" }),
    ];
    let (seconds, bound) = bounds.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are bounds");
    Floor { seconds, bound }
}

/// The least time to read and write these bytes: reading alone, and writing as the rest of a copy's time.
fn memory_time([read, written]: [usize; 2], peaks: &Peaks) -> f64 {
    let writing = (2.0 / peaks.bandwidth - 1.0 / peaks.reads).max(0.0);
    read as f64 / peaks.reads + written as f64 * writing
}

/// Operations of a kernel's products and consumers over its whole domain: those of `bf16` second, those of bytes third, all others first.
fn multiplications(kernel: &Kernel) -> [f64; 3] {
    let points = kernel.domain.points() as f64;
    let mut operations = [0.0; 3];
    let mut add = |kind: usize, axes: &[usize]| {
        operations[kind] += 2.0 * points * axes.iter().product::<usize>() as f64;
    };
    let dtype = |operand: &Operand| operand.region.instr(operand.value).dtype;
    let is_narrow = |dtypes: [DType; 2]| usize::from(dtypes == [DType::BF16; 2]);
    for product in kernel.products() {
        let kind = if product.is_of_bytes() { 2 } else { is_narrow([dtype(&product.a), dtype(&product.b)]) };
        add(kind, &product.k);
    }
    for consumer in kernel.consumers() {
        let dtypes = [kernel.region.instr(consumer.value).dtype, dtype(&consumer.with)];
        add(is_narrow(dtypes), &consumer.p);
    }
    operations
}

/// Instructions of all but products, a lane each, wherever their results differ; none of what unpacks whole numbers of an operand.
fn scalars(kernel: &Kernel) -> f64 {
    let axes = &kernel.domain.axes;
    let operands = kernel.operands().map(|(operand, further)| (&operand.region, Some(further)));
    let regions = std::iter::once((&kernel.region, None)).chain(operands);
    let of = |(region, further): (&Region, Option<&[usize]>)| {
        let extents = [&axes[..], further.unwrap_or_default()].concat();
        let points = |value: Scalar| -> usize {
            let varies = |&axis: &usize| region.varies(value, axis..axis + 1, &kernel.domain);
            (0..extents.len()).filter(varies).map(|axis| extents[axis]).product()
        };
        let instr = |(number, instr): (usize, &Instr)| {
            if further.is_some() && unpacks(region, instr) {
                return 0.0;
            }
            let value = match instr.kind {
                InstrKind::Reduce(_, _, operand) => operand,
                _ => Scalar(number as u32),
            };
            instructions(&instr.kind) * points(value) as f64
        };
        region.instrs.iter().enumerate().map(instr).sum::<f64>()
    };
    regions.map(of).sum()
}

/// Whether an instruction unpacks whole numbers: computes them, converts them or scales what was converted. There are so few different numbers
/// that a register has them all, other units than those of products can look them up, and their scale can wait for the sum.
fn unpacks(region: &Region, instr: &Instr) -> bool {
    let is_whole = |dtype: DType| dtype.is_integer() || dtype == DType::I8;
    let is_converted =
        |instr: &Instr| matches!(instr.kind, InstrKind::Cast(x) if is_whole(region.instr(x).dtype));
    match instr.kind {
        InstrKind::Binary(Binary::Mul, a, b) if !is_whole(instr.dtype) => {
            is_converted(region.instr(a)) || is_converted(region.instr(b))
        }
        _ => is_whole(instr.dtype) || is_converted(instr),
    }
}

/// The fewest vector instructions that an instruction becomes, for all lanes of a register. Those of functions are the arithmetic of the
/// CPU's generated code (`kernfusion_runtime::math`); a division counts as one, since a unit of its own may compute it.
fn instructions(kind: &InstrKind) -> f64 {
    match kind {
        InstrKind::Constant(_)
        | InstrKind::Coordinate(_)
        | InstrKind::Load { .. }
        | InstrKind::Producer(_)
        | InstrKind::InRange(_) => 0.0,
        // Ten rounds of eight instructions give two registers.
        InstrKind::Random { .. } => 40.0,
        InstrKind::Unary(Unary::Exp, _) => 14.0,
        InstrKind::Unary(Unary::Sigmoid, _) => 17.0,
        InstrKind::Unary(Unary::Erf, _) => 18.0,
        InstrKind::Unary(Unary::Log | Unary::Sin | Unary::Cos, _) => 20.0,
        InstrKind::Unary(Unary::Tanh, _) => 25.0,
        InstrKind::Binary(Binary::Pow, ..) => 34.0,
        InstrKind::Unary(..)
        | InstrKind::Binary(..)
        | InstrKind::Compare(..)
        | InstrKind::Select(..)
        | InstrKind::Cast(_)
        | InstrKind::Reduce(..) => 1.0,
    }
}

/// The part of its domain that a kernel computes: all of it, unless a band leaves columns out.
fn computed_share(kernel: &Kernel) -> f64 {
    match &kernel.form {
        Form::Contraction(contraction) if contraction.band.is_some() => {
            let form = Form::Contraction(Contraction { band: None, ..contraction.clone() });
            let whole = Kernel { form, ..kernel.clone() };
            kernel.operations() as f64 / (whole.operations() as f64).max(1.0)
        }
        Form::Contraction(_) | Form::Map | Form::Reduce | Form::Loop(_) | Form::Collective(_) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::Graph;
    use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};

    /// What is the same in a whole row counts once a row, and what a reduction reads counts everywhere.
    #[test]
    fn functions_count_as_their_instructions() {
        let graph = r#"graph "rows" {
            %0 = input {name = "x", dtype = f32, shape = [4, 256]} : f32[4,256]
            %1 = reduce %0 {op = max, axes = [1]} : f32[4]
            %2 = log %1 : f32[4]
            %3 = broadcast %2 {shape = [4, 256], axes = [0]} : f32[4,256]
            %4 = sub %0, %3 : f32[4,256]
            %5 = exp %4 : f32[4,256]
            output "y" = %5
        }"#;
        let graph = Graph::parse_verified(graph).expect("a graph");
        let kernels = fuse(&graph, Fusion::Full, any_kernel).expect("fuses");
        assert_eq!(kernels.kernels.len(), 1, "{kernels}");
        let points = 4.0 * 256.0;
        assert_eq!(scalars(&kernels.kernels[0]), points + 4.0 * 20.0 + points + 14.0 * points, "{kernels}");
    }

    #[test]
    fn a_copy_takes_what_a_copy_takes_and_reading_less() {
        let peaks = Peaks { bandwidth: 40e9, reads: 50e9, ..NOMINAL };
        let time = |read, written| memory_time([read, written], &peaks);
        assert!((time(1 << 30, 1 << 30) - 2.0 * f64::from(1 << 30) / 40e9).abs() < 1e-9);
        assert!((time(1 << 30, 0) - f64::from(1 << 30) / 50e9).abs() < 1e-9);
        // A rate of reading that was measured at a bad moment makes no time negative.
        assert_eq!(memory_time([0, 1 << 30], &Peaks { reads: 1e9, ..peaks }), 0.0);
    }
}
