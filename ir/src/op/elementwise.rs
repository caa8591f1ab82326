//! Elementwise ops: one instruction of a region each.

use super::{Attributes, KernelEntry, Stanza, Vjp, arity, ensure};
use crate::evaluate::Array;
use crate::kernel::{Entered, Index, InstrKind, KernelWriter};
use crate::{DType, Result, TensorType, ValueId};
use serde::{Deserialize, Serialize};

type Cotangents = Result<Vec<Option<ValueId>>>;

/// Ops of one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the functions")]
pub enum Unary {
    Neg,
    Abs,
    /// −1, 0 or 1.
    Sign,
    Floor,
    /// To the nearest whole number, of two to the even one.
    Round,
    Exp,
    /// Natural logarithm.
    Log,
    Sqrt,
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    Erf,
    Sin,
    Cos,
    /// Of truth values, and bitwise of integers.
    Not,
}

struct UnaryRule {
    name: &'static str,
    eval: fn(f64) -> f64,
    /// From x, y = op(x) and dy.
    vjp: fn(&mut Vjp<'_, '_>, ValueId, ValueId, ValueId) -> Result<Option<ValueId>>,
    takes: fn(DType) -> bool,
}

impl Unary {
    /// Every unary op.
    pub const ALL: [Unary; 14] = [
        Unary::Neg,
        Unary::Abs,
        Unary::Sign,
        Unary::Floor,
        Unary::Round,
        Unary::Exp,
        Unary::Log,
        Unary::Sqrt,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Erf,
        Unary::Sin,
        Unary::Cos,
        Unary::Not,
    ];

    #[rustfmt::skip]
    fn rule(self) -> UnaryRule {
        let float = DType::is_float;
        let signed = |dtype: DType| dtype.is_float() || dtype == DType::I32;
        let whole = |dtype: DType| dtype.is_integer() || dtype == DType::Bool;
        match self {
            Unary::Neg => UnaryRule { name: "neg", takes: signed, eval: |x| -x,
                vjp: |v, _, _, dy| v.b.unary(Unary::Neg, dy).map(Some) },
            Unary::Abs => UnaryRule { name: "abs", takes: signed, eval: f64::abs,
                // |x|′ = sign x
                vjp: |v, x, _, dy| { let s = v.b.unary(Unary::Sign, x)?; v.b.mul(dy, s).map(Some) } },
            Unary::Sign => UnaryRule { name: "sign", takes: signed, vjp: |_, _, _, _| Ok(None),
                eval: |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x } },
            Unary::Floor => UnaryRule { name: "floor", takes: float, eval: f64::floor, vjp: |_, _, _, _| Ok(None) },
            Unary::Round => UnaryRule { name: "round", takes: float, eval: f64::round_ties_even, vjp: |_, _, _, _| Ok(None) },
            Unary::Exp => UnaryRule { name: "exp", takes: float, eval: f64::exp,
                vjp: |v, _, y, dy| v.b.mul(dy, y).map(Some) },
            Unary::Log => UnaryRule { name: "log", takes: float, eval: f64::ln,
                vjp: |v, x, _, dy| v.b.div(dy, x).map(Some) },
            Unary::Sqrt => UnaryRule { name: "sqrt", takes: float, eval: f64::sqrt,
                // √x′ = 1 / 2√x
                vjp: |v, _, y, dy| { let q = v.b.div(dy, y)?; v.b.scale(q, 0.5).map(Some) } },
            Unary::Tanh => UnaryRule { name: "tanh", takes: float, eval: f64::tanh,
                // tanh′ = 1 − tanh²
                vjp: |v, _, y, dy| { let y2 = v.b.mul(y, y)?; let d = v.b.one_minus(y2)?; v.b.mul(dy, d).map(Some) } },
            Unary::Sigmoid => UnaryRule { name: "sigmoid", takes: float, eval: |x| 1.0 / (1.0 + (-x).exp()),
                // σ′ = σ · (1 − σ)
                vjp: |v, _, y, dy| { let rest = v.b.one_minus(y)?; let d = v.b.mul(y, rest)?; v.b.mul(dy, d).map(Some) } },
            Unary::Erf => UnaryRule { name: "erf", takes: float, eval: erf,
                // erf′ = 2/√π · exp(−x²)
                vjp: |v, x, _, dy| {
                    let x2 = v.b.mul(x, x)?;
                    let n = v.b.unary(Unary::Neg, x2)?;
                    let e = v.b.unary(Unary::Exp, n)?;
                    let d = v.b.scale(e, std::f64::consts::FRAC_2_SQRT_PI)?;
                    v.b.mul(dy, d).map(Some)
                } },
            Unary::Sin => UnaryRule { name: "sin", takes: float, eval: f64::sin,
                vjp: |v, x, _, dy| { let c = v.b.unary(Unary::Cos, x)?; v.b.mul(dy, c).map(Some) } },
            Unary::Cos => UnaryRule { name: "cos", takes: float, eval: f64::cos,
                vjp: |v, x, _, dy| { let s = v.b.unary(Unary::Sin, x)?; let p = v.b.mul(dy, s)?; v.b.unary(Unary::Neg, p).map(Some) } },
            Unary::Not => UnaryRule { name: "not", takes: whole, eval: |x| -1.0 - x, vjp: |_, _, _, _| Ok(None) },
        }
    }
}

