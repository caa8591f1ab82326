//! Strength reduction: what a chain computes for each entry, by fewer and cheaper instructions.
//!
//! A tile has thousands of entries, and a row or column of it has one maximum, one sum and one scale. Whatever belongs to these is moved
//! to them. Nothing here knows of attention; in its forward pass, an entry then takes a maximum, a multiplication with an addition, a power of
//! two, a sum and half a rounding.
//!
//! ```text
//! max(x · c)                    →  max(x) · c                        for c > 0: the same bits, since rounding keeps the order
//! select(p, x · c, −∞)          →  select(p, x, −∞) · c              for c > 0
//! e^(x · c − b)                 →  2^(x · (c · log₂e) − b · log₂e)   b of a row or a column: one operation beside the power (`exponentials`)
//! (x − b) · (e · r)             →  (x · r − b · r) · e               b and r of a row or a column, e of nothing else
//! round(x)                      →  x                                 where all that follows is multiplied again, which rounds it
//! Σ (x · c) · W                 →  c · Σ x · W                       a second product takes the constant in the end
//! ```

use super::body::operands;
use super::invariants::is_invariant;
use super::source::is_narrow;
use kernfusion_codegen::analysis::operands_mut;
use kernfusion_ir::kernel::{Direction, Form, InstrKind, Kernel, Region, Scalar};
use kernfusion_ir::{Binary, DType, Literal, ReduceOp, Unary};
use std::collections::BTreeMap;

/// A kernel with the same results, and by what the sums of each of its second products are to be multiplied.
pub(super) fn reduced(kernel: &Kernel) -> (Kernel, Vec<f64>) {
    let mut reduction = Reduction { kernel, region: Region::default(), of: vec![] };
    let needs_no_rounding = needs_no_rounding(kernel);
    for value in 0..kernel.region.instrs.len() {
        let new = reduction.value(Scalar(value as u32), &needs_no_rounding);
        reduction.of.push(new);
    }
    reduction.finish()
}

/// For each value, whether it is rounded for nothing but second products' sake: all that is made of it are their values.
fn needs_no_rounding(kernel: &Kernel) -> Vec<bool> {
    let region = &kernel.region;
    let count = region.instrs.len();
    // What is only multiplied, added and chosen until it is the value of a second product.
    let mut ends_in_products = vec![true; count];
    let mut is_used = vec![false; count];
    for consumer in kernel.consumers() {
        is_used[consumer.value.0 as usize] = true;
    }
    let stored = kernel.stores.iter().flat_map(operands);
    stored.for_each(|value| ends_in_products[value.0 as usize] = false);
    let is_passed_on = |kind: &InstrKind| {
        matches!(
            kind,
            InstrKind::Cast(_)
                | InstrKind::Binary(Binary::Add | Binary::Sub | Binary::Mul, ..)
                | InstrKind::Unary(Unary::Neg, _)
                | InstrKind::Select(..)
        )
    };
    let mut result = vec![false; count];
    for (number, instr) in region.instrs.iter().enumerate().rev() {
        let ends = is_passed_on(&instr.kind)
            && instr.dtype.is_float()
            && is_used[number]
            && ends_in_products[number];
        result[number] = ends && is_narrow(instr.dtype);
        for operand in instr.kind.operands() {
            is_used[operand.0 as usize] = true;
            ends_in_products[operand.0 as usize] &= ends;
        }
    }
    result
}

/// What is a power of e, less a number of its row or column: e^(x · factor − b).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Exponential {
    pub(super) x: Scalar,
    /// A power of two.
    pub(super) factor: f64,
    pub(super) b: Scalar,
}

/// The values of a kernel that are such powers.
pub(super) fn exponentials(kernel: &Kernel) -> BTreeMap<Scalar, Exponential> {
    let Kernel { region, domain, .. } = kernel;
    let exponential = |kind: &InstrKind| {
        let InstrKind::Unary(Unary::Exp, difference) = kind else { return None };
        let InstrKind::Binary(Binary::Sub, x, b) = region.instr(*difference).kind else { return None };
        if region.instr(x).dtype != DType::F32
            || !is_invariant(region, b, domain)
            || is_invariant(region, x, domain)
        {
            return None;
        }
        let is_power_of_two = |(_, factor): &(Scalar, f64)| *factor > 0.0 && factor.log2().fract() == 0.0;
        let (x, factor) = multiple(region, x).filter(is_power_of_two).unwrap_or((x, 1.0));
        Some(Exponential { x, factor, b })
    };
    let numbers = (0..).map(Scalar);
    let all = numbers.zip(&region.instrs);
    all.filter_map(|(value, instr)| Some((value, exponential(&instr.kind)?))).collect()
}

