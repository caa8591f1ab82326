//! Strength reduction: what a chain computes for each entry, by fewer and cheaper instructions.
//!
//! A tile has thousands of entries, and a row or column of it has one maximum, one sum and one scale. Whatever belongs to these is moved
//! to them. Nothing here knows of attention; in its forward pass, an entry then takes a maximum, a multiplication with an addition, a power of
//! two, a sum and half a rounding.
//!
//! ```text
//! max(x · c)                    →  max(x) · c                        for c > 0: the same bits, since rounding keeps the order
//! select(p, x · c, −∞)          →  select(p, x, −∞) · c              for c > 0
//! e^(x · c − b)                 →  2^(x · (c · log₂e) − b · log₂e)   b of a row or a column: one operation beside the power
//! (x − b) · (e · r)             →  (x · r − b · r) · e               b and r of a row or a column, e of nothing else
//! R = round(x) and its like     →  x                                 where only values that are multiplied again take them
//! Σ (x · c) · W                 →  c · Σ x · W                       a second product takes the constant in the end
//! ```
//!
//! The last two leave out roundings to 16 bits between operations; what is multiplied is rounded, as tensor cores need it.

use kernfusion_codegen::analysis::operands_mut;
use kernfusion_ir::kernel::{Direction, Form, InstrKind, Kernel, Region, Scalar};
use kernfusion_ir::{Binary, DType, Literal, ReduceOp, Unary};

use super::source::is_narrow;

const LOG2_OF_E: f64 = std::f64::consts::LOG2_E;

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
    let stored = kernel.stores.iter().flat_map(super::body::operands);
    stored.for_each(|value| ends_in_products[value.0 as usize] = false);
    for (number, instr) in region.instrs.iter().enumerate().rev() {
        let passes_on = match instr.kind {
            InstrKind::Cast(_) => instr.dtype.is_float(),
            InstrKind::Binary(Binary::Add | Binary::Sub | Binary::Mul, ..) => instr.dtype.is_float(),
            InstrKind::Unary(Unary::Neg, _) | InstrKind::Select(..) => instr.dtype.is_float(),
            _ => false,
        };
        let ends = passes_on && is_used[number] && ends_in_products[number];
        for operand in instr.kind.operands() {
            is_used[operand.0 as usize] = true;
            ends_in_products[operand.0 as usize] &= ends;
        }
    }
    let is_rounded = |(number, instr): (usize, &kernfusion_ir::kernel::Instr)| {
        let is_arithmetic = match instr.kind {
            InstrKind::Cast(x) => region.instr(x).dtype == DType::F32 || is_narrow(region.instr(x).dtype),
            InstrKind::Binary(Binary::Add | Binary::Sub | Binary::Mul, ..) => true,
            InstrKind::Unary(Unary::Neg, _) | InstrKind::Select(..) => true,
            _ => false,
        };
        is_narrow(instr.dtype) && is_arithmetic && is_used[number] && ends_in_products[number]
    };
    region.instrs.iter().enumerate().map(is_rounded).collect()
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
            return match kind {
                InstrKind::Cast(x) => self.widened(x),
                InstrKind::Select(condition, x, y) => {
                    let (x, y) = (self.widened(x), self.widened(y));
                    self.float(InstrKind::Select(condition, x, y))
                }
                mut kind => {
                    for operand in operands_mut(&mut kind) {
                        *operand = self.widened(*operand);
                    }
                    self.float(kind)
                }
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
            InstrKind::Unary(Unary::Exp, x) => self.power_of_two(x).unwrap_or_else(|| self.float(kind)),
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

    /// A value as `f32`, which has all numbers of 16 bits.
    fn widened(&mut self, x: Scalar) -> Scalar {
        match &self.region.instr(x).kind {
            _ if self.region.instr(x).dtype == DType::F32 => x,
            InstrKind::Constant(number) => self.number(self.region.instr(x).dtype.round(number.value())),
            _ => self.float(InstrKind::Cast(x)),
        }
    }

    fn constant(&self, value: Scalar) -> Option<f64> {
        match &self.region.instr(value).kind {
            InstrKind::Constant(number) => Some(number.value()),
            _ => None,
        }
    }

    /// What a value is a multiple of, by a constant.
    fn multiple(&self, value: Scalar) -> Option<(Scalar, f64)> {
        match self.region.instr(value).kind {
            InstrKind::Binary(Binary::Mul, x, y) => match (self.constant(x), self.constant(y)) {
                (None, Some(factor)) => Some((x, factor)),
                (Some(factor), None) => Some((y, factor)),
                _ => None,
            },
            _ => None,
        }
    }

    /// As `multiple`, by a constant that keeps the order and −∞.
    fn scaled(&self, value: Scalar) -> Option<(Scalar, f64)> {
        self.multiple(value).filter(|(_, factor)| *factor > 0.0 && factor.is_finite())
    }

    /// Whether a value is the same for all rows, or for all columns.
    fn is_of_line(&self, value: Scalar) -> bool {
        let domain = &self.kernel.domain;
        [domain.row_axes(), domain.column_axes()]
            .into_iter()
            .any(|axes| !self.region.varies(value, axes, domain))
    }

    /// e^(x − b).
    fn power_of_two(&mut self, difference: Scalar) -> Option<Scalar> {
        let InstrKind::Binary(Binary::Sub, x, b) = self.region.instr(difference).kind else { return None };
        if !self.is_of_line(b) || self.is_of_line(x) {
            return None;
        }
        let (x, factor) = self.scaled(x).unwrap_or((x, 1.0));
        let x = self.times(x, factor * LOG2_OF_E);
        let b = self.times(b, LOG2_OF_E);
        let exponent = self.float(InstrKind::Binary(Binary::Sub, x, b));
        let two = self.number(2.0);
        Some(self.float(InstrKind::Binary(Binary::Pow, two, exponent)))
    }

    /// (x − b) · (e · r), where nothing else takes e · r, which was `old_product`.
    fn shared_factor(&mut self, difference: Scalar, product: Scalar, old_product: Scalar) -> Option<Scalar> {
        let InstrKind::Binary(Binary::Sub, x, b) = self.region.instr(difference).kind else { return None };
        let InstrKind::Binary(Binary::Mul, e, r) = self.region.instr(product).kind else { return None };
        let is_sum_of_products = self.is_of_line(b) && self.is_of_line(r) && !self.is_of_line(e);
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
