//! Exchanges between ranks, evaluated side by side.

use kernfusion_ir::evaluate::{Array, Precision, evaluate_all, evaluate_ranks};
use kernfusion_ir::{Builder, Collective, DType, Exchange, Graph, IrError, Op, Origin, TensorType, Vjp};
use std::collections::BTreeMap;

fn exchanging(exchange: Exchange, ranks: usize, dtype: DType, shape: &[usize]) -> String {
    format!(
        "graph \"exchange\" {{\n  %0 = input {{name = \"x\", dtype = {dtype}, shape = {shape:?}}} : {}\n  %1 = {} %0 {{ranks = {ranks}}}\n  output \"y\" = %1\n}}\n",
        TensorType::new(dtype, shape.to_vec()),
        exchange.name()
    )
}

/// What each rank gives: `x` of rank r is `of(r, i)`.
fn inputs(graph: &Graph, ranks: usize, of: impl Fn(usize, usize) -> f64) -> Vec<BTreeMap<String, Array>> {
    let ty = &graph[graph.input("x").unwrap()].ty;
    let array = |rank| Array { ty: ty.clone(), values: (0..ty.elements()).map(|i| of(rank, i)).collect() };
    (0..ranks).map(|rank| BTreeMap::from([("x".to_string(), array(rank))])).collect()
}

/// The result of each rank.
fn evaluated(text: &str, ranks: usize, of: impl Fn(usize, usize) -> f64) -> Vec<Array> {
    let graph = Graph::parse_verified(text).unwrap();
    let values = evaluate_ranks(&graph, inputs(&graph, ranks, of), Precision::Declared).unwrap();
    let y = graph.outputs()[0].value.index();
    values.into_iter().map(|mut values| values.swap_remove(y)).collect()
}

#[test]
fn text_says_what_is_exchanged() {
    for exchange in Exchange::ALL {
        let graph = Graph::parse_verified(&exchanging(exchange, 3, DType::BF16, &[6, 2])).unwrap();
        assert_eq!(Graph::parse_verified(&graph.to_string()).unwrap().to_string(), graph.to_string());
        assert_eq!(graph.ranks(), 3);
    }
    let text =
        exchanging(Exchange::AllReduce, 3, DType::F32, &[6]).replace("{ranks = 3}", "{ranks = 3, as = bf16}");
    let graph = Graph::parse_verified(&text).unwrap().to_string();
    assert!(graph.contains("{ranks = 3, as = bf16}"), "{graph}");
    assert_eq!(Graph::parse_verified(&graph).unwrap().to_string(), graph);
}

#[test]
fn every_rank_gets_what_the_op_says() {
    let of = |rank: usize, i: usize| (10 * rank + i) as f64;
    let reduced = evaluated(&exchanging(Exchange::AllReduce, 3, DType::F32, &[3]), 3, of);
    assert!(reduced.iter().all(|y| y.values == [30.0, 33.0, 36.0]));
    let scattered = evaluated(&exchanging(Exchange::ReduceScatter, 3, DType::F32, &[6]), 3, of);
    assert_eq!(scattered[0].values, [30.0, 33.0]);
    assert_eq!(scattered[2].values, [42.0, 45.0]);
    let gathered = evaluated(&exchanging(Exchange::AllGather, 3, DType::F32, &[1, 2]), 3, of);
    assert_eq!(gathered[1].ty.shape, [3, 2]);
    assert!(gathered.iter().all(|y| y.values == [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]));
    // As bf16, what is given is rounded and so is the sum: 1 + 2⁻⁹ is 1, and 256 + 1 + 2 is 260.
    let text =
        exchanging(Exchange::AllReduce, 3, DType::F32, &[2]).replace("{ranks = 3}", "{ranks = 3, as = bf16}");
    let rounded = evaluated(&text, 3, |rank, i| match i {
        0 => [1.0 + 2f64.powi(-9), 0.0, 0.0][rank],
        _ => [256.0, 1.0, 2.0][rank],
    });
    assert!(rounded.iter().all(|y| y.values == [1.0, 260.0]), "{rounded:?}");
    // The sum of bf16 is rounded once: after each addition, 256 + 1 would stay 256.
    let narrow = evaluated(&exchanging(Exchange::AllReduce, 3, DType::BF16, &[1]), 3, |rank, _| {
        [256.0, 1.0, 1.0][rank]
    });
    assert_eq!(narrow[0].values, [258.0]);
}