fn constant(region: &Region, value: Scalar) -> Option<f64> {
    match &region.instr(value).kind {
        InstrKind::Constant(number) => Some(number.value()),
        _ => None,
    }
}

/// What a value is a multiple of, by a constant.
fn multiple(region: &Region, value: Scalar) -> Option<(Scalar, f64)> {
    match region.instr(value).kind {
        InstrKind::Binary(Binary::Mul, x, y) => match (constant(region, x), constant(region, y)) {
            (None, Some(factor)) => Some((x, factor)),
            (Some(factor), None) => Some((y, factor)),
            _ => None,
        },
        _ => None,
    }
}

struct Reduction<'a> {
    kernel: &'a Kernel,
    region: Region,
    /// What is there for each value of the old region so far.
    of: Vec<Scalar>,
}

impl Reduction<'_> {
    fn value(&mut self, old: Scalar, needs_no_rounding: &[bool]) -> Scalar {
        let instr = self.kernel.region.instr(old);
        let mut kind = instr.kind.clone();
        operands_mut(&mut kind).into_iter().for_each(|operand| *operand = self.of[operand.0 as usize]);
        if needs_no_rounding[old.0 as usize] {
            for operand in operands_mut(&mut kind) {
                *operand = self.widened(*operand);
            }
            return match kind {
                InstrKind::Cast(x) if self.region.instr(x).dtype == DType::F32 => x,
                kind => self.float(kind),
            };
        }
        match kind {
            InstrKind::Cast(x) if instr.dtype == DType::F32 && self.region.instr(x).dtype == DType::F32 => x,
            kind if instr.dtype != DType::F32 => self.region.push(kind, instr.dtype),
            InstrKind::Reduce(ReduceOp::Max, Direction::Columns, x) => match self.scaled(x) {
                Some((x, scale)) => {
                    let largest = self.float(InstrKind::Reduce(ReduceOp::Max, Direction::Columns, x));
                    self.times(largest, scale)
                }
                None => self.float(kind),
            },
            InstrKind::Select(condition, x, y) => match (self.scaled(x), self.constant(y)) {
                (Some((x, scale)), Some(infinity)) if infinity == f64::NEG_INFINITY => {
                    let chosen = self.float(InstrKind::Select(condition, x, y));
                    self.times(chosen, scale)
                }
                _ => self.float(kind),
            },
            InstrKind::Binary(Binary::Mul, x, y) => {
                let InstrKind::Binary(_, old_x, old_y) = instr.kind else { unreachable!("the same kind") };
                let shared = self.shared_factor(x, y, old_y).or_else(|| self.shared_factor(y, x, old_x));
                shared.unwrap_or_else(|| self.float(kind))
            }
            kind => self.float(kind),
        }
    }

    fn float(&mut self, kind: InstrKind) -> Scalar {
        self.region.push(kind, DType::F32)
    }

    fn number(&mut self, number: f64) -> Scalar {
        self.float(InstrKind::Constant(Literal::new(number)))
    }

    fn times(&mut self, x: Scalar, factor: f64) -> Scalar {
        let factor = self.number(factor);
        self.float(InstrKind::Binary(Binary::Mul, x, factor))
    }

    /// A value of 16 bits as `f32`, which has all of its numbers; others as they are.
    fn widened(&mut self, x: Scalar) -> Scalar {
        match &self.region.instr(x).kind {
            _ if !is_narrow(self.region.instr(x).dtype) => x,
            InstrKind::Constant(number) => self.number(self.region.instr(x).dtype.round(number.value())),
            _ => self.float(InstrKind::Cast(x)),
        }
    }

    fn constant(&self, value: Scalar) -> Option<f64> {
        constant(&self.region, value)
    }

    fn multiple(&self, value: Scalar) -> Option<(Scalar, f64)> {
        multiple(&self.region, value)
    }

    /// As `multiple`, by a constant that keeps the order and −∞.
    fn scaled(&self, value: Scalar) -> Option<(Scalar, f64)> {
        self.multiple(value).filter(|(_, factor)| *factor > 0.0 && factor.is_finite())
    }

    fn is_invariant(&self, value: Scalar) -> bool {
        is_invariant(&self.region, value, &self.kernel.domain)
    }

    /// (x − b) · (e · r), where nothing else takes e · r, which was `old_product`.
    fn shared_factor(&mut self, difference: Scalar, product: Scalar, old_product: Scalar) -> Option<Scalar> {
        let InstrKind::Binary(Binary::Sub, x, b) = self.region.instr(difference).kind else { return None };
        let InstrKind::Binary(Binary::Mul, e, r) = self.region.instr(product).kind else { return None };
        let is_sum_of_products = self.is_invariant(b) && self.is_invariant(r) && !self.is_invariant(e);
        if !is_sum_of_products || self.uses(self.before_casts(old_product)) > 1 {
            return None;
        }
        let mut product = |x, y| self.float(InstrKind::Binary(Binary::Mul, x, y));
        let (x, b) = (product(x, r), product(b, r));
        let difference = self.float(InstrKind::Binary(Binary::Sub, x, b));
        Some(self.float(InstrKind::Binary(Binary::Mul, difference, e)))
    }

    fn before_casts(&self, value: Scalar) -> Scalar {
        match self.kernel.region.instr(value).kind {
            InstrKind::Cast(x) => self.before_casts(x),
            _ => value,
        }
    }

    /// How much is made of a value of the old region, through casts.
    fn uses(&self, value: Scalar) -> usize {
        let region = &self.kernel.region;
        let consumers = self.kernel.consumers().iter().filter(|consumer| consumer.value == value).count();
        let stores = self.kernel.stores.iter().filter(|store| store.value == value).count();
        let users =
            region.instrs.iter().enumerate().filter(|(_, instr)| instr.kind.operands().contains(&value));
        let users: usize = users
            .map(|(number, instr)| match instr.kind {
                InstrKind::Cast(_) => self.uses(Scalar(number as u32)),
                _ => 1,
            })
            .sum();
        consumers + stores + users
    }

    fn finish(mut self) -> (Kernel, Vec<f64>) {
        let mut kernel = self.kernel.clone();
        let mut factors = vec![];
        if let Form::Contraction(contraction) = &mut kernel.form {
            contraction.inside.iter_mut().for_each(|value| *value = self.of[value.0 as usize]);
            for consumer in &mut contraction.consumers {
                let dtype = self.kernel.region.instr(consumer.value).dtype;
                let value = self.of[consumer.value.0 as usize];
                let plain = match self.region.instr(value).kind {
                    InstrKind::Cast(x) if self.region.instr(x).dtype == DType::F32 => x,
                    _ => value,
                };
                let is_float = self.region.instr(plain).dtype == DType::F32;
                let is_scale = |factor: f64| is_float && factor != 0.0 && factor.is_finite();
                let multiple = self.multiple(plain).filter(|(_, factor)| is_scale(*factor));
                let (plain, factor) = multiple.unwrap_or((plain, 1.0));
                let is_typed = self.region.instr(plain).dtype == dtype;
                consumer.value =
                    if is_typed { plain } else { self.region.push(InstrKind::Cast(plain), dtype) };
                factors.push(factor);
            }
        }
        for store in &mut kernel.stores {
            store.value = self.of[store.value.0 as usize];
            store.index.indirect.iter_mut().for_each(|term| term.value = self.of[term.value.0 as usize]);
        }
        kernel.region = self.region;
        (kernel, factors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::evaluate::{Array, Precision};
    use kernfusion_ir::kernel::{
        Buffer, BufferId, BufferRole, Consumer, Contraction, Domain, Index, KernelGraph, Operand, Product,
        Store, StoreMode, interpret,
    };
    use kernfusion_ir::{Compare, TensorType};

    /// Rows, columns, terms of the first products, columns of the second one.
    const SIZES: [usize; 4] = [3, 5, 2, 4];
    const INPUTS: usize = 6;

    fn index(strides: [i64; 3]) -> Index {
        Index { strides: strides.to_vec(), ..Index::default() }
    }

    /// A kernel of two products, whose second product multiplies what `value` makes of both entries, of a number of the row and of another
    /// one; and the row's maximum, if it has one.
    fn kernel(value: impl FnOnce(&mut Region, [Scalar; 4]) -> Scalar) -> Kernel {
        let [rows, columns, terms, wide] = SIZES;
        let [terms_i, wide_i] = [terms, wide].map(|extent| extent as i64);
        let operand = |buffer, strides| {
            let mut region = Region::default();
            let load = InstrKind::Load { buffer: BufferId(buffer), index: index(strides), guard: vec![] };
            let value = region.push(load, DType::F32);
            Operand { region, value }
        };
        let (of_rows, of_columns) = ([terms_i, 0, 1], [0, terms_i, 1]);
        let product = |a, b| {
            let (a, b) = (operand(a, of_rows), operand(b, of_columns));
            Product { k: vec![terms], a, b, dtype: DType::F32 }
        };
        let mut region = Region::default();
        let [x, y] = [0, 1].map(|number| region.push(InstrKind::Producer(number), DType::F32));
        let [b, r] = [3, 4].map(|buffer| {
            let index = Index { strides: vec![1, 0], ..Index::default() };
            region.push(InstrKind::Load { buffer: BufferId(buffer), index, guard: vec![] }, DType::F32)
        });
        let value = value(&mut region, [x, y, b, r]);
        let consumer = Consumer {
            value,
            along: Direction::Columns,
            p: vec![wide],
            with: operand(5, [0, wide_i, 1]),
            dtype: DType::F32,
            buffer: BufferId(6),
            index: index([wide_i, 0, 1]),
        };
        let products = vec![product(0, 1), product(1, 2)];
        let form =
            Form::Contraction(Contraction { products, consumers: vec![consumer], ..Contraction::default() });
        let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
        let largest = region.instrs.iter().position(|instr| matches!(instr.kind, InstrKind::Reduce(..)));
        let index = Index { strides: vec![1, 0], ..Index::default() };
        let store = |at: usize| Store {
            value: Scalar(at as u32),
            buffer: BufferId(7),
            index: index.clone(),
            mode: StoreMode::Set,
        };
        let stores = largest.map(store).into_iter().collect();
        Kernel { name: "chain".into(), form, domain, region, stores, covers: vec![] }
    }

    /// The second product and the row's maximum, 0 where it has none.
    fn run(kernel: &Kernel) -> Vec<f64> {
        let [rows, columns, _, wide] = SIZES;
        let has_maximum = !kernel.stores.is_empty();
        let extents = [15, 15, 15, rows, rows, columns * wide, rows * wide, rows];
        let buffers = extents.iter().enumerate().map(|(at, extent)| Buffer {
            name: format!("b{at}"),
            ty: TensorType::new(DType::F32, [*extent]),
            role: if at < INPUTS { BufferRole::Input } else { BufferRole::Temporary },
            continues: None,
        });
        let output =
            |at: usize| (format!("b{at}"), BufferId(at as u32), TensorType::new(DType::F32, [extents[at]]));
        let outputs = if has_maximum { vec![output(6), output(7)] } else { vec![output(6)] };
        let kernels = vec![kernel.clone()];
        let graph = KernelGraph { buffers: buffers.collect(), kernels, outputs, ..KernelGraph::default() };
        let numbers =
            |at: usize, count: usize| (0..count).map(|i| ((i * 7 + at) % 11) as f64 / 4.0 - 1.2).collect();
        let inputs = (0..INPUTS).map(|at| {
            let ty = TensorType::new(DType::F32, [extents[at]]);
            (format!("b{at}"), Array { values: numbers(at, extents[at]), ty })
        });
        interpret(&graph, &inputs.collect(), Precision::Double)
            .expect("all inputs")
            .into_values()
            .flat_map(|a| a.values)
            .collect()
    }

    /// Checks that the kernel still computes the same; returns the new one and how many instructions its value takes.
    fn check(kernel: &Kernel) -> (Kernel, usize) {
        let (reduced, factors) = reduced(kernel);
        let (expected, got) = (run(kernel), run(&reduced));
        let products = SIZES[0] * SIZES[3];
        for (at, (x, y)) in got.iter().zip(&expected).enumerate() {
            let x = if at < products { x * factors[0] } else { *x };
            assert!((x - y).abs() <= 1e-9 * y.abs().max(1.0), "{at}: {x}, not {y}");
        }
        let needed = reduced.region.needed([reduced.consumers()[0].value], |_| false);
        let is_operation = |value: &&Scalar| {
            !matches!(
                reduced.region.instr(**value).kind,
                InstrKind::Constant(_) | InstrKind::Load { .. } | InstrKind::Producer(_)
            )
        };
        let count = needed.iter().filter(is_operation).count();
        (reduced, count)
    }

    fn float(region: &mut Region, kind: InstrKind) -> Scalar {
        region.push(kind, DType::F32)
    }

    fn number(region: &mut Region, number: f64) -> Scalar {
        float(region, InstrKind::Constant(Literal::new(number)))
    }

    fn binary(region: &mut Region, op: Binary, x: Scalar, y: Scalar) -> Scalar {
        float(region, InstrKind::Binary(op, x, y))
    }

    /// e^(scale · x − max(scale · x)), where some entries are left out.
    fn softmax(region: &mut Region, [x, y, ..]: [Scalar; 4], scale: f64) -> Scalar {
        let scale = number(region, scale);
        let scaled = binary(region, Binary::Mul, x, scale);
        let is_there = region.push(InstrKind::Compare(Compare::Lt, x, y), DType::Bool);
        let nothing = number(region, f64::NEG_INFINITY);
        let chosen = float(region, InstrKind::Select(is_there, scaled, nothing));
        let largest = float(region, InstrKind::Reduce(ReduceOp::Max, Direction::Columns, chosen));
        let difference = binary(region, Binary::Sub, chosen, largest);
        float(region, InstrKind::Unary(Unary::Exp, difference))
    }

    #[test]
    fn a_positive_scale_is_the_maximum_s() {
        let reduced_value = |scale| {
            let (reduced, _) = check(&kernel(|region, values| softmax(region, values, scale)));
            let of_reduction = |kind: &InstrKind| match kind {
                InstrKind::Reduce(_, _, x) => Some(reduced.region.instr(*x).kind.clone()),
                _ => None,
            };
            reduced.region.instrs.iter().find_map(|instr| of_reduction(&instr.kind)).expect("a maximum")
        };
        let is_of_entries = |kind: InstrKind| matches!(kind, InstrKind::Select(_, Scalar(0), _));
        assert!(is_of_entries(reduced_value(0.125)));
        // The largest of what falls is not the smallest.
        assert!(!is_of_entries(reduced_value(-0.125)));
    }

    /// As the gradient of a score: (y − b) · (e^(x/8 − b) · r) / 8.
    fn gradient(region: &mut Region, [x, y, b, r]: [Scalar; 4], is_rounded: bool) -> Scalar {
        let scale = number(region, 0.125);
        let scaled = binary(region, Binary::Mul, x, scale);
        let difference = binary(region, Binary::Sub, scaled, b);
        let power = float(region, InstrKind::Unary(Unary::Exp, difference));
        let mut weight = binary(region, Binary::Mul, power, r);
        if is_rounded {
            let rounded = region.push(InstrKind::Cast(weight), DType::BF16);
            weight = float(region, InstrKind::Cast(rounded));
        }
        let from = binary(region, Binary::Sub, y, b);
        let product = binary(region, Binary::Mul, from, weight);
        binary(region, Binary::Mul, product, scale)
    }

    #[test]
    fn an_entry_of_a_gradient_takes_few_operations() {
        // Of the entry: x · c − b and its power, y · r − b', the product of both; of the row: b' = b · r.
        let (plain, count) = check(&kernel(|region, values| gradient(region, values, false)));
        assert_eq!(count, 3 + 2 + 1 + 1);
        let [Exponential { x: Scalar(0), factor: 0.125, .. }] =
            exponentials(&plain).into_values().collect::<Vec<_>>()[..]
        else {
            panic!("not one power: {:?}", exponentials(&plain));
        };
        let (reduced, rounded) = check(&kernel(|region, values| gradient(region, values, true)));
        assert_eq!(rounded, count);
        assert!(!reduced.region.instrs.iter().any(|instr| is_narrow(instr.dtype)));
    }

    #[test]
    fn what_others_take_stays_as_it_is() {
        // A weight that is summed, too, is rounded for the sum, and has its own factor.
        let kernel = kernel(|region, values| {
            let gradient = gradient(region, values, true);
            let weight =
                region.instrs.iter().position(|instr| instr.dtype == DType::BF16).expect("a rounding");
            let weight = float(region, InstrKind::Cast(Scalar(weight as u32)));
            let sum = float(region, InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, weight));
            binary(region, Binary::Add, gradient, sum)
        });
        let (reduced, _) = check(&kernel);
        assert_eq!(reduced.region.instrs.iter().filter(|instr| is_narrow(instr.dtype)).count(), 1);
    }
}
