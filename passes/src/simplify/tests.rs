//! Every rule on random tensors: both sides, and whatever else a rule adds to the e-graph, are evaluated.

use super::language::Terms;
use super::pattern::Pattern;
use super::region::regions;
use super::rules::{Rule, all};
use super::solution::{Rebuilding, Solution, Start, saturate};
use super::{Options, Rounding, Writer};
use kernfusion_ir::evaluate::{Array, Precision, evaluate_all, evaluate_arrays};
use kernfusion_ir::random::philox4x32;
use kernfusion_ir::samples::{difference, random_graph};
use kernfusion_ir::{
    Binary, Builder, DType, Graph, InputRole, Op, Origin, Tensor, TensorType, Unary, ValueId,
};
use std::collections::BTreeMap;

/// Inputs of all samples; `float` is the dtype that the rule's class asks for.
const INPUTS: &str = r#"
    %a = input {name = "a", dtype = float, shape = [2, 3, 4]}
    %b = input {name = "b", dtype = float, shape = [2, 3, 4]}
    %m = input {name = "m", dtype = float, shape = [3, 4]}
    %n = input {name = "n", dtype = float, shape = [4, 5]}
    %o = input {name = "o", dtype = float, shape = [5, 3]}
    %n2 = input {name = "n2", dtype = float, shape = [4, 5]}
    %w = state {name = "w", dtype = float, shape = [4, 5]}
    %v = state {name = "v", dtype = float, shape = [4, 2]}
    %two = state {name = "two", dtype = float, shape = [2]}
    %three = state {name = "three", dtype = float, shape = [3]}
    %rows = input {name = "rows", dtype = float, shape = [2, 3]}
    %rows2 = input {name = "rows2", dtype = float, shape = [2, 3]}
    %ends = input {name = "ends", dtype = float, shape = [4]}
    %s = input {name = "s", dtype = float, shape = []}
    %i = input {name = "i", dtype = i32, shape = [2, 3]}
    %c = input {name = "c", dtype = bool, shape = [2, 3, 4]}
    %half = constant {value = 0.5, dtype = float}
    %halves = broadcast %half {shape = [2, 3, 4], axes = []}
    %zero = constant {value = 0, dtype = float}
    %zeros = broadcast %zero {shape = [2, 3, 4], axes = []}
    %b0 = broadcast %rows {shape = [2, 3, 4], axes = [0, 1]}
    %b1 = broadcast %rows2 {shape = [2, 3, 4], axes = [0, 1]}
    %place = iota {dtype = i32, shape = [2, 3, 4], axis = 2}
    %target = broadcast %i {shape = [2, 3, 4], axes = [0, 1]}
    %hit = eq %place, %target
"#;

/// A product of a [2, 3, 4] with a matrix [4, 5].
const LINEAR: &str =
    "{lhs_batch = [], rhs_batch = [], lhs_contract = [2], rhs_contract = [0], dtype = float}";
/// A product of two matrices.
const MATRIX: &str =
    "{lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [0], dtype = float}";

