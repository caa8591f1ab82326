//! Numbers.

use super::Rounding::{Exact, Finite, Reassociating};
use super::{PatternRow, TermRow};
use crate::simplify::language::{Head, Term};
use crate::simplify::rewriter::Rewriter;
use egg::Id;
use kernfusion_ir::{Binary, DType, Op, Unary};

const ANY: fn(DType) -> bool = |_| true;
const FLOAT: fn(DType) -> bool = DType::is_float;
const INTEGER: fn(DType) -> bool = DType::is_integer;

#[rustfmt::skip]
pub(super) const PATTERNS: &[PatternRow] = &[
    // Neutral elements.
    ("add-zero",            Exact,         "(add ?x 0)",                     "?x",                            ANY),
    ("sub-zero",            Exact,         "(sub ?x 0)",                     "?x",                            ANY),
    ("zero-sub",            Exact,         "(sub 0 ?x)",                     "(neg ?x)",                      ANY),
    ("mul-one",             Exact,         "(mul ?x 1)",                     "?x",                            ANY),
    ("div-one",             Exact,         "(div ?x 1)",                     "?x",                            ANY),
    ("mul-minus-one",       Exact,         "(mul ?x -1)",                    "(neg ?x)",                      ANY),
    ("div-minus-one",       Exact,         "(div ?x -1)",                    "(neg ?x)",                      ANY),
    ("pow-one",             Exact,         "(pow ?x 1)",                     "?x",                            ANY),
    ("pow-two",             Reassociating, "(pow ?x 2)",                     "(mul ?x ?x)",                   ANY),
    ("pow-three",           Reassociating, "(pow ?x 3)",                     "(mul ?x (mul ?x ?x))",          ANY),
    ("pow-minus-one",       Reassociating, "(pow ?x -1)",                    "(div 1 ?x)",                    FLOAT),
    // The power of −∞ is ∞, its root NaN.
    ("pow-half",            Finite,        "(pow ?x 0.5)",                   "(sqrt ?x)",                     FLOAT),
    ("pow-minus-half",      Finite,        "(pow ?x -0.5)",                  "(div 1 (sqrt ?x))",             FLOAT),
    // 0 · ∞ is NaN, 0 · −1 is −0.
    ("mul-zero-integer",    Exact,         "(mul ?x 0)",                     "0",                             INTEGER),
    ("mul-zero",            Finite,        "(mul ?x 0)",                     "0",                             FLOAT),
    ("zero-div",            Finite,        "(div 0 ?x)",                     "0",                             FLOAT),
    // The same operand twice.
    ("sub-self-integer",    Exact,         "(sub ?x ?x)",                    "0",                             INTEGER),
    ("sub-self",            Finite,        "(sub ?x ?x)",                    "0",                             FLOAT),
    ("div-self",            Finite,        "(div ?x ?x)",                    "1",                             FLOAT),
    ("max-self",            Exact,         "(max ?x ?x)",                    "?x",                            ANY),
    ("min-self",            Exact,         "(min ?x ?x)",                    "?x",                            ANY),
    ("and-self",            Exact,         "(and ?x ?x)",                    "?x",                            ANY),
    ("or-self",             Exact,         "(or ?x ?x)",                     "?x",                            ANY),
    ("max-max",             Exact,         "(max (max ?x ?y) ?y)",           "(max ?x ?y)",                   ANY),
    ("min-min",             Exact,         "(min (min ?x ?y) ?y)",           "(min ?x ?y)",                   ANY),
    ("add-twice",           Reassociating, "(add (add ?x ?y) ?y)",           "(add ?x (mul ?y 2))",           FLOAT),
    // Signs move outward, where additions take them in.
    ("neg-neg",             Exact,         "(neg (neg ?x))",                 "?x",                            ANY),
    ("not-not",             Exact,         "(not (not ?x))",                 "?x",                            ANY),
    ("abs-neg",             Exact,         "(abs (neg ?x))",                 "(abs ?x)",                      ANY),
    ("abs-abs",             Exact,         "(abs (abs ?x))",                 "(abs ?x)",                      ANY),
    ("add-neg",             Exact,         "(add ?x (neg ?y))",              "(sub ?x ?y)",                   ANY),
    ("sub-neg",             Exact,         "(sub ?x (neg ?y))",              "(add ?x ?y)",                   ANY),
    ("neg-sub",             Exact,         "(neg (sub ?x ?y))",              "(sub ?y ?x)",                   ANY),
    ("neg-scale",           Exact,         "(neg (mul ?x #c))",              "(mul ?x (neg #c))",             ANY),
    // Numbers move outward and meet there.
    ("add-numbers",         Reassociating, "(add (add ?x #a) #b)",           "(add ?x (add #a #b))",          ANY),
    ("scale-div",           Reassociating, "(div (mul ?x #a) #b)",           "(mul ?x (div #a #b))",          FLOAT),
    ("div-number",          Reassociating, "(div ?x #c)",                    "(mul ?x (div 1 #c))",           FLOAT),
    ("number-div-number",   Reassociating, "(mul (div #a ?x) #b)",           "(div (mul #a #b) ?x)",          FLOAT),
    ("factor-number",       Reassociating, "(add (mul ?x #c) (mul ?y #c))",  "(mul (add ?x ?y) #c)",          FLOAT),
    // Quotients.
    ("mul-reciprocal",      Reassociating, "(mul ?x (div 1 ?y))",            "(div ?x ?y)",                   FLOAT),
    ("div-div",             Reassociating, "(div (div ?x ?y) ?z)",           "(div ?x (mul ?y ?z))",          FLOAT),
    ("factor-divisor",      Reassociating, "(sub (div ?x ?w) (div ?y ?w))",  "(div (sub ?x ?y) ?w)",          FLOAT),
    ("factor-divisor-add",  Reassociating, "(add (div ?x ?w) (div ?y ?w))",  "(div (add ?x ?y) ?w)",          FLOAT),
    ("cancel-divisor",      Finite,        "(mul (div ?x ?w) ?w)",           "?x",                            FLOAT),
    ("cancel-one-divisor",  Finite,        "(mul (sub ?x (div ?y ?w)) ?w)",  "(sub (mul ?x ?w) ?y)",          FLOAT),
    ("cancel-other-divisor", Finite,       "(mul (sub (div ?x ?w) ?y) ?w)",  "(sub ?x (mul ?y ?w))",          FLOAT),
    // e^x > 0, so y must be positive for either side to be a number.
    ("log-exp",             Finite,        "(log (exp ?x))",                 "?x",                            FLOAT),
    ("log-quotient",        Finite,        "(log (div (exp ?x) ?y))",        "(sub ?x (log ?y))",             FLOAT),
];