impl Stanza for Unary {
    fn name(&self) -> &'static str {
        self.rule().name
    }
    fn attributes(&self) -> Attributes {
        Attributes::default()
    }
    fn parse(name: &str, _: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        Unary::ALL.into_iter().find(|op| op.rule().name == name).map(Ok)
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        ensure((self.rule().takes)(x.dtype), || format!("is not defined on {}", x.dtype))?;
        Ok(x.clone())
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let negated = *self == Unary::Not && ty.dtype == DType::Bool;
        let eval = if negated { |x| 1.0 - x } else { self.rule().eval };
        operands[0].values.iter().map(|&x| eval(x)).collect()
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        Ok(vec![(self.rule().vjp)(v, v.operands[0], v.result, v.dy)?])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Scalar
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let x = w.operand(0, at.to_vec())?;
        let dtype = w.result_type().dtype;
        Ok(w.push(InstrKind::Unary(*self, x), dtype))
    }
}

/// Ops of two operands of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the functions")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// Of floats.
    Div,
    /// The larger; NaN if either is.
    Max,
    /// The smaller; NaN if either is.
    Min,
    /// x to the power y.
    Pow,
    /// Of truth values, and bitwise of integers.
    And,
    Or,
    Xor,
    /// Shift left; 0 from 32 bits on.
    Shl,
    /// Logical shift right; 0 from 32 bits on.
    Shr,
}

struct BinaryRule {
    name: &'static str,
    eval: fn(f64, f64) -> f64,
    /// On the 32 bits of integers, where the `f64` form is not exact.
    bits: Option<fn(u32, u32) -> u32>,
    vjp: fn(&mut Vjp<'_, '_>, [ValueId; 2]) -> Cotangents,
    takes: fn(DType) -> bool,
}

impl Binary {
    /// Every binary op.
    pub const ALL: [Binary; 12] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Max,
        Binary::Min,
        Binary::Pow,
        Binary::And,
        Binary::Or,
        Binary::Xor,
        Binary::Shl,
        Binary::Shr,
    ];

    #[rustfmt::skip]
    fn rule(self) -> BinaryRule {
        let number = DType::is_number;
        let integer = DType::is_integer;
        let whole = |dtype: DType| dtype.is_integer() || dtype == DType::Bool;
        let none: fn(&mut Vjp<'_, '_>, [ValueId; 2]) -> Cotangents = |_, _| Ok(vec![None, None]);
        match self {
            Binary::Add => BinaryRule { name: "add", takes: number, eval: |x, y| x + y, bits: Some(u32::wrapping_add),
                vjp: |v, _| Ok(vec![Some(v.dy), Some(v.dy)]) },
            Binary::Sub => BinaryRule { name: "sub", takes: number, eval: |x, y| x - y, bits: Some(u32::wrapping_sub),
                vjp: |v, _| { let n = v.b.unary(Unary::Neg, v.dy)?; Ok(vec![Some(v.dy), Some(n)]) } },
            Binary::Mul => BinaryRule { name: "mul", takes: number, eval: |x, y| x * y, bits: Some(u32::wrapping_mul),
                vjp: |v, [x, y]| { let dx = v.b.mul(v.dy, y)?; let dy = v.b.mul(v.dy, x)?; Ok(vec![Some(dx), Some(dy)]) } },
            Binary::Div => BinaryRule { name: "div", takes: DType::is_float, eval: |x, y| x / y, bits: None,
                // (x/y)′ = dx/y − (x/y)·dy/y
                vjp: |v, [_, y]| {
                    let dx = v.b.div(v.dy, y)?;
                    let p = v.b.mul(dx, v.result)?;
                    let dy = v.b.unary(Unary::Neg, p)?;
                    Ok(vec![Some(dx), Some(dy)])
                } },
            Binary::Max => BinaryRule { name: "max", takes: number, bits: None,
                eval: |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) },
                vjp: |v, [x, y]| chosen(v, Compare::Gt, x, y) },
            Binary::Min => BinaryRule { name: "min", takes: number, bits: None,
                eval: |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.min(y) },
                vjp: |v, [x, y]| chosen(v, Compare::Lt, x, y) },
            Binary::Pow => BinaryRule { name: "pow", takes: DType::is_float, eval: f64::powf, bits: None, vjp: power },
            Binary::And => BinaryRule { name: "and", takes: whole, eval: f64::min, bits: Some(|x, y| x & y), vjp: none },
            Binary::Or => BinaryRule { name: "or", takes: whole, eval: f64::max, bits: Some(|x, y| x | y), vjp: none },
            Binary::Xor => BinaryRule { name: "xor", takes: whole, eval: |x, y| f64::from(u8::from(x != y)),
                bits: Some(|x, y| x ^ y), vjp: none },
            Binary::Shl => BinaryRule { name: "shl", takes: integer, eval: |_, _| f64::NAN,
                bits: Some(|x, y| x.checked_shl(y).unwrap_or(0)), vjp: none },
            Binary::Shr => BinaryRule { name: "shr", takes: integer, eval: |_, _| f64::NAN,
                bits: Some(|x, y| x.checked_shr(y).unwrap_or(0)), vjp: none },
        }
    }

    /// The result for one pair of elements of `dtype`, before rounding.
    fn apply(self, dtype: DType, x: f64, y: f64) -> f64 {
        let rule = self.rule();
        match rule.bits.filter(|_| dtype.is_integer()) {
            // Through i64: two's complement bits of either integer type.
            Some(bits) => {
                let result = bits(x as i64 as u32, y as i64 as u32);
                if dtype == DType::I32 { f64::from(result as i32) } else { f64::from(result) }
            }
            None => (rule.eval)(x, y),
        }
    }
}