/// A program on which each rule that is no pattern fires. Statements are separated by `;`, the result is %y, and %z if there is one.
#[rustfmt::skip]
const SAMPLES: &[(&str, &str)] = &[
    // Arithmetic.
    ("mul-neg",                  "%1 = neg %a; %y = mul %1, %b; %2 = neg %b; %z = mul %b0, %2"),
    ("div-neg",                  "%1 = neg %a; %y = div %1, %b; %2 = neg %b; %z = div %b0, %2"),
    ("scale-scale",              "%1 = mul %a, %halves; %y = mul %1, %halves"),
    ("scales-meet",              "%1 = mul %a, %halves; %2 = mul %b, %halves; %y = mul %1, %2"),
    ("scale-over-product",       "%1 = mul %a, %halves; %2 = mul %1, %b; %y = mul %2, %halves"),
    ("reciprocal-of-rows",       "%y = div %a, %b0"),
    ("divisor-outward",          "%1 = div %a, %b0; %y = mul %1, %b"),
    ("known-quotient",           "%1 = div %a, %b0; %z = div %b, %b0; %y = mul %1, %b"),
    ("exp-log-rows",             "%1 = log %rows; %2 = broadcast %1 {shape = [2, 3, 4], axes = [0, 1]}; %3 = sub %a, %2; %y = exp %3"),
    ("scale-rows",               "%1 = mul %b0, %a; %y = mul %1, %halves"),
    ("cast-same",                "%y = cast %a {dtype = float}"),
    ("cast-cast",                "%1 = cast %i {dtype = f64}; %y = cast %1 {dtype = f32}; %2 = cast %a {dtype = i8}; %3 = cast %2 {dtype = float}; %4 = mul %3, %3; %5 = cast %4 {dtype = i32}; %z = cast %5 {dtype = float}"),
    ("round-whole",              "%1 = cast %c {dtype = float}; %2 = constant {value = 3, dtype = float}; %3 = broadcast %2 {shape = [2, 3, 4], axes = []}; %4 = sub %1, %3; %y = round %4"),
    ("whole-sub-add",            "%1 = cast %c {dtype = float}; %2 = constant {value = 3, dtype = float}; %3 = broadcast %2 {shape = [2, 3, 4], axes = []}; %4 = sub %1, %3; %y = add %3, %4"),
    ("whole-add-sub",            "%1 = cast %c {dtype = float}; %2 = constant {value = 3, dtype = float}; %3 = broadcast %2 {shape = [2, 3, 4], axes = []}; %4 = add %3, %1; %y = sub %4, %3"),
    ("floor-whole",              "%1 = round %a; %2 = max %1, %zeros; %y = floor %2"),
    // Movement.
    ("reshape-reshape",          "%1 = reshape %a {shape = [6, 4]}; %y = reshape %1 {shape = [3, 8]}"),
    ("reshape-same",             "%y = reshape %a {shape = [2, 3, 4]}"),
    ("reshape-broadcast",        "%1 = broadcast %ends {shape = [2, 3, 4], axes = [2]}; %y = reshape %1 {shape = [6, 1, 4]}"),
    ("permute-permute",          "%1 = permute %a {axes = [2, 0, 1]}; %y = permute %1 {axes = [0, 2, 1]}"),
    ("permute-same",             "%y = permute %a {axes = [0, 1, 2]}"),
    ("permute-units",            "%1 = reshape %a {shape = [2, 1, 3, 4]}; %y = permute %1 {axes = [0, 2, 3, 1]}"),
    ("permute-broadcast",        "%1 = broadcast %rows {shape = [2, 4, 3], axes = [0, 2]}; %y = permute %1 {axes = [2, 1, 0]}"),
    ("broadcast-broadcast",      "%1 = broadcast %ends {shape = [3, 4], axes = [1]}; %y = broadcast %1 {shape = [3, 2, 4], axes = [0, 2]}"),
    ("broadcast-same",           "%y = broadcast %a {shape = [2, 3, 4], axes = [0, 1, 2]}"),
    ("broadcast-units",          "%1 = reshape %rows {shape = [2, 1, 3]}; %y = broadcast %1 {shape = [2, 1, 3, 5], axes = [0, 1, 2]}"),
    ("broadcast-neg",            "%1 = neg %rows; %y = broadcast %1 {shape = [2, 3, 4], axes = [0, 1]}"),
    ("broadcast-quotient",       "%1 = div %rows2, %rows; %2 = broadcast %1 {shape = [2, 3, 4], axes = [0, 1]}; %y = sub %b0, %2"),
    ("slice-slice",              "%1 = slice %a {start = [0, 1, 1], end = [2, 3, 4]}; %y = slice %1 {start = [1, 0, 1], end = [2, 2, 3]}"),
    ("slice-same",               "%y = slice %a {start = [0, 0, 0], end = [2, 3, 4]}"),
    ("slice-broadcast",          "%y = slice %b0 {start = [1, 0, 1], end = [2, 2, 3]}"),
    ("slice-permute",            "%1 = permute %a {axes = [2, 0, 1]}; %y = slice %1 {start = [1, 0, 1], end = [3, 2, 3]}"),
    ("slice-pad",                "%1 = pad %a {low = [1, 0, 2], high = [0, 1, 0], value = 0.5}; %y = slice %1 {start = [1, 1, 3], end = [2, 3, 5]}; %z = slice %1 {start = [0, 0, 1], end = [3, 2, 2]}"),
    ("slice-concat",             "%1 = concat %a, %b {axis = 2}; %y = slice %1 {start = [0, 1, 5], end = [2, 3, 7]}"),
    ("slice-iota",               "%1 = slice %place {start = [0, 1, 0], end = [2, 3, 3]}; %y = cast %1 {dtype = float}"),
    ("permute-iota",             "%1 = permute %place {axes = [2, 0, 1]}; %y = cast %1 {dtype = float}"),
    ("broadcast-iota",           "%1 = broadcast %place {shape = [2, 5, 3, 4], axes = [0, 2, 3]}; %y = cast %1 {dtype = float}"),
    ("gather-scaled",            "%i1 = iota {dtype = i32, shape = [3], axis = 0}; %1 = mul %a, %b0; %y = gather %1, %i1 {axis = 1}; %2 = mul %halves, %b; %z = gather %2, %i1 {axis = 0}"),
    ("pad-pad",                  "%1 = pad %m {low = [1, 0], high = [0, 2], value = 0.5}; %y = pad %1 {low = [0, 3], high = [1, 1], value = 0.5}"),
    ("pad-nothing",              "%y = pad %m {low = [0, 0], high = [0, 0], value = 0.5}"),
    ("concat-one",               "%y = concat %m {axis = 1}"),
    ("concat-concat",            "%1 = concat %a, %b {axis = 1}; %y = concat %b, %1, %a {axis = 1}"),
    ("concat-slices",            "%1 = slice %a {start = [0, 0, 1], end = [2, 3, 2]}; %2 = slice %a {start = [0, 0, 2], end = [2, 3, 4]}; %y = concat %1, %2 {axis = 2}"),
    ("sum-of-pads",              "%1 = pad %m {low = [6, 0], high = [0, 0], value = 0}; %2 = pad %m {low = [1, 0], high = [5, 0], value = 0}; %3 = slice %m {start = [0, 0], end = [1, 4]}; %4 = pad %3 {low = [4, 0], high = [4, 0], value = 0}; %5 = add %1, %2; %y = add %5, %4"),
    // Reductions.
    ("reduce-nothing",           "%1 = reshape %a {shape = [2, 1, 12]}; %y = reduce %1 {op = sum, axes = [1, 2]}; %z = reduce %a {op = max, axes = []}"),
    ("sum-neg",                  "%1 = neg %a; %y = reduce %1 {op = sum, axes = [1]}"),
    ("max-neg",                  "%1 = neg %a; %y = reduce %1 {op = max, axes = [1]}; %z = reduce %1 {op = min, axes = [0]}"),
    ("max-max-axes",             "%1 = reduce %a {op = max, axes = [1]}; %y = reduce %1 {op = max, axes = [0]}"),
    ("sum-sum-axes",             "%1 = reduce %a {op = sum, axes = [1]}; %y = reduce %1 {op = sum, axes = [1]}"),
    ("max-permute",              "%1 = permute %a {axes = [2, 0, 1]}; %y = reduce %1 {op = max, axes = [1]}"),
    ("sum-permute",              "%1 = permute %a {axes = [2, 0, 1]}; %y = reduce %1 {op = sum, axes = [2]}"),
    ("max-broadcast",            "%y = reduce %b0 {op = min, axes = [1, 2]}"),
    ("sum-broadcast",            "%y = reduce %b0 {op = sum, axes = [0, 2]}"),
    ("sum-scale",                "%1 = mul %a, %b0; %y = reduce %1 {op = sum, axes = [2]}"),
    ("sum-quotient",             "%1 = div %a, %b0; %y = reduce %1 {op = sum, axes = [2]}"),
    ("sum-of-products",          "%1 = broadcast %m {shape = [5, 3, 4], axes = [1, 2]}; %2 = permute %n {axes = [1, 0]}; %3 = broadcast %2 {shape = [5, 3, 4], axes = [0, 2]}; %4 = mul %1, %3; %y = reduce %4 {op = sum, axes = [2]}"),
    ("sum-of-windowed-dot",      "%1 = windows %a {places = [2], stride = [1], dilation = [1]}; %2 = permute %1 {axes = [0, 1, 3, 2]}; %3 = reshape %2 {shape = [2, 6, 3]}; %4 = slice %b {start = [0, 0, 0], end = [2, 3, 3]}; %5 = dot_general %4, %3 {lhs_batch = [0], rhs_batch = [0], lhs_contract = [2], rhs_contract = [2], dtype = float}; %y = reduce %5 {op = sum, axes = [0]}; %6 = dot_general %3, %4 {lhs_batch = [0], rhs_batch = [0], lhs_contract = [2], rhs_contract = [2], dtype = float}; %z = reduce %6 {op = sum, axes = [0, 2]}"),
    // Products.
    ("dot-of-permute",           "%1 = permute %a {axes = [1, 0, 2]}; %y = dot_general %1, %n LINEAR; %2 = permute %n {axes = [1, 0]}; %z = dot_general %a, %2 {lhs_batch = [], rhs_batch = [], lhs_contract = [2], rhs_contract = [1], dtype = float}"),
    ("dot-of-reshape",           "%1 = reshape %a {shape = [6, 4]}; %y = dot_general %1, %n MATRIX; %2 = reshape %b {shape = [6, 4]}; %z = dot_general %n, %2 {lhs_batch = [], rhs_batch = [], lhs_contract = [0], rhs_contract = [1], dtype = float}"),
    ("dot-of-broadcast",         "%1 = broadcast %n {shape = [2, 4, 5], axes = [1, 2]}; %y = dot_general %a, %1 {lhs_batch = [0], rhs_batch = [0], lhs_contract = [2], rhs_contract = [1], dtype = float}; %2 = broadcast %m {shape = [3, 7, 4], axes = [0, 2]}; %z = dot_general %2, %n LINEAR"),
    ("dot-of-repeated-terms",    "%y = dot_general %b0, %n LINEAR"),
    ("dot-of-neg",               "%1 = neg %a; %y = dot_general %1, %n LINEAR"),
    ("dot-of-scaled",            "%1 = mul %a, %b0; %y = dot_general %1, %n LINEAR; %2 = mul %a, %halves; %z = dot_general %2, %n LINEAR"),
    ("dot-of-quotient",          "%1 = div %a, %b0; %y = dot_general %1, %n LINEAR"),
    ("dot-of-dot",               "%1 = dot_general %a, %n LINEAR; %y = dot_general %1, %o LINEAR; %2 = dot_general %n, %o MATRIX; %z = dot_general %m, %2 MATRIX"),
    ("dot-of-one-hot",           "%1 = cast %hit {dtype = float}; %y = dot_general %1, %n LINEAR; %z = dot_general %n2, %1 {lhs_batch = [], rhs_batch = [], lhs_contract = [0], rhs_contract = [2], dtype = float}"),
    ("permute-of-dot",           "%1 = dot_general %a, %n LINEAR; %y = permute %1 {axes = [2, 0, 1]}"),
    ("dot-mirrored",             "%y = dot_general %n, %a {lhs_batch = [], rhs_batch = [], lhs_contract = [0], rhs_contract = [2], dtype = float}"),
    ("slice-of-dot",             "%1 = dot_general %a, %n LINEAR; %y = slice %1 {start = [0, 2, 1], end = [2, 3, 4]}"),
    ("scale-into-dot-left",      "%1 = dot_general %m, %n MATRIX; %2 = broadcast %half {shape = [3, 5], axes = []}; %y = mul %1, %2"),
    ("scale-into-dot-right",     "%1 = dot_general %m, %n MATRIX; %2 = broadcast %half {shape = [3, 5], axes = []}; %y = mul %1, %2"),
    ("sum-of-dots",              "%1 = dot_general %a, %n LINEAR; %2 = dot_general %a, %n2 LINEAR; %y = add %1, %2; %3 = dot_general %b, %n LINEAR; %z = add %1, %3"),
    ("sibling-dots-right",       "%y = dot_general %a, %w LINEAR; %z = dot_general %a, %v LINEAR"),
    ("sibling-dots-left",        "%y = dot_general %w, %a {lhs_batch = [], rhs_batch = [], lhs_contract = [0], rhs_contract = [2], dtype = float}; %z = dot_general %v, %a {lhs_batch = [], rhs_batch = [], lhs_contract = [0], rhs_contract = [2], dtype = float}"),
    ("sibling-sums",             "%1 = dot_general %a, %w LINEAR; %2 = slice %1 {start = [0, 0, 0], end = [2, 3, 2]}; %3 = slice %1 {start = [0, 0, 2], end = [2, 3, 5]}; %4 = broadcast %two {shape = [2, 3, 2], axes = [2]}; %5 = broadcast %three {shape = [2, 3, 3], axes = [2]}; %y = add %2, %4; %z = add %5, %3"),
    // Choices.
    ("mask-product",             "%1 = cast %c {dtype = float}; %y = mul %a, %1"),
    ("picked-sum",               "%1 = sub %a, %b; %2 = select %hit, %1, %zeros; %y = reduce %2 {op = sum, axes = [2]}"),
    ("picked-row",               "%1 = select %hit, %b0, %zeros; %y = reduce %1 {op = sum, axes = [2]}"),
    ("picked-neg",               "%1 = neg %a; %2 = select %hit, %1, %zeros; %y = reduce %2 {op = sum, axes = [2]}"),
    ("picked-scale",             "%1 = mul %a, %b0; %2 = select %hit, %1, %zeros; %y = reduce %2 {op = sum, axes = [2]}"),
    // Elementwise.
    ("elementwise-of-broadcasts", "%1 = add %b0, %b1; %2 = broadcast %ends {shape = [2, 3, 4], axes = [2]}; %y = mul %b0, %halves; %z = exp %2"),
    ("elementwise-of-permutes",  "%1 = permute %a {axes = [2, 0, 1]}; %2 = permute %b {axes = [2, 0, 1]}; %y = add %1, %2; %3 = broadcast %rows {shape = [4, 2, 3], axes = [1, 2]}; %z = mul %1, %3"),
    ("elementwise-of-reshapes",  "%1 = reshape %a {shape = [6, 4]}; %2 = reshape %b {shape = [6, 4]}; %y = add %1, %2; %3 = broadcast %ends {shape = [6, 4], axes = [1]}; %z = mul %1, %3"),
    ("slice-of-elementwise",     "%1 = mul %a, %b; %y = slice %1 {start = [0, 1, 1], end = [1, 3, 4]}"),
];

