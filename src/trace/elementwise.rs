//! Elementwise operations with NumPy's broadcasting, and the operators.

use super::{Built, Reason, Tensor};
use kernfusion_ir::build::broadcast_shape;
use kernfusion_ir::{Binary, Builder, Compare, DType, Unary, ValueId};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// The other side of an operation: a tensor, or a number, which takes the dtype of the tensor beside it.
#[derive(Debug, Clone)]
pub enum Operand {
    /// A traced value.
    Tensor(Tensor),
    /// A number.
    Number(f64),
}

impl From<&Tensor> for Operand {
    fn from(tensor: &Tensor) -> Self {
        Operand::Tensor(tensor.clone())
    }
}

impl From<Tensor> for Operand {
    fn from(tensor: Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<f64> for Operand {
    fn from(number: f64) -> Self {
        Operand::Number(number)
    }
}

impl From<f32> for Operand {
    fn from(number: f32) -> Self {
        Operand::Number(f64::from(number))
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Operand::Number(f64::from(number))
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident: $op:ident,)*) => {
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $name(&self) -> Tensor {
                self.unary(stringify!($name), Unary::$op)
            })*
        }
    };
}

unary_methods! {
    /// eˣ
    exp: Exp,
    /// The natural logarithm.
    log: Log,
    /// √x
    sqrt: Sqrt,
    /// The hyperbolic tangent.
    tanh: Tanh,
    /// The logistic function, 1 / (1 + e⁻ˣ).
    sigmoid: Sigmoid,
    /// The error function, 2/√π · ∫₀ˣ exp(−t²) dt.
    erf: Erf,
    /// The sine of an angle in radians.
    sin: Sin,
    /// The cosine of an angle in radians.
    cos: Cos,
    /// |x|
    abs: Abs,
    /// −1, 0 or 1.
    sign: Sign,
    /// The largest whole number that is not above x.
    floor: Floor,
    /// The nearest whole number, of two the even one.
    round: Round,
    /// Negation of truth values; of the bits of integers.
    not: Not,
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident: $op:expr,)*) => {
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $name(&self, other: impl Into<Operand>) -> Tensor {
                self.binary(stringify!($name), $op, other.into())
            })*
        }
    };
}

binary_methods! {
    /// x to the power of `other`, for x ≥ 0 or whole exponents.
    pow: Binary::Pow,
    /// The larger of both; NaN if either is.
    maximum: Binary::Max,
    /// The smaller of both; NaN if either is.
    minimum: Binary::Min,
    /// Conjunction of truth values; of the bits of integers.
    and: Binary::And,
    /// Disjunction of truth values; of the bits of integers.
    or: Binary::Or,
    /// Exclusive disjunction of truth values; of the bits of integers.
    xor: Binary::Xor,
    /// Integers shifted left by `other` bits.
    shift_left: Binary::Shl,
    /// Integers shifted right by `other` bits, zeros entering.
    shift_right: Binary::Shr,
}

macro_rules! comparison_methods {
    ($($(#[$doc:meta])* $name:ident: $op:ident,)*) => {
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $name(&self, other: impl Into<Operand>) -> Tensor {
                self.compare(stringify!($name), Compare::$op, other.into())
            })*
        }
    };
}

comparison_methods! {
    /// Where the elements are equal, as `bool`.
    eq: Eq,
    /// Where they differ; NaN differs from itself.
    ne: Ne,
    /// Where x < `other`.
    lt: Lt,
    /// Where x ≤ `other`.
    le: Le,
    /// Where x > `other`.
    gt: Gt,
    /// Where x ≥ `other`.
    ge: Ge,
}

impl Tensor {
    /// x², as one multiplication.
    #[track_caller]
    pub fn square(&self) -> Tensor {
        self * self
    }

    /// 1 / x
    #[track_caller]
    pub fn recip(&self) -> Tensor {
        1.0 / self
    }

    /// xᵖ for a fixed exponent, written with a product or a root where that is the same.
    #[track_caller]
    pub fn powf(&self, exponent: f64) -> Tensor {
        if exponent == 1.0 {
            self.clone()
        } else if exponent == 2.0 {
            self.square()
        } else if exponent == 0.5 {
            self.sqrt()
        } else if exponent == -1.0 {
            self.recip()
        } else {
            self.pow(exponent)
        }
    }

    /// x, but at least `low` and at most `high`.
    #[track_caller]
    pub fn clamp(&self, low: f64, high: f64) -> Tensor {
        self.maximum(low).minimum(high)
    }

    /// Where this `bool` tensor holds, `a`, elsewhere `b`; all three broadcast. Two numbers make `f32`.
    #[doc(alias = "where")]
    #[track_caller]
    pub fn select(&self, a: impl Into<Operand>, b: impl Into<Operand>) -> Tensor {
        let (a, b) = match (a.into(), b.into()) {
            (Operand::Tensor(a), b) => (Some(a.clone()), a.operand("select", b)),
            (a, Operand::Tensor(b)) => (b.operand("select", a), Some(b)),
            (Operand::Number(a), Operand::Number(b)) => {
                let zero = self.trace().full([], 0.0, DType::F32);
                (zero.operand("select", a.into()), zero.operand("select", b.into()))
            }
        };
        // A choice that is no value of the dtype is on record.
        let (Some(a), Some(b)) = (a, b) else { return self.clone() };
        let chosen = self.trace().attempt("select", [self, &a, &b], |g, values| {
            expect_one_dtype(g, values[1], values[2])?;
            let [condition, x, y] = broadcast(g, values)?;
            Ok(g.select(condition, x, y)?)
        });
        chosen.unwrap_or(a)
    }