/// Max and min pass dy to the operand that was chosen, half to each where they are equal (as PyTorch does).
fn chosen(v: &mut Vjp<'_, '_>, wins: Compare, x: ValueId, y: ValueId) -> Cotangents {
    let half = v.b.scale(v.dy, 0.5)?;
    let zero = v.b.zeros_like(v.dy)?;
    let tie = v.b.compare(Compare::Eq, x, y)?;
    let mut side = |x, y| {
        let won = v.b.compare(wins, x, y)?;
        let shared = v.b.select(tie, half, zero)?;
        v.b.select(won, v.dy, shared)
    };
    Ok(vec![Some(side(x, y)?), Some(side(y, x)?)])
}

/// (x^p)′ = p·x^(p−1)·dx + x^p·ln x·dp
fn power(v: &mut Vjp<'_, '_>, [x, p]: [ValueId; 2]) -> Cotangents {
    let one = v.b.full_like(1.0, p)?;
    let less = v.b.sub(p, one)?;
    let root = v.b.binary(Binary::Pow, x, less)?;
    let slope = v.b.mul(p, root)?;
    let dx = v.b.mul(v.dy, slope)?;
    let ln = v.b.unary(Unary::Log, x)?;
    let grown = v.b.mul(v.result, ln)?;
    let dp = v.b.mul(v.dy, grown)?;
    Ok(vec![Some(dx), Some(dp)])
}

/// Checks that both operands have one type.
fn same<'a>(x: &'a TensorType, y: &TensorType) -> std::result::Result<&'a TensorType, String> {
    ensure(x.dtype == y.dtype, || format!("operands have the dtypes {} and {}", x.dtype, y.dtype))?;
    ensure(x.shape == y.shape, || format!("operands have the shapes {:?} and {:?}", x.shape, y.shape))?;
    Ok(x)
}

impl Stanza for Binary {
    fn name(&self) -> &'static str {
        self.rule().name
    }
    fn attributes(&self) -> Attributes {
        Attributes::default()
    }
    fn parse(name: &str, _: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        Binary::ALL.into_iter().find(|op| op.rule().name == name).map(Ok)
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x, y] = arity(operands)?;
        ensure((self.rule().takes)(x.dtype), || format!("is not defined on {}", x.dtype))?;
        same(x, y).cloned()
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let pairs = operands[0].values.iter().zip(&operands[1].values);
        pairs.map(|(&x, &y)| self.apply(ty.dtype, x, y)).collect()
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        (self.rule().vjp)(v, [v.operands[0], v.operands[1]])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Scalar
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let x = w.operand(0, at.to_vec())?;
        let y = w.operand(1, at.to_vec())?;
        let dtype = w.result_type().dtype;
        Ok(w.push(InstrKind::Binary(*self, x, y), dtype))
    }
}

/// Comparisons of two operands of one type; the result is `bool`. With NaN only `ne` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the relations")]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Compare {
    /// Every comparison.
    pub const ALL: [Compare; 6] =
        [Compare::Eq, Compare::Ne, Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge];

    fn rule(self) -> (&'static str, fn(f64, f64) -> bool) {
        match self {
            Compare::Eq => ("eq", |x, y| x == y),
            Compare::Ne => ("ne", |x, y| x != y),
            Compare::Lt => ("lt", |x, y| x < y),
            Compare::Le => ("le", |x, y| x <= y),
            Compare::Gt => ("gt", |x, y| x > y),
            Compare::Ge => ("ge", |x, y| x >= y),
        }
    }
}