/// Random values; exact rules also see infinities, NaN and zeros.
fn values(name: &str, ty: &TensorType, strange: bool) -> Array {
    let key = name.bytes().fold(11u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let value = |i: usize| {
        let [bits, kind, ..] = philox4x32([i as u32, 0, 0, 0], [key, 5]);
        let unit = f64::from(bits) / f64::from(u32::MAX);
        let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0];
        match ty.dtype {
            DType::Bool => f64::from(bits % 2),
            DType::I32 => f64::from(bits % 7) - 1.0,
            // Positive where a rule divides or takes logarithms; the rules do not depend on signs.
            dtype if strange && kind % 4 == 0 => dtype.round(special[(kind / 4 % 5) as usize]),
            dtype if strange => dtype.round(unit * 4.0 - 2.0),
            dtype => dtype.round(unit + 0.5),
        }
    };
    Array { ty: ty.clone(), values: (0..ty.elements()).map(value).collect() }
}

fn sample_graph(text: &str, float: &str) -> Graph {
    let lines: String = text.split(';').map(|line| format!("{}\n", line.trim())).collect();
    let second = if lines.contains("%z = ") { "output \"z\" = %z\n" } else { "" };
    let text = format!("graph \"sample\" {{{INPUTS}{lines}output \"y\" = %y\n{second}}}");
    let text = text.replace("LINEAR", LINEAR).replace("MATRIX", MATRIX).replace("float", float);
    let mut graph = Graph::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    graph.verify().unwrap_or_else(|error| panic!("{error}\n{text}"));
    crate::dce::remove_dead_code(&mut graph).expect("a valid graph");
    graph
}

