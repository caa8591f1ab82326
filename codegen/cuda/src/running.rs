//! Which reductions of a chain's rows one sweep finds, although some need the results of others.
//!
//! Where values are multiples of e^(x − m) for a row's maximum m, their sums may be taken with the maximum so far, and multiplied by
//! e^(m before − m) whenever it rises. Where they are divided by one of these sums, n, they may be taken as if it were 1, and
//! their sums divided by it in the end. So softmax, what is multiplied by it, and the sums of its derivative take one sweep. Nothing here knows
//! of softmax: each value is followed as a multiple of e^−m and of 1/n, and what is no such multiple has to wait for another sweep.
//! (The running maximum is Milakov and Gimelshein's, arXiv:1805.02867; second products with it are Rabe and Staats', arXiv:2112.05682.)
//!
//! ```text
//! %m = max %x   %e = exp(%x − %m)   %n = sum %e   %p = %e / %n   O = %p · W
//!                  e^−m               e^−m          e^−m / n       factors on the way; divided by n in the end
//! ```
//!
//! What is subtracted may be a multiple of the maximum ([`strength`](super::strength)): the correction is 2^(rate · (m before − m)).

use kernfusion_ir::kernel::{Direction, InstrKind, Region, Scalar};
use kernfusion_ir::{Binary, ReduceOp, Unary};
use std::collections::{BTreeMap, BTreeSet};

/// What a value is a multiple of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Factors {
    /// 2^(−rate · m), for the row's maximum m.
    pub(super) shifted: bool,
    /// 1/n, for the row's norm n.
    pub(super) divided: bool,
}

/// What one sweep finds.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// The maximum whose rising is made up for on the way.
    pub(super) maximum: Option<Scalar>,
    /// By how much a logarithm to the base of 2 falls when the maximum rises by 1.
    pub(super) rate: f64,
    /// The sum that is taken for 1 until the end.
    pub(super) norm: Option<Scalar>,
    /// Other reductions, with the factors of what they reduce.
    pub(super) reductions: BTreeMap<Scalar, Factors>,
    /// The factors of each value that the sweep can compute.
    factors: BTreeMap<Scalar, Factors>,
}

/// A value while it is followed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    /// A multiple of these.
    Multiple(Factors),
    /// The maximum times a positive number.
    Maximum(f64),
    /// Something minus so much of the maximum.
    Difference(f64),
    Norm,
    /// The sweep does not have it.
    Later,
}

impl Running {
    /// What a first sweep can find of these reductions.
    pub(super) fn of(region: &Region, reductions: &BTreeSet<Scalar>) -> Running {
        let maxima: Vec<_> = reductions
            .iter()
            .copied()
            .filter(|&value| matches!(region.instr(value).kind, InstrKind::Reduce(ReduceOp::Max, ..)))
            .collect();
        let with_maximum = match maxima[..] {
            [maximum] => Running::with(region, reductions, Some(maximum)),
            _ => Running::default(),
        };
        // A maximum that nothing else of the sweep needs is a reduction like others.
        match with_maximum.reductions.values().any(|factors| factors.shifted) {
            true => with_maximum,
            false => Running::with(region, reductions, None),
        }
    }

    fn with(region: &Region, reductions: &BTreeSet<Scalar>, maximum: Option<Scalar>) -> Running {
        let mut running = Running { maximum, ..Running::default() };
        let mut known: Vec<Known> = vec![];
        for (at, instr) in region.instrs.iter().enumerate() {
            let value = Scalar(at as u32);
            let result = match &instr.kind {
                InstrKind::Reduce(op, Direction::Columns, x) if reductions.contains(&value) => {
                    running.reduction(value, *op, known[x.0 as usize])
                }
                kind => running.follow(region, kind, &known),
            };
            if let Known::Multiple(factors) = result {
                running.factors.insert(value, factors);
            }
            known.push(result);
        }
        running
    }

    fn reduction(&mut self, value: Scalar, op: ReduceOp, of: Known) -> Known {
        match (op, of) {
            (ReduceOp::Max, Known::Multiple(factors)) if self.maximum == Some(value) => {
                match factors == Factors::default() {
                    true => Known::Maximum(1.0),
                    false => Known::Later,
                }
            }
            (ReduceOp::Sum, Known::Multiple(factors)) => {
                self.reductions.insert(value, factors);
                if self.norm.is_some() || factors.divided {
                    return Known::Later;
                }
                self.norm = Some(value);
                Known::Norm
            }
            (ReduceOp::Max | ReduceOp::Min, Known::Multiple(factors)) if factors == Factors::default() => {
                self.reductions.insert(value, factors);
                Known::Later
            }
            _ => Known::Later,
        }
    }