    /// The elements as another dtype: floats to integers truncate and saturate, anything but zero is true.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        let cast = self.trace().attempt("cast", [self], |b, [x]| Ok(b.cast(x, dtype)?));
        cast.unwrap_or_else(|| self.clone())
    }

    #[track_caller]
    fn unary(&self, name: &'static str, op: Unary) -> Tensor {
        let result = self.trace().attempt(name, [self], |b, [x]| Ok(b.unary(op, x)?));
        result.unwrap_or_else(|| self.clone())
    }

    #[track_caller]
    fn binary(&self, name: &'static str, op: Binary, other: Operand) -> Tensor {
        let other = self.operand(name, other).unwrap_or_else(|| self.clone());
        let result = self.trace().attempt(name, [self, &other], |b, [x, y]| {
            expect_one_dtype(b, x, y)?;
            let [x, y] = broadcast(b, [x, y])?;
            Ok(b.binary(op, x, y)?)
        });
        result.unwrap_or_else(|| self.clone())
    }

    #[track_caller]
    fn compare(&self, name: &'static str, op: Compare, other: Operand) -> Tensor {
        let other = self.operand(name, other).unwrap_or_else(|| self.clone());
        let result = self.trace().attempt(name, [self, &other], |b, [x, y]| {
            expect_one_dtype(b, x, y)?;
            let [x, y] = broadcast(b, [x, y])?;
            Ok(b.compare(op, x, y)?)
        });
        result.unwrap_or_else(|| self.trace().placeholder(&self.ty().with_dtype(DType::Bool)))
    }

    /// The other side as a tensor: a number becomes a scalar of this dtype.
    #[track_caller]
    fn operand(&self, name: &'static str, other: Operand) -> Option<Tensor> {
        let number = match other {
            Operand::Tensor(tensor) => return Some(tensor),
            Operand::Number(number) => number,
        };
        let dtype = self.dtype();
        self.trace().attempt(name, [self], |b, _| constant(b, number, dtype))
    }
}

/// A scalar. Floats round; a number that an integer type does not hold is refused.
pub(super) fn constant(b: &mut Builder<'_>, number: f64, dtype: DType) -> Built {
    if !dtype.is_float() && dtype.round(number) != number {
        return Err(format!("{number:?} is not a value of {dtype}").into());
    }
    Ok(b.constant(number, dtype)?)
}

/// Nothing is converted silently: whole numbers beside floats are cast by the user.
fn expect_one_dtype(b: &Builder<'_>, x: ValueId, y: ValueId) -> Result<(), Reason> {
    let (x, y) = (b.ty(x).dtype, b.ty(y).dtype);
    let hint = match (x.is_float(), y.is_float()) {
        _ if x == y => return Ok(()),
        (true, false) => format!("`.cast(DType::{x:?})` converts the second"),
        (false, true) => format!("`.cast(DType::{y:?})` converts the first"),
        _ => "`.cast(…)` converts".into(),
    };
    Err(format!("operands have the dtypes {x} and {y}: {hint}").into())
}

/// All values under the shape that NumPy's broadcasting gives them.
fn broadcast<const N: usize>(b: &mut Builder<'_>, values: [ValueId; N]) -> Result<[ValueId; N], Reason> {
    let mut shape = vec![];
    for value in values {
        let own = &b.ty(value).shape;
        shape = broadcast_shape(&shape, own)
            .ok_or_else(|| format!("the shapes {shape:?} and {own:?} do not broadcast"))?;
    }
    let mut results = values;
    for value in &mut results {
        *value = b.broadcast_to(*value, &shape)?;
    }
    Ok(results)
}

// Numbers are `f64` and `i32`: with `f32` beside `f64`, the type of `&x * 2.0` would be open until the end of the function, and a method
// could not be called on it.
macro_rules! operators {
    ($($trait:ident $method:ident,)*) => {$(
        operators!(@pair $trait $method, Tensor, Tensor);
        operators!(@pair $trait $method, Tensor, &Tensor);
        operators!(@pair $trait $method, &Tensor, Tensor);
        operators!(@pair $trait $method, &Tensor, &Tensor);
        operators!(@pair $trait $method, Tensor, f64);
        operators!(@pair $trait $method, &Tensor, f64);
        operators!(@pair $trait $method, Tensor, i32);
        operators!(@pair $trait $method, &Tensor, i32);
        operators!(@number $trait $method, f64, Tensor);
        operators!(@number $trait $method, f64, &Tensor);
        operators!(@number $trait $method, i32, Tensor);
        operators!(@number $trait $method, i32, &Tensor);
    )*};
    (@pair $trait:ident $method:ident, $left:ty, $right:ty) => {
        impl $trait<$right> for $left {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, right: $right) -> Tensor {
                self.binary(stringify!($method), Binary::$trait, right.into())
            }
        }
    };
    (@number $trait:ident $method:ident, $number:ty, $right:ty) => {
        impl $trait<$right> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, right: $right) -> Tensor {
                match right.operand(stringify!($method), self.into()) {
                    Some(left) => left.binary(stringify!($method), Binary::$trait, right.clone().into()),
                    None => right.clone(),
                }
            }
        }
    };
}

operators! {
    Add add,
    Sub sub,
    Mul mul,
    Div div,
}

impl Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.unary("neg", Unary::Neg)
    }
}

impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.unary("neg", Unary::Neg)
    }
}