/// The left side of a pattern as a program, names being inputs.
fn pattern_graph(left: &Pattern, dtype: DType) -> Graph {
    let mut graph = Graph::new("pattern");
    let mut b = Builder::new(&mut graph, Origin::default());
    let mut names = BTreeMap::new();
    let y = write_pattern(&mut b, left, dtype, &mut names);
    graph.output("y", y);
    graph
}

fn write_pattern(
    b: &mut Builder<'_>,
    pattern: &Pattern,
    dtype: DType,
    names: &mut BTreeMap<usize, ValueId>,
) -> ValueId {
    let ty = TensorType::new(dtype, [3, 5]);
    match pattern {
        Pattern::Any(name) => match names.get(name) {
            Some(&id) => id,
            None => {
                let id = b.input(&format!("x{name}"), InputRole::Data, ty).expect("a new name");
                names.insert(*name, id);
                id
            }
        },
        Pattern::AnyNumber(name) => *names
            .entry(*name)
            .or_insert_with(|| b.full([2.0, 4.0, 8.0][*name % 3], &ty).expect("a number of the dtype")),
        Pattern::Number(number) => b.full(*number, &ty).expect("a number of the dtype"),
        Pattern::Apply(op, operands) => {
            let dtype_of =
                |slot: usize| if matches!(op, Op::Select(_)) && slot == 0 { DType::Bool } else { dtype };
            let ids: Vec<_> = operands
                .iter()
                .enumerate()
                .map(|(slot, operand)| write_pattern(b, operand, dtype_of(slot), names))
                .collect();
            b.op(op.clone(), &ids).expect("the pattern fits its dtype")
        }
    }
}