    /// What an instruction makes of its operands.
    fn follow(&mut self, region: &Region, kind: &InstrKind, known: &[Known]) -> Known {
        let of = |x: &Scalar| known[x.0 as usize];
        let plain = Known::Multiple(Factors::default());
        let constant = |x: &Scalar| match &region.instr(*x).kind {
            InstrKind::Constant(constant) => Some(constant.value()),
            _ => None,
        };
        let is_zero = |x: &Scalar| constant(x) == Some(0.0);
        let positive = |x: &Scalar| constant(x).filter(|x| *x > 0.0 && x.is_finite());
        match kind {
            _ if kind.operands().iter().all(|x| of(x) == plain) => plain,
            InstrKind::Binary(Binary::Sub, x, y) if of(x) == plain && matches!(of(y), Known::Maximum(_)) => {
                let Known::Maximum(factor) = of(y) else { unreachable!("a maximum") };
                Known::Difference(factor)
            }
            InstrKind::Unary(Unary::Exp, x) => match of(x) {
                Known::Difference(factor) => self.shifted(factor * std::f64::consts::LOG2_E),
                _ => Known::Later,
            },
            InstrKind::Unary(Unary::Neg | Unary::Abs, x) | InstrKind::Cast(x)
                if matches!(of(x), Known::Multiple(_)) && region.instr(*x).dtype.is_float() =>
            {
                of(x)
            }
            InstrKind::Binary(Binary::Mul, x, y) => match (of(x), of(y)) {
                (Known::Maximum(factor), _) => {
                    positive(y).map_or(Known::Later, |by| Known::Maximum(factor * by))
                }
                (_, Known::Maximum(factor)) => {
                    positive(x).map_or(Known::Later, |by| Known::Maximum(factor * by))
                }
                (Known::Multiple(a), Known::Multiple(b))
                    if !(a.shifted && b.shifted || a.divided && b.divided) =>
                {
                    let [shifted, divided] = [a.shifted || b.shifted, a.divided || b.divided];
                    Known::Multiple(Factors { shifted, divided })
                }
                _ => Known::Later,
            },
            InstrKind::Binary(Binary::Div, x, y) => match (of(x), of(y)) {
                (Known::Multiple(a), Known::Norm) if !a.divided => {
                    Known::Multiple(Factors { divided: true, ..a })
                }
                (Known::Multiple(a), y) if y == plain => Known::Multiple(a),
                _ => Known::Later,
            },
            InstrKind::Binary(Binary::Add | Binary::Sub, x, y) if of(x) == of(y) => match of(x) {
                Known::Multiple(a) => Known::Multiple(a),
                _ => Known::Later,
            },
            InstrKind::Select(condition, x, y) if of(condition) == plain => match (of(x), of(y)) {
                (Known::Multiple(a), Known::Multiple(b)) if a == b || is_zero(y) => Known::Multiple(a),
                (Known::Multiple(_), Known::Multiple(b)) if is_zero(x) => Known::Multiple(b),
                _ => Known::Later,
            },
            _ => Known::Later,
        }
    }

    /// A power that falls so fast when the maximum rises: all powers of a sweep have one rate.
    fn shifted(&mut self, rate: f64) -> Known {
        if self.rate != 0.0 && self.rate != rate {
            return Known::Later;
        }
        self.rate = rate;
        Known::Multiple(Factors { shifted: true, divided: false })
    }

    /// The factors of a value, if the sweep can compute it.
    pub(super) fn factors(&self, value: Scalar) -> Option<Factors> {
        self.factors.get(&value).copied()
    }