#[test]
fn what_cannot_be_exchanged_is_refused() {
    let refused = |exchange, ranks, dtype, shape: &[usize]| {
        Graph::parse_verified(&exchanging(exchange, ranks, dtype, shape)).unwrap_err().to_string()
    };
    let text = refused(Exchange::ReduceScatter, 4, DType::F32, &[6]);
    assert!(text.contains("cannot divide an axis of 6 among 4 ranks"), "{text}");
    let text = refused(Exchange::AllReduce, 2, DType::I32, &[6]);
    assert!(text.contains("exchanges f32 or bf16, not i32"), "{text}");
    let text = refused(Exchange::AllGather, 2, DType::F32, &[]);
    assert!(text.contains("has no first axis to go along"), "{text}");
    let of = |exchange, dtype, as_dtype: &str| {
        let text = exchanging(exchange, 2, dtype, &[6])
            .replace("{ranks = 2}", &format!("{{ranks = 2, as = {as_dtype}}}"));
        Graph::parse_verified(&text).unwrap_err().to_string()
    };
    for (exchange, dtype) in [(Exchange::AllGather, DType::F32), (Exchange::AllReduce, DType::BF16)] {
        let text = of(exchange, dtype, "bf16");
        assert!(text.contains("exchanges as bf16 sums of f32 alone"), "{text}");
    }
    let text = of(Exchange::AllReduce, DType::F32, "f16");
    assert!(text.contains("are exchanged as bf16 or as they are"), "{text}");
    let text = refused(Exchange::AllReduce, 0, DType::F32, &[6]);
    assert!(text.contains("needs one rank at least"), "{text}");
}

#[test]
fn a_program_of_several_ranks_is_not_evaluated_alone() {
    let graph = Graph::parse_verified(&exchanging(Exchange::AllReduce, 2, DType::F32, &[3])).unwrap();
    let alone = inputs(&graph, 1, |_, _| 0.0).swap_remove(0);
    let expected = IrError::Ranks { ranks: 2, given: 1 };
    assert_eq!(evaluate_all(&graph, alone, Precision::Double), Err(expected));
}

/// L = Σ over ranks of Σ w·y; by the VJP, and by moving each element of each rank's x.
#[test]
fn gradients_are_those_of_all_ranks_losses() {
    const RANKS: usize = 3;
    for (exchange, shape, result) in [
        (Exchange::AllReduce, vec![2, 2], vec![2, 2]),
        (Exchange::ReduceScatter, vec![6], vec![2]),
        (Exchange::AllGather, vec![2, 2], vec![6, 2]),
    ] {
        let x = |rank: usize, i: usize| ((7 * rank + 3 * i) % 5) as f64;
        let w = |rank: usize, i: usize| ((5 * rank + 2 * i) % 7) as f64 - 3.0;
        let text = exchanging(exchange, RANKS, DType::F32, &shape);
        let loss = |x: &dyn Fn(usize, usize) -> f64| -> f64 {
            let results = evaluated(&text, RANKS, x);
            let own = |(rank, y): (usize, &Array)| -> f64 {
                y.values.iter().enumerate().map(|(i, y)| y * w(rank, i)).sum()
            };
            results.iter().enumerate().map(own).sum()
        };
        let mut graph = Graph::parse_verified(&text).unwrap();
        let (operand, y) = (graph.input("x").unwrap(), graph.outputs()[0].value);
        let op = graph[y].op.clone();
        let mut b = Builder::new(&mut graph, Origin::default());
        let ty = TensorType::new(DType::F32, result);
        let dy = b.input("dy", kernfusion_ir::InputRole::Data, ty.clone()).unwrap();
        let dx = op.vjp(&mut Vjp { b: &mut b, operands: &[operand], result: y, dy }).unwrap()[0].unwrap();
        let mut all = inputs(&graph, RANKS, x);
        for (rank, inputs) in all.iter_mut().enumerate() {
            let values = (0..ty.elements()).map(|i| w(rank, i)).collect();
            inputs.insert("dy".into(), Array { ty: ty.clone(), values });
        }
        let values = evaluate_ranks(&graph, all, Precision::Double).unwrap();
        for (rank, values) in values.iter().enumerate() {
            for (i, &found) in values[dx.index()].values.iter().enumerate() {
                let moved = |r: usize, j: usize| x(r, j) + f64::from(u8::from((r, j) == (rank, i)));
                // It is linear.
                assert_eq!(found, loss(&moved) - loss(&x), "{} of rank {rank}, element {i}", exchange.name());
            }
        }
    }
}

#[test]
fn a_loop_exchanges_nothing() {
    let body = "graph \"b\" {%0 = input {name = \"c\", dtype = f32, shape = [2]} %1 = all_reduce %0 {ranks = 2} output \"c\" = %1}";
    let text = format!(
        "graph \"g\" {{%0 = input {{name = \"x\", dtype = f32, shape = [2]}} %1 = scan %0 {{length = 3, carried = 1, sliced = 0, order = forward, result = 0, body = {body}}} output \"y\" = %1}}"
    );
    let error = Graph::parse_verified(&text).unwrap_err().to_string();
    assert!(error.contains("its body exchanges something between ranks"), "{error}");
    let op = Op::from(Collective::new(Exchange::AllReduce, 2));
    assert_eq!(op.name(), "all_reduce");
}