/// Applies one rule alone and evaluates every program that can then be chosen.
fn check(rule: &Rule, graph: &Graph) {
    let name = rule.name;
    let (region, rest) = {
        let mut all = regions(graph).into_iter();
        (all.next().expect("a region"), all.count())
    };
    assert_eq!(rest, 0, "{name}: the sample is one region");
    let mut start = Start::new(&region.shape);
    let saturation = saturate(
        &mut start.terms,
        std::slice::from_ref(rule),
        &Options { iterations: 2, ..Options::default() },
    );
    assert!(saturation.fired[0] > 0, "{name} does not fire on its sample");
    let (extraction, original) = start.extraction();
    let mut programs = 0;
    for (class, forms) in extraction.forms().into_iter().enumerate() {
        for form in 0..forms {
            let mut choice = original.clone();
            choice[class] = form;
            if extraction.order(&choice).is_none_or(|order| !order.contains(&class)) {
                continue;
            }
            let (steps, outputs) = Rebuilding::of(&start, &extraction, &choice, &saturation.finders);
            let mut writer = Writer::new(graph);
            let solution = Solution { steps, outputs, fired: vec![], cost: (0.0, 0.0) };
            writer.write(&region, &solution).expect("a program of the e-graph fits");
            programs += 1;
            compare(rule, graph, &writer.finish());
        }
    }
    assert!(programs > 0, "{name}: nothing to evaluate");
}

