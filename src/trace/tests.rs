//! Values, gradients, errors and random numbers of traced operations.

use super::*;
use crate::testing::{assert_close, check_gradients, evaluate, random, value};
use kernfusion_ir::{Op, Reduce};

const NAN: f64 = f64::NAN;

/// The first mistake on a trace, as users read it.
fn message(trace: &Trace) -> String {
    trace.finish(&[]).expect_err("a mistake was made").to_string()
}

#[test]
fn operators_broadcast_as_numpy_does() {
    let (a, b) = (vec![1.0, 2.0, 3.0], vec![10.0, 20.0]);
    let inputs: [(&[usize], _); 2] = [(&[3], a), (&[2, 1], b)];
    let run = |build: fn(&Tensor, &Tensor) -> Tensor| value(&inputs, |_, x| build(&x[0], &x[1]));
    assert_eq!(run(|a, b| a + b), [11.0, 12.0, 13.0, 21.0, 22.0, 23.0]);
    assert_eq!(run(|a, b| 2 - a * b.clone()), [-8.0, -18.0, -28.0, -18.0, -38.0, -58.0]);
    assert_eq!(
        run(|a, b| (b / 2 + 1 - 1.0).maximum(0.5f32) / a),
        [5.0, 2.5, 5.0 / 3.0, 10.0, 5.0, 10.0 / 3.0]
    );
    assert_eq!(run(|a, b| b.clone() - a), [9.0, 8.0, 7.0, 19.0, 18.0, 17.0]);
    assert_eq!(run(|a, b| 2.0 - a * b.clone()), [-8.0, -18.0, -28.0, -18.0, -38.0, -58.0]);
    assert_eq!(run(|a, b| (b / 2.0) / a), [5.0, 2.5, 5.0 / 3.0, 10.0, 5.0, 10.0 / 3.0]);
    assert_eq!(run(|a, b| -(6.0 / a).maximum(b - 17.0)), [-6.0, -3.0, -2.0, -6.0, -3.0, -3.0]);
    assert_eq!(run(|a, b| a.gt(1.5).select(a, b)), [10.0, 2.0, 3.0, 20.0, 2.0, 3.0]);
}

#[test]
fn functions_have_their_values_and_gradients() {
    let x = vec![0.3, 0.9, 1.7, 2.4];
    type Function = (fn(&Tensor) -> Tensor, fn(f64) -> f64);
    let functions: [Function; 12] = [
        (Tensor::exp, f64::exp),
        (Tensor::log, f64::ln),
        (Tensor::sqrt, f64::sqrt),
        (Tensor::tanh, f64::tanh),
        (Tensor::sin, f64::sin),
        (Tensor::cos, f64::cos),
        (Tensor::recip, f64::recip),
        (|x| x.powf(2.0), |x| x * x),
        (|x| x.powf(1.3), |x| x.powf(1.3)),
        (|x| 2.0 * (x - 1.0).abs(), |x| 2.0 * (x - 1.0).abs()),
        (|x| x.clamp(0.5, 2.0), |x| x.clamp(0.5, 2.0)),
        (|x| x.floor() * x.sign(), f64::floor),
    ];
    for (traced, plain) in functions {
        let inputs: [(&[usize], _); 1] = [(&[4], x.clone())];
        let expected: Vec<_> = x.iter().map(|&x| plain(x)).collect();
        assert_close(&value(&inputs, |_, x| traced(&x[0])), &expected, 1e-14);
        check_gradients(&inputs, |_, x| (traced(&x[0]) * &x[0]).sum_all());
    }
}