#[rustfmt::skip]
pub(super) const TERMS: &[TermRow] = &[
    ("mul-neg",             Exact,         "(−x) · y = −(x · y)",                          "mul", neg_outward),
    ("div-neg",             Exact,         "(−x) / y = x / (−y) = −(x / y)",               "div", neg_outward),
    ("scale-scale",         Reassociating, "(x · a) · b = x · ab",                         "mul", scale_scale),
    ("scales-meet",         Reassociating, "(x · a) · (y · b) = (x · y) · ab",             "mul", scales_meet),
    ("scale-over-product",  Reassociating, "((x · a) · y) · b = (x · y) · ab",             "mul", scale_over_product),
    ("reciprocal-of-rows",  Reassociating, "x / b(s) = x · b(1/s)",                        "div", reciprocal_of_rows),
    ("divisor-outward",     Reassociating, "x/b(s) · y = (x·y) / b(s)",                    "mul", divisor_outward),
    ("known-quotient",      Reassociating, "x/w · y = x · (y/w), where y/w is known",      "mul", known_quotient),
    ("exp-log-rows",        Finite,        "exp(x − b(ln s)) = exp x / b(s)",              "exp", exp_log_rows),
    ("scale-rows",          Reassociating, "(b(r) · x) · c = b(r · c) · x",                "mul", scale_rows),
    ("cast-same",           Exact,         "cast x : T = x, for x : T",                    "cast", cast_same),
    ("cast-cast",           Exact,         "cast (cast x : U) : V = cast x : V, for x : T within U, unless V clamps U and not T; or whole x in the range of U", "cast", cast_cast),
    ("round-whole",         Exact,         "round x = x, for whole x",                     "round", whole_stays),
    ("floor-whole",         Exact,         "⌊x⌋ = x, for whole x",                         "floor", whole_stays),
    ("whole-sub-add",       Exact,         "(x − y) + y = x, for whole x and y of few digits", "add", whole_sub_add),
    ("whole-add-sub",       Exact,         "(x + y) − y = x, for whole x and y of few digits", "sub", whole_add_sub),
];