fn compare(rule: &Rule, expected: &Graph, got: &Graph) {
    let exact = rule.rounding == Rounding::Exact;
    for strange in [false, true].into_iter().filter(|strange| exact || !strange) {
        let inputs: BTreeMap<_, _> = expected
            .inputs()
            .map(|(id, name, _)| (name.to_string(), values(name, &expected[id].ty, strange)))
            .collect();
        let precision = if exact { Precision::Declared } else { Precision::Double };
        let evaluated = |graph: &Graph| evaluate_arrays(graph, inputs.clone(), precision).expect("evaluates");
        let (wanted, found) = (evaluated(expected), evaluated(got));
        for (output, wanted) in &wanted {
            let tolerance = if exact { 0.0 } else { 1e-12 };
            let off = difference(&wanted.values, &found[output].values, tolerance);
            assert!(off.is_none(), "{} ({}): {off:?}\n{expected}\n{got}", rule.name, rule.formula);
        }
    }
}

#[test]
fn every_rule_is_right() {
    let samples: BTreeMap<_, _> = SAMPLES.iter().copied().collect();
    assert_eq!(samples.len(), SAMPLES.len(), "a sample for each name");
    let rules = all();
    for rule in &rules {
        let float = if rule.rounding == Rounding::Exact { DType::F32 } else { DType::F64 };
        if let Some((left, on)) = rule.left() {
            let fits = |dtype: &DType| on(*dtype) && takes(left, *dtype);
            let dtypes: Vec<_> = [float, DType::I32, DType::Bool].into_iter().filter(fits).collect();
            assert!(!dtypes.is_empty(), "{} is for no dtype", rule.name);
            dtypes.into_iter().for_each(|dtype| check(rule, &pattern_graph(left, dtype)));
        } else {
            let text = samples.get(rule.name).unwrap_or_else(|| panic!("{} has no sample", rule.name));
            check(rule, &sample_graph(text, float.name()));
        }
    }
    let named = |name: &str| rules.iter().any(|rule| rule.name == name);
    SAMPLES.iter().for_each(|(name, _)| assert!(named(name), "there is no rule {name}"));
}