impl Stanza for Compare {
    fn name(&self) -> &'static str {
        self.rule().0
    }
    fn attributes(&self) -> Attributes {
        Attributes::default()
    }
    fn parse(name: &str, _: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        Compare::ALL.into_iter().find(|op| op.rule().0 == name).map(Ok)
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x, y] = arity(operands)?;
        Ok(same(x, y)?.with_dtype(DType::Bool))
    }
    fn eval(&self, operands: &[&Array], _: &TensorType) -> Vec<f64> {
        let pairs = operands[0].values.iter().zip(&operands[1].values);
        pairs.map(|(&x, &y)| f64::from(u8::from((self.rule().1)(x, y)))).collect()
    }
    fn vjp(&self, _: &mut Vjp<'_, '_>) -> Cotangents {
        Ok(vec![None, None])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Scalar
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let x = w.operand(0, at.to_vec())?;
        let y = w.operand(1, at.to_vec())?;
        Ok(w.push(InstrKind::Compare(*self, x, y), DType::Bool))
    }
}

/// `if condition { a } else { b }`, for each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Select;

impl Stanza for Select {
    fn name(&self) -> &'static str {
        "select"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default()
    }
    fn parse(name: &str, _: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "select").then_some(Ok(Select))
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [condition, a, b] = arity(operands)?;
        ensure(condition.dtype == DType::Bool, || format!("the condition is {}, not bool", condition.dtype))?;
        ensure(condition.shape == a.shape, || {
            format!("the condition has the shape {:?}, the choices {:?}", condition.shape, a.shape)
        })?;
        same(a, b).cloned()
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let [condition, a, b] = [0, 1, 2].map(|i| &operands[i].values);
        (0..ty.elements()).map(|i| if condition[i] != 0.0 { a[i] } else { b[i] }).collect()
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let zero = v.b.zeros_like(v.dy)?;
        let a = v.b.select(v.operands[0], v.dy, zero)?;
        let b = v.b.select(v.operands[0], zero, v.dy)?;
        Ok(vec![None, Some(a), Some(b)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Scalar
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let condition = w.operand(0, at.to_vec())?;
        let a = w.operand(1, at.to_vec())?;
        let b = w.operand(2, at.to_vec())?;
        let dtype = w.result_type().dtype;
        Ok(w.push(InstrKind::Select(condition, a, b), dtype))
    }
}

/// A conversion. Floats to integers truncate and saturate, NaN to 0; integers among each other wrap; anything but
/// zero is true; truth is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cast {
    /// The type of the result.
    pub dtype: DType,
}

impl Stanza for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().word("dtype", self.dtype.name())
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "cast").then(|| Ok(Cast { dtype: attributes.take_dtype("dtype")? }))
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        Ok(x.with_dtype(self.dtype))
    }
    fn eval(&self, operands: &[&Array], _: &TensorType) -> Vec<f64> {
        let from_float = operands[0].ty.dtype.is_float();
        let convert = |&x: &f64| match self.dtype {
            DType::I32 if from_float => f64::from(x as i32),
            DType::U32 if from_float => f64::from(x as u32),
            dtype => {
                if dtype.is_float() {
                    x
                } else {
                    dtype.round(x)
                }
            }
        };
        operands[0].values.iter().map(convert).collect()
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let from = v.b.ty(v.operands[0]).dtype;
        if !from.is_float() || !self.dtype.is_float() {
            return Ok(vec![None]);
        }
        Ok(vec![Some(v.b.cast(v.dy, from)?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Scalar
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let x = w.operand(0, at.to_vec())?;
        Ok(w.push(InstrKind::Cast(x), self.dtype))
    }
}

/// The error function to 1e-15: its Maclaurin series for |x| < 2.5, else Lentz's continued fraction of
/// erfc (Abramowitz & Stegun 7.1.5 and 7.1.14).
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() || a > 6.0 {
        return if a.is_nan() { x } else { x.signum() };
    }
    if a < 2.5 {
        // erf x = 2/√π · Σ (−1)ⁿ x^(2n+1) / (n!·(2n+1)), summed in the form without cancellation:
        // 2/√π · exp(−x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-17 * sum.abs() {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        return std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum;
    }
    // erfc x = exp(−x²)/√π · 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …))))
    let tail = (1..=60).rev().fold(a, |f, k| a + f64::from(k) / 2.0 / f);
    x.signum() * (1.0 - (-a * a).exp() / (std::f64::consts::PI.sqrt() * tail))
}