    /// Every reduction that the sweep finds.
    pub(super) fn found(&self) -> BTreeSet<Scalar> {
        self.maximum.into_iter().chain(self.reductions.keys().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::{DType, Literal};

    struct Rows(Region);

    impl Rows {
        fn push(&mut self, kind: InstrKind) -> Scalar {
            self.0.push(kind, DType::F32)
        }

        fn reduce(&mut self, op: ReduceOp, x: Scalar) -> Scalar {
            self.push(InstrKind::Reduce(op, Direction::Columns, x))
        }

        fn binary(&mut self, op: Binary, x: Scalar, y: Scalar) -> Scalar {
            self.push(InstrKind::Binary(op, x, y))
        }

        fn running(&self) -> Running {
            let is_reduction = |value: &Scalar| matches!(self.0.instr(*value).kind, InstrKind::Reduce(..));
            let all = (0..self.0.instrs.len() as u32).map(Scalar);
            Running::of(&self.0, &all.filter(is_reduction).collect())
        }
    }

    /// softmax(x), its maximum and its sum.
    fn softmax(rows: &mut Rows, x: Scalar) -> [Scalar; 3] {
        let maximum = rows.reduce(ReduceOp::Max, x);
        let difference = rows.binary(Binary::Sub, x, maximum);
        let e = rows.push(InstrKind::Unary(Unary::Exp, difference));
        let sum = rows.reduce(ReduceOp::Sum, e);
        [rows.binary(Binary::Div, e, sum), maximum, sum]
    }

    #[test]
    fn softmax_and_sums_of_what_it_weighs_take_one_sweep() {
        let mut rows = Rows(Region::default());
        let [x, y] = [0, 1].map(|product| rows.push(InstrKind::Producer(product)));
        let [weight, maximum, norm] = softmax(&mut rows, x);
        let weighed = rows.binary(Binary::Mul, weight, y);
        let sum = rows.reduce(ReduceOp::Sum, weighed);
        let rest = rows.binary(Binary::Sub, y, sum);
        let running = rows.running();
        assert_eq!((running.maximum, running.norm), (Some(maximum), Some(norm)));
        let [shifted, divided] = [true, true];
        assert_eq!(running.factors(weight), Some(Factors { shifted, divided }));
        assert_eq!(running.reductions[&norm], Factors { shifted, divided: false });
        assert_eq!(running.reductions[&sum], Factors { shifted, divided });
        // It needs the whole sum.
        assert_eq!(running.factors(rest), None);
    }

    /// Where the scale of scores is multiplied with their maximum, a power falls that much slower when the maximum rises; two that fall at different
    /// rates take two sweeps.
    #[test]
    fn a_power_falls_as_its_maximum_is_scaled() {
        let mut rows = Rows(Region::default());
        let x = rows.push(InstrKind::Producer(0));
        let maximum = rows.reduce(ReduceOp::Max, x);
        let [e, f] = [0.125, 0.5].map(|scale| {
            let scale = rows.push(InstrKind::Constant(Literal::new(scale)));
            let [x, m] = [x, maximum].map(|value| rows.binary(Binary::Mul, value, scale));
            let difference = rows.binary(Binary::Sub, x, m);
            rows.push(InstrKind::Unary(Unary::Exp, difference))
        });
        let [of_e, of_f] = [e, f].map(|power| rows.reduce(ReduceOp::Sum, power));
        let running = rows.running();
        assert_eq!((running.maximum, running.rate), (Some(maximum), 0.125 * std::f64::consts::LOG2_E));
        assert_eq!(running.found(), BTreeSet::from([maximum, of_e]));
        assert!(!running.found().contains(&of_f));
        // What grows when the maximum rises is no power of this kind.
        let negative = rows.push(InstrKind::Constant(Literal::new(-1.0)));
        let falling = rows.binary(Binary::Mul, maximum, negative);
        let difference = rows.binary(Binary::Sub, x, falling);
        let power = rows.push(InstrKind::Unary(Unary::Exp, difference));
        assert_eq!(rows.running().factors(power), None);
    }

    #[test]
    fn what_is_no_multiple_waits() {
        let mut rows = Rows(Region::default());
        let x = rows.push(InstrKind::Producer(0));
        let [weight, ..] = softmax(&mut rows, x);
        let one = rows.push(InstrKind::Constant(Literal::new(1.0)));
        let shifted = rows.binary(Binary::Add, weight, one);
        let square = rows.binary(Binary::Mul, weight, weight);
        let sums = [shifted, square].map(|value| rows.reduce(ReduceOp::Sum, value));
        let running = rows.running();
        assert_eq!([shifted, square].map(|value| running.factors(value)), [None; 2]);
        assert!(sums.iter().all(|sum| !running.found().contains(sum)));
        // The variance needs the mean first; neither needs a maximum that something else asks for.
        let mut rows = Rows(Region::default());
        let x = rows.push(InstrKind::Producer(0));
        let [largest, mean] = [ReduceOp::Max, ReduceOp::Sum].map(|op| rows.reduce(op, x));
        let difference = rows.binary(Binary::Sub, x, mean);
        let square = rows.binary(Binary::Mul, difference, difference);
        let variance = rows.reduce(ReduceOp::Sum, square);
        let running = rows.running();
        assert_eq!((running.maximum, running.found()), (None, BTreeSet::from([largest, mean])));
        assert!(!running.found().contains(&variance));
    }
}