/// Signs leave products and quotients, unless the value is known to be the negative of another already. A number is not the
/// negative of a number.
fn neg_outward(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(op) = &term.head else { return None };
    let value = r.lookup(op.clone(), &term.operands)?;
    if r.form(value, "neg").is_some() {
        return None;
    }
    for side in [0, 1] {
        let operand = term.operands[side];
        if let Some(neg) = r.form(operand, "neg").filter(|_| r.constant(operand).is_none()) {
            let mut operands = term.operands.clone();
            operands[side] = neg.operands[0];
            let positive = r.add(op.clone(), &operands)?;
            return r.unary(Unary::Neg, positive);
        }
    }
    None
}

/// The first form of a value as a product with a number other than 1: the other factor, the number.
fn scaled(r: &Rewriter<'_>, x: Id) -> Option<(Id, Id)> {
    if r.constant(x).is_some() {
        return None;
    }
    r.forms(x, "mul").into_iter().find_map(|mul| number_factor(r, &mul))
}

/// A product with a number other than 1: the other factor, the number.
fn number_factor(r: &Rewriter<'_>, mul: &Term) -> Option<(Id, Id)> {
    let is_number = |id: Id| r.constant(id).is_some_and(|number| number != 1.0);
    let both = [(0, 1), (1, 0)].map(|(i, j)| (mul.operands[i], mul.operands[j]));
    both.into_iter().find(|&(x, number)| is_number(number) && r.constant(x).is_none())
}

fn scale_scale(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (x, outer) = number_factor(r, term)?;
    let (x, inner) = scaled(r, x)?;
    let number = r.binary(Binary::Mul, inner, outer)?;
    r.binary(Binary::Mul, x, number)
}

fn scales_meet(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let ((x, a), (y, b)) = (scaled(r, term.operands[0])?, scaled(r, term.operands[1])?);
    let (product, number) = (r.binary(Binary::Mul, x, y)?, r.binary(Binary::Mul, a, b)?);
    r.binary(Binary::Mul, product, number)
}

fn scale_over_product(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (product, outer) = number_factor(r, term)?;
    for mul in r.forms(product, "mul").into_iter().filter(|mul| number_factor(r, mul).is_none()) {
        for (x, y) in [(0, 1), (1, 0)].map(|(i, j)| (mul.operands[i], mul.operands[j])) {
            if let Some((x, inner)) = scaled(r, x) {
                let (product, number) = (r.binary(Binary::Mul, x, y)?, r.binary(Binary::Mul, inner, outer)?);
                return r.binary(Binary::Mul, product, number);
            }
        }
    }
    None
}

fn reciprocal_of_rows(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let [x, y] = term.operands[..] else { return None };
    let (spread, of) = r.broadcasts(y).into_iter().next().filter(|_| r.constant(y).is_none())?;
    if r.constant(x) == Some(1.0) {
        return None;
    }
    let one = r.full(1.0, &r.ty(of[0]).clone())?;
    let reciprocal = r.binary(Binary::Div, one, of[0])?;
    let spread = r.add(spread, &[reciprocal])?;
    r.binary(Binary::Mul, x, spread)
}

fn divisor_outward(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let value = r.lookup(Binary::Mul, &term.operands)?;
    if r.form(value, "div").is_some() {
        return None;
    }
    for (x, y) in [(0, 1), (1, 0)].map(|(i, j)| (term.operands[i], term.operands[j])) {
        let found = r.forms(x, "div").into_iter().find(|div| !r.broadcasts(div.operands[1]).is_empty());
        if let Some(div) = found {
            let product = r.binary(Binary::Mul, div.operands[0], y)?;
            return r.binary(Binary::Div, product, div.operands[1]);
        }
    }
    None
}

fn known_quotient(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    for (x, y) in [(0, 1), (1, 0)].map(|(i, j)| (term.operands[i], term.operands[j])) {
        for div in r.forms(x, "div") {
            if let Some(quotient) = r.lookup(Binary::Div, &[y, div.operands[1]]) {
                return r.binary(Binary::Mul, div.operands[0], quotient);
            }
        }
    }
    None
}