#[test]
fn integers_and_truth_values() {
    let trace = Trace::new();
    let x = trace.input("x", [4], DType::U32);
    let even = x.and(trace.full([], 1.0, DType::U32)).eq(0);
    let shifted = x.shift_left(3).xor(&x).shift_right(1);
    let program = trace.finish(&[("odd", &even.not()), ("shifted", &shifted), ("cast", &x.cast(DType::I32))]);
    let results = evaluate(&program.expect("correct"), &[("x", vec![0.0, 1.0, 6.0, 4294967295.0])]);
    assert_eq!(results["odd"], [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(results["shifted"], [0.0, 4.0, 27.0, 3.0]);
    assert_eq!(results["cast"], [0.0, 1.0, 6.0, -1.0]);
}

#[test]
fn reductions_and_moments() {
    let x = random(1, 24, -2.0, 3.0);
    let inputs: [(&[usize], _); 1] = [(&[2, 3, 4], x.clone())];
    let sums = |i: usize, k: usize| (0..3).map(|j| x[i * 12 + j * 4 + k]).sum::<f64>();
    let expected: Vec<_> = (0..8).map(|at| sums(at / 4, at % 4)).collect();
    assert_close(&value(&inputs, |_, x| x[0].sum(&[-2])), &expected, 1e-14);
    let means: Vec<_> = expected.iter().map(|sum| sum / 3.0).collect();
    assert_close(&value(&inputs, |_, x| x[0].mean_keep(&[1])), &means, 1e-14);
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    assert_close(&value(&inputs, |_, x| x[0].std(&[0, 1, -1])), &[variance.sqrt()], 1e-13);
    let largest = x.iter().copied().fold(f64::MIN, f64::max);
    assert_eq!(value(&inputs, |_, x| x[0].max(&[0, 1, 2])), [largest]);
    assert_eq!(value(&inputs, |_, x| -(-&x[0]).min_keep(&[2, 1, 0])), [largest]);
    let trace = Trace::new();
    let x = trace.input("x", [2, 3, 4], DType::F32);
    assert_eq!(x.var_keep(&[0, -1]).shape(), [1, 3, 1]);
    assert_eq!(x.sum_keep(&[1]).shape(), [2, 1, 4]);
    assert_eq!(x.max_keep(&[1]).shape(), [2, 1, 4]);
    assert_eq!(x.std_keep(&[1]).shape(), [2, 1, 4]);
    assert_eq!(x.mean_all().rank(), 0);
    check_gradients(&inputs, |_, x| (x[0].var(&[1]) * x[0].max(&[1])).sum_all());
}

#[test]
fn softmax_is_stable_and_differentiates() {
    let x = random(2, 12, -3.0, 3.0);
    let inputs: [(&[usize], _); 2] = [(&[3, 4], x.clone()), (&[3, 4], random(3, 12, -1.0, 1.0))];
    let total = |j: usize| (0..3).map(|i| x[i * 4 + j].exp()).sum::<f64>();
    let expected: Vec<_> = (0..12).map(|at| x[at].exp() / total(at % 4)).collect();
    assert_close(&value(&inputs, |_, x| x[0].softmax(0)), &expected, 1e-14);
    let logs: Vec<_> = expected.iter().map(|p| p.ln()).collect();
    assert_close(&value(&inputs, |_, x| x[0].log_softmax(-2)), &logs, 1e-14);
    let totals: Vec<_> = (0..4).map(|j| total(j).ln()).collect();
    assert_close(&value(&inputs, |_, x| x[0].logsumexp(0)), &totals, 1e-14);
    let huge: [(&[usize], _); 1] = [(&[3], vec![1000.0, 1000.0, f64::NEG_INFINITY])];
    assert_close(&value(&huge, |_, x| x[0].softmax(0)), &[0.5, 0.5, 0.0], 1e-15);
    assert_close(&value(&huge, |_, x| x[0].logsumexp(0)), &[1000.0 + 2f64.ln()], 1e-15);
    check_gradients(&inputs, |_, x| (x[0].softmax(-1) * &x[1]).sum_all());
    check_gradients(&inputs, |_, x| (x[0].log_softmax(-1) * &x[1]).sum_all());
    check_gradients(&inputs, |_, x| (x[0].logsumexp(1) * x[1].sum(&[1])).sum_all());
}

#[test]
fn argmax_takes_the_first_and_finds_nan() {
    let x = vec![1.0, 5.0, 5.0, 0.0, -1.0, -1.0, -2.0, -3.0, 2.0, NAN, 7.0, NAN];
    assert_eq!(value(&[(&[3, 4], x.clone())], |_, x| x[0].argmax(-1)), [1.0, 0.0, 1.0]);
    assert_eq!(value(&[(&[3, 4], x)], |_, x| x[0].argmax(0)), [2.0, 2.0, 2.0, 2.0]);
}

#[test]
fn movement() {
    let trace = Trace::new();
    let x = trace.arange(24, DType::F32).reshape([2, -1, 4]);
    assert_eq!(x.shape(), [2, 3, 4]);
    let parts = x.split(2, -1);
    let outputs = [
        ("permuted", x.permute(&[2, 0, 1]).index(0, 1)),
        ("transposed", x.transpose(0, -1).slice(1, 2..3).squeeze(1)),
        ("second", parts[1].index(-2, 0)),
        (
            "joined",
            trace.concat(
                &[
                    &x.narrow(0, 1, 1),
                    &parts[0].index(0, 0).reshape([1, 3, 2]).pad(&[(0, 0), (0, 0), (1, 1)], -1.0),
                ],
                1,
            ),
        ),
        ("stacked", trace.stack(&[&x.index(0, 0).sum(&[0]), &trace.ones([4])], -1)),
        ("spread", trace.arange(2, DType::F32).unsqueeze(-1).broadcast_to([2, 2, 3])),
    ];
    let named: Vec<_> = outputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let results = evaluate(&trace.finish(&named).expect("correct"), &[]);
    assert_eq!(results["permuted"], [1.0, 5.0, 9.0, 13.0, 17.0, 21.0]);
    assert_eq!(results["transposed"], [8.0, 20.0, 9.0, 21.0, 10.0, 22.0, 11.0, 23.0]);
    assert_eq!(results["second"], [2.0, 3.0, 14.0, 15.0]);
    let padded = [-1.0, 0.0, 1.0, -1.0, -1.0, 4.0, 5.0, -1.0, -1.0, 8.0, 9.0, -1.0];
    assert_eq!(results["joined"][..12], (12..24).map(f64::from).collect::<Vec<_>>());
    assert_eq!(results["joined"][12..], padded);
    assert_eq!(results["stacked"], [12.0, 1.0, 15.0, 1.0, 18.0, 1.0, 21.0, 1.0]);
    assert_eq!(results["spread"], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
}

#[test]
fn products_broadcast_their_leading_axes() {
    let (a, b) = (random(4, 2 * 3 * 4, -1.0, 1.0), random(5, 5 * 4 * 2, -1.0, 1.0));
    let mut expected = vec![0.0; 2 * 5 * 3 * 2];
    for (at, sum) in expected.iter_mut().enumerate() {
        let [i, j, row, column] = [at / 30, at / 6 % 5, at / 2 % 3, at % 2];
        *sum = (0..4).map(|k| a[i * 12 + row * 4 + k] * b[j * 8 + k * 2 + column]).sum();
    }
    let inputs: [(&[usize], _); 2] = [(&[2, 1, 3, 4], a), (&[5, 4, 2], b)];
    assert_close(&value(&inputs, |_, x| x[0].matmul(&x[1])), &expected, 1e-14);
    let first: Vec<_> = (0..2).flat_map(|i| expected[i * 30..i * 30 + 6].to_vec()).collect();
    assert_close(&value(&inputs, |_, x| x[0].matmul(&x[1].index(0, 0))), &first, 1e-14);
    assert_close(&value(&inputs, |_, x| x[0].linear(&x[1].index(0, 0).transpose(0, 1))), &first, 1e-14);
    check_gradients(&inputs, |_, x| x[0].matmul(&x[1]).tanh().sum_all());
    let transposed = |_: &Trace, x: &[Tensor]| x[0].matmul_transposed(&x[1].transpose(-2, -1));
    assert_close(&value(&inputs, transposed), &expected, 1e-14);
    check_gradients(&inputs, |trace, x| transposed(trace, x).tanh().sum_all());
}

/// A value that is only another view of an operand has a gradient, too.
#[test]
fn gradients_by_a_transposed_operand() {
    let inputs: [(&[usize], _); 2] =
        [(&[2, 3], random(6, 6, -1.0, 1.0)), (&[4, 3], random(7, 12, -1.0, 1.0))];
    let gradient = |_: &Trace, x: &[Tensor]| {
        let columns = x[1].transpose(0, 1);
        x[0].matmul(&columns).sum_all().grad(&[&columns]).remove(0)
    };
    let column_sums = (0..3).flat_map(|k| [inputs[0].1[k] + inputs[0].1[3 + k]; 4]);
    assert_close(&value(&inputs, gradient), &column_sums.collect::<Vec<_>>(), 1e-14);
}

#[test]
fn mixed_precision_rounds_the_operands_of_products_only() {
    let trace = Trace::new();
    trace.set_product_dtype(DType::BF16);
    let (x, w) = (trace.input("x", [2, 3], DType::F32), trace.input("w", [4, 3], DType::F32));
    let y = x.linear(&w);
    let gradient = y.square().sum_all().grad(&[&w]).remove(0);
    assert_eq!((y.dtype(), gradient.ty().to_string().as_str()), (DType::F32, "f32[4,3]"));
    let program = trace.finish(&[("y", &y)]).expect("correct");
    let reads = |id: ValueId| {
        program.graph[id].operands.iter().map(|&x| program.graph[x].ty.dtype).collect::<Vec<_>>()
    };
    let products = program.graph.ids().filter(|&id| matches!(program.graph[id].op, Op::DotGeneral(_)));
    products.for_each(|id| assert_eq!(reads(id), [DType::BF16; 2]));
}

#[test]
fn indexing_and_masks() {
    let trace = Trace::new();
    let table = trace.arange(12, DType::F32).reshape([4, 3]);
    let (i, at) = (trace.input("i", [2], DType::I32), trace.input("at", [], DType::I32));
    let zero = trace.full([], 0.0, DType::I32);
    let outputs = [
        ("rows", table.gather(0, &i)),
        ("columns", table.gather(-1, &i)),
        ("hot", i.one_hot(3, DType::F32)),
        ("lower", table.tril(0)),
        ("upper", table.triu(1)),
        ("eye", trace.eye(2)),
        ("causal", trace.causal_mask(2, 3)),
        ("window", trace.window_mask(2, 4, 2)),
        ("part", table.dynamic_slice(&[&at, &zero], [2, 1])),
        ("whole", table.dynamic_update(&trace.full([1, 2], -1.0, DType::F32), &[&at, &zero])),
    ];
    let named: Vec<_> = outputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let program = trace.finish(&named).expect("correct");
    let results = evaluate(&program, &[("i", vec![2.0, 0.0]), ("at", vec![3.0])]);
    assert_eq!(results["rows"], [6.0, 7.0, 8.0, 0.0, 1.0, 2.0]);
    assert_eq!(results["columns"], [2.0, 0.0, 5.0, 3.0, 8.0, 6.0, 11.0, 9.0]);
    assert_eq!(results["hot"], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(results["lower"], [0.0, 0.0, 0.0, 3.0, 4.0, 0.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    assert_eq!(results["upper"], [0.0, 1.0, 2.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(results["eye"], [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(results["causal"], [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
    assert_eq!(results["window"], [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    assert_eq!(results["part"], [6.0, 9.0]);
    assert_eq!(results["whole"][9..], [-1.0, -1.0, 11.0]);
}

#[test]
fn stopped_values_pass_no_gradient_and_gradients_have_gradients() {
    let inputs: [(&[usize], _); 1] = [(&[3], vec![0.5, -1.0, 2.0])];
    let product = |_: &Trace, x: &[Tensor]| (&x[0] * x[0].stop_gradient()).sum_all().grad(&[&x[0]]).remove(0);
    assert_eq!(value(&inputs, product), [0.5, -1.0, 2.0]);
    let second = |_: &Trace, x: &[Tensor]| {
        let slope = x[0].powf(3.0).sum_all().grad(&[&x[0]]).remove(0);
        slope.sum_all().grad(&[&x[0]]).remove(0)
    };
    assert_close(&value(&inputs, second), &[3.0, -6.0, 12.0], 1e-12);
}

/// A model with a parameter, a state that follows the mean, noise, a loop and a value that stops gradients.
fn traced_model(trace: &Trace, x: &Tensor) -> Tensor {
    let _scope = trace.scope("layer");
    let weight = trace.parameter("weight", [3], Init::Ones);
    let mean = trace.buffer("mean", [], Init::Zeros);
    let noisy = trace.random_bernoulli(0.5, [4, 3]).select(x, 0.0) * &weight;
    trace.update(&mean, &(&mean * 0.5 + noisy.mean_all()));
    let sums = trace.scan(ScanOrder::Forward, 4, &[&trace.zeros([3])], &[&noisy], |carried, slices| {
        let sum = &carried[0] * 0.5 + &slices[0];
        Iteration { carried: vec![sum.clone()], each: vec![sum] }
    });
    &sums.each[0] * noisy.stop_gradient() + &mean
}

#[test]
fn an_inserted_program_is_the_function_that_was_traced() {
    let written = Trace::training();
    let x = written.input("x", [4, 3], DType::F32);
    let program = written.finish(&[("y", &traced_model(&written, &x))]).expect("correct");
    let step = |model: &dyn Fn(&Trace, &Tensor) -> Tensor| {
        let trace = Trace::training();
        let x = trace.input("a", [4, 3], DType::F32);
        let loss = model(&trace, &(&x * 2.0)).square().sum_all();
        let parameters = trace.parameters();
        let gradients = loss.grad(&[&parameters[0].1, &x]);
        let names = ["loss", "weight", "a"].into_iter();
        let outputs: Vec<_> = names.zip([&loss, &gradients[0], &gradients[1]]).collect();
        trace.finish(&outputs).expect("correct")
    };
    let traced = step(&traced_model);
    let inserted = step(&|trace, x| trace.insert(&program, &[("x", x)]).remove(0).1);
    assert_eq!(inserted.parameters, traced.parameters);
    assert_eq!(inserted.buffers, traced.buffers);
    let values = [
        ("a", random(3, 12, -1.0, 1.0)),
        ("layer.weight", random(4, 3, -1.0, 1.0)),
        ("layer.mean", vec![0.25]),
        ("seed", vec![7.0]),
        ("step", vec![2.0]),
    ];
    let expected = evaluate(&traced, &values);
    assert_eq!(evaluate(&inserted, &values), expected);
    assert!(expected.contains_key("layer.mean") && expected["weight"].iter().all(|x| *x != 0.0));
    let scopes = |program: &Program| {
        let at = |id| program.graph[id].origin.scope.to_string();
        program.graph.ids().map(at).collect::<BTreeSet<_>>()
    };
    let trace = Trace::training();
    let scope = trace.scope("outer");
    let x = trace.input("x", [4, 3], DType::F32);
    let y = trace.insert(&program, &[("x", &x)]).remove(0).1;
    drop(scope);
    let outer = trace.finish(&[("y", &y)]).expect("correct");
    assert_eq!(outer.parameters[0].name, "outer.layer.weight");
    assert!(scopes(&program).contains("layer") && scopes(&outer).contains("outer.layer"));
}

#[test]
fn what_an_inserted_program_lacks_is_a_mistake() {
    let written = Trace::new();
    let x = written.input("x", [2], DType::F32);
    let program = written.finish(&[("y", &x.exp())]).expect("correct");
    let said = |given: &[(&str, usize)]| {
        let trace = Trace::new();
        let given: Vec<_> =
            given.iter().map(|(name, extent)| (*name, trace.input(name, [*extent], DType::F32))).collect();
        let given: Vec<_> = given.iter().map(|(name, tensor)| (*name, tensor)).collect();
        trace.insert(&program, &given);
        message(&trace)
    };
    let missing = said(&[]);
    assert!(missing.contains("the input \"x\" of the program, f32[2], is missing"), "{missing}");
    let other = said(&[("x", 3)]);
    assert!(other.contains("the input \"x\" is f32[3], and the program takes f32[2]"), "{other}");
    let unknown = said(&[("x", 2), ("z", 2)]);
    assert!(unknown.contains("the program has no input \"z\""), "{unknown}");
}

#[test]
fn a_mistake_is_reported_with_both_shapes_at_the_users_line() {
    let trace = Trace::new();
    let (a, b) = (trace.input("a", [64, 384], DType::F32), trace.input("b", [383, 10], DType::F32));
    let outer = trace.scope("blocks.0");
    let inner = trace.scope("attn");
    let line = line!() + 1;
    let product = a.matmul(&b);
    drop((inner, outer));
    // The shape goes on as if the product had been possible, and later mistakes are not reported.
    assert_eq!(product.shape(), [64, 10]);
    let _ = a + &b;
    let expected = format!(
        "matmul(f32[64,384], f32[383,10]): the contracted axes differ: 384 and 383\n  \
         at {}:{line}:21\n  in blocks.0.attn",
        file!()
    );
    assert_eq!(message(&trace), expected);
}

#[test]
fn every_kind_of_mistake_names_its_operation_and_line() {
    type Mistake = fn(&Trace, &Tensor, &Tensor);
    let mistakes: [(&str, Mistake); 29] = [
        ("broadcast_to(f32[4]): f32[18446744073709551615,4] is larger than any memory", |_, _, y| {
            drop(y.broadcast_to([usize::MAX, 4]))
        }),
        ("add(f32[2,3], f32[4]): the shapes [2, 3] and [4] do not broadcast", |_, x, y| drop(x + y)),
        (
            "mul(f32[2,3], i32[3]): operands have the dtypes f32 and i32: `.cast(DType::F32)` converts the second",
            |t, x, _| drop(x * t.arange(3, DType::I32)),
        ),
        (
            "lt(i32[3], f32[4]): operands have the dtypes i32 and f32: `.cast(DType::F32)` converts the first",
            |t, _, y| drop(t.arange(3, DType::I32).lt(y)),
        ),
        ("and(i32[3], u32[3]): operands have the dtypes i32 and u32: `.cast(…)` converts", |t, _, _| {
            drop(t.arange(3, DType::I32).and(t.arange(3, DType::U32)))
        }),
        ("sum(f32[]): there is no axis 0: a scalar has none", |_, x, _| drop(x.sum_all().sum(&[0]))),
        ("add(i32[3]): 0.5 is not a value of i32", |t, _, _| drop(t.arange(3, DType::I32) + 0.5)),
        ("exp(i32[3]): is not defined on i32", |t, _, _| drop(t.arange(3, DType::I32).exp())),
        ("lt(f32[2,3], f32[4]): the shapes", |_, x, y| drop(x.lt(y))),
        ("select(f32[2,3], f32[4], f32[]): the shapes", |_, x, y| drop(x.select(y, 0.0))),
        ("sum(f32[2,3]): there is no axis 2: axes are -2 to 1", |_, x, _| drop(x.sum(&[2]))),
        ("mean(f32[2,3]): [1, -1] names an axis twice", |_, x, _| drop(x.mean_keep(&[1, -1]))),
        ("max(f32[4]): there is no axis -2: the only axis is 0, or -1 from the end", |_, _, y| {
            drop(y.softmax(-2))
        }),
        ("reshape(f32[2,3]): its 6 elements have no shape [4, -1]", |_, x, _| drop(x.reshape([4, -1]))),
        ("reshape(f32[2,3]): its 6 elements have no shape [-1, -1]", |_, x, _| drop(x.reshape([-1, -1]))),
        ("permute(f32[2,3]): [0, 0] is no permutation", |_, x, _| drop(x.permute(&[0, 0]))),
        ("broadcast_to(f32[2,3]): ", |_, x, _| drop(x.broadcast_to([3, 3]))),
        ("squeeze(f32[2,3]): axis 1 has the extent 3, not 1", |_, x, _| drop(x.squeeze(-1))),
        ("unsqueeze(f32[4]): no place 2 among 1 axes", |_, _, y| drop(y.unsqueeze(2))),
        ("slice(f32[4]): 3..5 is no part of axis 0, whose extent is 4", |_, _, y| drop(y.slice(0, 3..5))),
        ("split(f32[4]): an extent of 4 has no 3 equal parts", |_, _, y| drop(y.split(3, 0))),
        ("concat(f32[2,3], f32[4]): shapes [2, 3] and [4]", |t, x, y| drop(t.concat(&[x, y], 0))),
        ("concat(): takes at least one tensor", |t, _, _| drop(t.concat(&[], 0))),
        ("matmul(f32[2,3], f32[4]): both operands must be matrices", |_, x, y| drop(x.matmul(y))),
        ("linear(f32[4], f32[2,3]): the weight takes 3 inputs, the last axis has 4", |_, x, y| {
            drop(y.linear(x))
        }),
        ("gather(f32[2,3], f32[4]): indices are f32, not i32", |_, x, y| drop(x.gather(0, y))),
        ("grad(f32[2,3], f32[4]): only a floating-point scalar has gradients", |_, x, y| drop(x.grad(&[y]))),
        ("input(): \"x\" is declared twice, first at src/trace/tests.rs:", |t, _, _| {
            drop(t.input("x", [1], DType::F32))
        }),
        ("parameter(): \"x\" is declared twice, first at src/trace/tests.rs:", |t, _, _| {
            drop(t.parameter("x", [1], Init::Zeros))
        }),
    ];
    for (expected, mistake) in mistakes {
        let trace = Trace::new();
        let (x, y) = (trace.input("x", [2, 3], DType::F32), trace.input("y", [4], DType::F32));
        mistake(&trace, &x, &y);
        let message = message(&trace);
        assert!(message.starts_with(expected), "{message}\nis not\n{expected}");
        assert!(message.contains(&format!("\n  at {}:", file!())), "{message}");
    }
}

#[test]
fn mistakes_of_states_and_of_two_traces() {
    let trace = Trace::new();
    let (x, s) = (trace.input("x", [2], DType::F32), trace.state("s", [3], DType::F32));
    trace.update(&s, &x);
    assert!(message(&trace).starts_with("update(f32[3], f32[2]): \"s\" is f32[3], its new value f32[2]"));
    let other = Trace::new();
    let y = other.input("y", [2], DType::F32);
    other.update(&y, &y);
    assert!(message(&other).starts_with("update(f32[2], f32[2]): only a state can be updated"));
    let third = Trace::new();
    let sum = third.input("z", [2], DType::F32) + &x;
    assert_eq!(sum.shape(), [2]);
    assert!(message(&third).starts_with("add(f32[2], f32[2]): the operands belong to different traces"));
    let fourth = Trace::new();
    let z = fourth.zeros([1]);
    let error = fourth.finish(&[("z", &z), ("z", &z)]).expect_err("one name for two").to_string();
    assert!(error.starts_with("output(f32[1]): the name \"z\" is used twice"), "{error}");
    let fifth = Trace::new();
    let seen = fifth.state("seen", [], DType::F32);
    fifth.update(&seen, &(&seen + 1.0));
    let error = fifth.finish(&[("seen", &seen)]).expect_err("the name of a state").to_string();
    assert!(error.starts_with("output(f32[]): the name \"seen\" is that of an updated state"), "{error}");
}

/// After a mistake, everything else must go on, whatever the shapes have become.
#[test]
fn a_poisoned_trace_never_panics() {
    let shapes: [&[usize]; 6] = [&[], &[1], &[4], &[2, 3], &[0, 5], &[usize::MAX, usize::MAX]];
    for left in shapes {
        for right in shapes {
            let trace = Trace::training();
            let x = trace.input("x", [2], DType::F32) + trace.input("y", [3], DType::F32);
            assert!(trace.error().is_some());
            let (a, b) = (trace.input("a", left, DType::F32), trace.input("b", right, DType::I32));
            let both = [&a, &b, &x];
            for t in both {
                drop([
                    t.exp(),
                    t.softmax(-1),
                    t.argmax(3),
                    t.logsumexp(0),
                    t.normalize(&[-1], 1e-5),
                    t.mean_all(),
                ]);
                drop([
                    t.reshape([-1, 7]),
                    t.squeeze(0),
                    t.unsqueeze(9),
                    t.slice(1, 5..5),
                    t.index(0, 9),
                    t.tril(0),
                ]);
                drop([t.pad(&[(1, 2)], 0.5), t.transpose(0, 5), t.permute(&[3]), t.broadcast_to([2])]);
                drop([
                    t.cast(DType::Bool),
                    t.square(),
                    t.gelu(),
                    t.sigmoid(),
                    t.gather(1, &b),
                    t.one_hot(3, DType::F32),
                ]);
                drop([t.dynamic_slice(&[&b], [1]), t.dynamic_update(&a, &[&x]), t.stop_gradient()]);
                drop((t.split(0, 0), t.split(3, 9), t.grad(&[&a, &b]), t.dim(7)));
                for u in both {
                    drop([
                        t + u,
                        t.matmul(u),
                        t.matmul_transposed(u),
                        t.linear(u),
                        t.lt(u),
                        t.select(u, 1.0),
                        t.pow(u),
                        u.select(t, &x),
                    ]);
                    drop([trace.concat(&[t, u], 0), trace.stack(&[u, t], -1)]);
                    trace.update(t, u);
                }
            }
            assert!(message(&trace).starts_with("add(f32[2], f32[3])"));
        }
    }
}

#[test]
fn nodes_carry_the_users_line_and_module_path() {
    let trace = Trace::new();
    let x = trace.input("x", [4, 4], DType::F32);
    let scope = trace.scope("head");
    let w = trace.parameter("weight", [4], Init::Ones);
    let (line, y) = (line!(), x.softmax(-1));
    drop(scope);
    assert_eq!((trace.path().as_ref(), w.state_name().as_deref()), ("", Some("head.weight")));
    let program = trace.finish(&[("y", &y)]).expect("correct");
    let reduction = |id: &ValueId| matches!(program.graph[*id].op, Op::Reduce(Reduce { .. }));
    let id = program.graph.ids().find(reduction).expect("softmax reduces");
    let origin = &program.graph[id].origin;
    let location = origin.location.as_ref().expect("a line");
    assert_eq!((location.file.as_ref(), location.line, origin.scope.as_ref()), (file!(), line, "head"));
}

#[test]
fn random_numbers_follow_seed_step_and_draw() {
    let trace = Trace::new();
    let shape = [100, 200];
    let (u, v) = (trace.random_uniform(shape), trace.random_uniform(shape));
    let scope = trace.scope("other");
    let outputs = [
        ("u", u),
        ("v", v),
        ("w", trace.random_uniform(shape)),
        ("normal", trace.random_normal(shape)),
        ("bernoulli", trace.random_bernoulli(0.3, shape).cast(DType::F32)),
    ];
    drop(scope);
    let named: Vec<_> = outputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let program = trace.finish(&named).expect("correct");
    let run = |seed: f64, step: f64| evaluate(&program, &[("seed", vec![seed]), ("step", vec![step])]);
    let results = run(1.0, 5.0);
    let mean = |name: &str, k: i32| results[name].iter().map(|x| x.powi(k)).sum::<f64>() / 20_000.0;
    assert!(results["u"].iter().all(|u| (0.0..1.0).contains(u) && (u * 16_777_216.0).fract() == 0.0));
    assert!((mean("u", 1) - 0.5).abs() < 0.01 && (mean("u", 2) - 1.0 / 3.0).abs() < 0.01);
    assert!(mean("normal", 1).abs() < 0.03 && (mean("normal", 2) - 1.0).abs() < 0.05);
    assert!((mean("normal", 4) - 3.0).abs() < 0.3);
    assert!((mean("bernoulli", 1) - 0.3).abs() < 0.015);
    assert!(results["u"] != results["v"] && results["u"] != results["w"]);
    assert_eq!(results, run(1.0, 5.0));
    assert!(results["u"] != run(1.0, 6.0)["u"] && results["u"] != run(2.0, 5.0)["u"]);
}