/// Whether the ops of a pattern are defined on a dtype, and its numbers are values of it.
fn takes(pattern: &Pattern, dtype: DType) -> bool {
    match pattern {
        Pattern::Apply(op, operands) => {
            let ty = TensorType::new(dtype, [1]);
            let condition = ty.with_dtype(DType::Bool);
            let types: Vec<_> = match op {
                Op::Select(_) => vec![&condition, &ty, &ty],
                _ => operands.iter().map(|_| &ty).collect(),
            };
            let first = usize::from(matches!(op, Op::Select(_)));
            let inner = |slot: usize| if slot < first { DType::Bool } else { dtype };
            let fits = operands.iter().enumerate().all(|(slot, operand)| takes(operand, inner(slot)));
            op.infer(&types).is_ok() && fits
        }
        Pattern::Number(number) => dtype.round(*number) == *number,
        Pattern::AnyNumber(_) => dtype != DType::Bool,
        Pattern::Any(_) => true,
    }
}

#[test]
fn names_of_rules_are_unique_and_their_mathematics_is_written_down() {
    let rules = super::rules();
    let names: std::collections::BTreeSet<_> = rules.iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), rules.len());
    assert!(rules.iter().all(|(_, _, formula)| formula.contains('=') || formula.contains(" is ")));
}