fn exp_log_rows(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    for sub in r.forms(term.operands[0], "sub") {
        for (spread, of) in r.broadcasts(sub.operands[1]) {
            if let Some(log) = r.form(of[0], "log") {
                let divisor = r.add(spread, &[log.operands[0]])?;
                let exp = r.unary(Unary::Exp, sub.operands[0])?;
                return r.binary(Binary::Div, exp, divisor);
            }
        }
    }
    None
}

fn scale_rows(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let [x, y] = term.operands[..] else { return None };
    let (product, number) = match (r.constant(x), r.constant(y)) {
        (None, Some(_)) => (x, y),
        (Some(_), None) => (y, x),
        _ => return None,
    };
    for mul in r.forms(product, "mul") {
        for (rows, other) in [(0, 1), (1, 0)].map(|(i, j)| (mul.operands[i], mul.operands[j])) {
            let found = r.broadcasts(rows).into_iter().next().filter(|_| r.constant(rows).is_none());
            if let Some((spread, of)) = found {
                let number = r.constant_as(number, &r.shape(of[0]))?;
                let scaled = r.binary(Binary::Mul, of[0], number)?;
                let rows = r.add(spread, &[scaled])?;
                return r.binary(Binary::Mul, rows, other);
            }
        }
    }
    None
}

fn cast_same(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::Cast(cast)) = &term.head else { return None };
    (r.ty(term.operands[0]).dtype == cast.dtype).then_some(term.operands[0])
}

fn cast_cast(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::Cast(outer)) = &term.head else { return None };
    let is_direct = |inner: DType, x: Id| {
        let from = r.ty(x).dtype;
        // Bytes are worth their conversion: they take a quarter of the memory, and are multiplied faster.
        let fits =
            |dtype: DType| dtype != DType::I8 && r.largest_whole(x).is_some_and(|x| has_room(dtype, x));
        let has_all = |dtype: DType| holds(dtype, from) || fits(dtype);
        let is_alike = is_clamped(inner, outer.dtype) == is_clamped(from, outer.dtype);
        has_all(inner) && (has_all(outer.dtype) || is_alike)
    };
    let (_, of) = r.casts(term.operands[0]).into_iter().find(|(inner, of)| is_direct(inner.dtype, of[0]))?;
    r.cast(of[0], outer.dtype)
}

fn whole_stays(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let x = term.operands[0];
    r.largest_whole(x).map(|_| x)
}

fn whole_sub_add(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let [x, y] = term.operands[..] else { return None };
    undone(r, "sub", x, y).or_else(|| undone(r, "sub", y, x))
}

fn whole_add_sub(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let [sum, y] = term.operands[..] else { return None };
    undone(r, "add", sum, y)
}

/// The whole number that y was added to or subtracted from, if the sum was not rounded.
fn undone(r: &Rewriter<'_>, op: &str, sum: Id, y: Id) -> Option<Id> {
    let is_exact = |x: Id| Some(has_room(r.ty(x).dtype, r.largest_whole(x)? + r.largest_whole(y)?));
    let sides: &[(usize, usize)] = if op == "add" { &[(0, 1), (1, 0)] } else { &[(0, 1)] };
    let of = |sum: &Term| {
        let mut sides = sides.iter().map(|&(x, y)| (sum.operands[x], sum.operands[y]));
        sides.find(|&(x, other)| r.same(other, y) && is_exact(x) == Some(true)).map(|(x, _)| x)
    };
    r.named(sum, op).find_map(of)
}

/// Whether a dtype has all whole numbers up to this magnitude.
fn has_room(dtype: DType, magnitude: f64) -> bool {
    dtype.lowest() <= -magnitude && magnitude <= dtype.largest_whole()
}

/// Whether numbers that a dtype does not have become its nearest one: those of floats do, while whole numbers keep their lowest bits.
fn is_clamped(from: DType, to: DType) -> bool {
    from.is_float() && !to.is_float() && to != DType::Bool
}

/// Whether every value of `part` is one of `whole`.
fn holds(whole: DType, part: DType) -> bool {
    match part {
        DType::Bool => true,
        DType::BF16 | DType::F16 => matches!(whole, DType::F32 | DType::F64) || whole == part,
        DType::I8 => whole == part || whole == DType::I32 || whole.is_float(),
        DType::F32 | DType::I32 | DType::U32 => whole == DType::F64 || whole == part,
        DType::F64 => whole == part,
    }
}