/// The program's own order of operands makes no second form.
#[test]
fn commuted_terms_are_one() {
    let mut graph = Graph::new("commuted");
    let mut b = Builder::new(&mut graph, Origin::default());
    let ty = TensorType::new(DType::F32, [2]);
    let [x, y] = ["x", "y"].map(|name| b.input(name, InputRole::Data, ty.clone()).expect("input"));
    let sum = b.binary(Binary::Add, y, x).expect("add");
    let negative = b.unary(Unary::Neg, sum).expect("neg");
    graph.output("y", negative);
    let mut start = Start::new(&regions(&graph)[0].shape);
    let before: usize = start.terms.total_size();
    let mut rewriter = super::rewriter::Rewriter::new(&mut start.terms, 100);
    let operands: Vec<_> = rewriter.all("add")[0].1.operands.iter().rev().copied().collect();
    rewriter.binary(Binary::Add, operands[0], operands[1]).expect("fits");
    let terms: &Terms = &start.terms;
    assert_eq!(terms.total_size(), before);
}

#[test]
fn whole_numbers_are_no_larger_than_is_said() {
    let mut bounded_floats = 0;
    for seed in 0..400 {
        let (graph, inputs) = random_graph(seed, 40);
        let array = |tensor: &Tensor| Array { ty: tensor.ty().clone(), values: tensor.to_f64() };
        let inputs = inputs.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
        let values = evaluate_all(&graph, inputs, Precision::Declared).expect("evaluates");
        for ((id, bound), value) in graph.ids().zip(super::largest_whole(&graph)).zip(values) {
            let Some(bound) = bound else { continue };
            let is_within = |x: &f64| x.abs() <= bound && x.fract() == 0.0;
            let is_unknown = |x: &f64| bound == f64::INFINITY && !x.is_finite();
            let holds = value.values.iter().all(|x| is_within(x) || is_unknown(x));
            assert!(holds, "{id:?} of {graph} has {bound}, is {:?}", value.values);
            bounded_floats += usize::from(graph[id].ty.dtype.is_float() && bound.is_finite());
        }
    }
    assert!(bounded_floats > 100, "{bounded_floats} values of floats are known to be whole");
}

/// Differences of numbers without a sign wrap, and numbers of too many digits are rounded up.
#[test]
fn whole_numbers_that_wrap_or_are_rounded_are_larger() {
    let mut graph = Graph::new("larger");
    let mut b = Builder::new(&mut graph, Origin::default());
    let number = |b: &mut Builder<'_>, value: f64| {
        b.input(&format!("{value}"), InputRole::Data, TensorType::new(DType::I8, [1]))
    };
    let (three, five) = (number(&mut b, 3.0).unwrap(), number(&mut b, 5.0).unwrap());
    let [x, y] = [three, five].map(|x| b.cast(x, DType::U32).unwrap());
    let wrapped = b.sub(x, y).unwrap();
    let float = b.cast(five, DType::F32).unwrap();
    let least = number(&mut b, -128.0).unwrap();
    let (bytes, offset) = (b.cast(least, DType::F32).unwrap(), b.full_like(131.0, float).unwrap());
    let difference = b.sub(bytes, offset).unwrap();
    let narrow = b.cast(difference, DType::BF16).unwrap();
    let bounds = super::largest_whole(&graph);
    let array = |id: ValueId, name: &str| {
        (name.to_string(), Array { ty: graph[id].ty.clone(), values: vec![name.parse().unwrap()] })
    };
    let inputs = graph.inputs().map(|(id, name, _)| array(id, name)).collect();
    let values = evaluate_all(&graph, inputs, Precision::Declared).unwrap();
    for (id, expected) in [(wrapped, 4_294_967_294.0), (narrow, -260.0)] {
        let (value, bound) = (values[id.index()].values[0], bounds[id.index()].unwrap());
        assert!(
            value == expected && value.abs() <= bound,
            "{value} where {expected} is expected, at most {bound}"
        );
    }
}
