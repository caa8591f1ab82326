//! What simplification finds in models that are written naively, and that it never makes anything worse.

use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
use kernfusion_ir::random::philox4x32;
use kernfusion_ir::samples::{all, difference, random_graph};
use kernfusion_ir::{Graph, Op, TensorType};
use kernfusion_passes::simplify::{Options, Report, Rounding, simplify};
use kernfusion_passes::{PIPELINE, find, grad, run};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Random values between 0.25 and 1.25; whole numbers up to 4 for integers.
fn inputs(graph: &Graph) -> BTreeMap<String, Array> {
    let value = |name: &str, i: usize, ty: &TensorType| {
        let key = name.bytes().fold(3u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let bits = philox4x32([i as u32, 0, 0, 0], [key, 9])[0];
        if ty.dtype.is_float() { f64::from(bits) / f64::from(u32::MAX) + 0.25 } else { f64::from(bits % 5) }
    };
    let array = |name: &str, ty: &TensorType| Array {
        ty: ty.clone(),
        values: (0..ty.elements()).map(|i| value(name, i, ty)).collect(),
    };
    graph.inputs().map(|(id, name, _)| (name.to_string(), array(name, &graph[id].ty))).collect()
}

fn parse(body: &str) -> Graph {
    let graph =
        Graph::parse(&format!("graph \"model\" {{{body}}}")).unwrap_or_else(|error| panic!("{error}"));
    graph.verify().unwrap_or_else(|error| panic!("{error}"));
    graph
}

/// Simplifies with all rules, then merges what is equal; checks types and, if the tensors are small, values.
fn simplified(graph: &Graph, evaluated: bool) -> (Graph, Report) {
    let mut new = graph.clone();
    let report = simplify(&mut new, &Options::default()).expect("simplifies");
    run(&mut new, &[find("cse").expect("a pass")], None, &mut |_, _| {}).expect("a valid graph");
    assert!(report.cost.1 <= report.cost.0, "{report}");
    if evaluated {
        let values =
            |graph: &Graph| evaluate_arrays(graph, inputs(graph), Precision::Double).expect("evaluates");
        let got = values(&new);
        for (name, expected) in values(graph) {
            let off = difference(&expected.values, &got[&name].values, 1e-6);
            assert!(off.is_none(), "{name}: {off:?}\n{graph}\n{new}");
        }
    }
    (new, report)
}

fn count(graph: &Graph, name: &str) -> usize {
    graph.ids().filter(|&id| graph[id].op.name() == name).count()
}

/// The operands and shapes of products, for messages and conditions.
fn products(graph: &Graph) -> Vec<Vec<usize>> {
    let dots = graph.ids().filter(|&id| matches!(graph[id].op, Op::DotGeneral(_)));
    dots.map(|id| graph[id].ty.shape.clone()).collect()
}

#[test]
fn transpositions_disappear_in_products() {
    let graph = parse(
        r#"
        %x = input {name = "x", dtype = f32, shape = [2, 6, 8]}
        %w = state {name = "w", dtype = f32, shape = [5, 8]}
        %wt = permute %w {axes = [1, 0]}
        %flat = reshape %x {shape = [12, 8]}
        %y = dot_general %flat, %wt {lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [0], dtype = f32}
        %yt = permute %y {axes = [1, 0]}
        %ytt = permute %yt {axes = [1, 0]}
        %z = reshape %ytt {shape = [2, 6, 5]}
        output "z" = %z
        "#,
    );
    let (new, _) = simplified(&graph, true);
    assert_eq!(
        (count(&new, "permute"), count(&new, "reshape"), count(&new, "dot_general")),
        (0, 0, 1),
        "{new}"
    );
}

#[test]
fn a_transposed_result_is_the_mirrored_product() {
    let graph = parse(
        r#"
        %x = input {name = "x", dtype = f32, shape = [6, 8]}
        %w = state {name = "w", dtype = f32, shape = [5, 8]}
        %y = dot_general %x, %w {lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [1], dtype = f32}
        %yt = permute %y {axes = [1, 0]}
        output "z" = %yt
        "#,
    );
    let (new, _) = simplified(&graph, true);
    assert_eq!(count(&new, "permute"), 0, "{new}");
}

/// Three projections of `rows` rows.
fn projections(rows: usize) -> Graph {
    let dot = "{lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [1], dtype = f32}";
    parse(&format!(
        r#"
        %x = input {{name = "x", dtype = f32, shape = [{rows}, 64]}}
        %wq = state {{name = "wq", dtype = f32, shape = [64, 64]}}
        %wk = state {{name = "wk", dtype = f32, shape = [64, 64]}}
        %wv = state {{name = "wv", dtype = f32, shape = [32, 64]}}
        %q = dot_general %x, %wq {dot}
        %k = dot_general %x, %wk {dot}
        %v = dot_general %x, %wv {dot}
        output "q" = %q
        output "k" = %k
        output "v" = %v
        "#
    ))
}

#[test]
fn separate_projections_are_one_product_where_that_pays() {
    let (new, _) = simplified(&projections(4096), false);
    assert_eq!(products(&new), [[4096, 160]], "{new}");
    simplified(&projections(300), true);
    // For one token, copying the weights costs more than reading the token again.
    let (new, _) = simplified(&projections(1), true);
    assert_eq!(count(&new, "dot_general"), 3, "{new}");
}

#[test]
fn a_low_rank_adapter_never_multiplies_its_factors_for_many_rows_of_few_columns() {
    let dot = "{lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [0], dtype = f32}";
    let graph = parse(&format!(
        r#"
        %x = input {{name = "x", dtype = f32, shape = [16, 256]}}
        %a = state {{name = "a", dtype = f32, shape = [256, 4]}}
        %b = state {{name = "b", dtype = f32, shape = [4, 256]}}
        %ab = dot_general %a, %b {dot}
        %y = dot_general %x, %ab {dot}
        output "y" = %y
        "#
    ));
    let (new, report) = simplified(&graph, true);
    assert_eq!(products(&new), [vec![16, 4], vec![16, 256]], "{new}\n{report}");
}

#[test]
fn a_row_sum_divides_after_the_second_product_of_attention() {
    let graph = parse(
        r#"
        %e = input {name = "e", dtype = f32, shape = [2, 16, 16]}
        %v = input {name = "v", dtype = f32, shape = [2, 16, 4]}
        %x = exp %e
        %s = reduce %x {op = sum, axes = [2]}
        %bs = broadcast %s {shape = [2, 16, 16], axes = [0, 1]}
        %p = div %x, %bs
        %y = dot_general %p, %v {lhs_batch = [0], rhs_batch = [0], lhs_contract = [2], rhs_contract = [1], dtype = f32}
        output "y" = %y
        "#,
    );
    let (new, _) = simplified(&graph, true);
    let elementwise = |name: &str| {
        let ids = new.ids().filter(|&id| new[id].op.name() == name);
        ids.map(|id| new[id].ty.elements()).max().unwrap_or(0)
    };
    assert!(elementwise("div") <= 2 * 16 * 4 && elementwise("mul") <= 2 * 16 * 4, "{new}");
}

#[test]
fn a_one_hot_product_is_a_gather_and_the_last_position_is_one_row() {
    let graph = parse(
        r#"
        %i = input {name = "i", dtype = i32, shape = [4, 30]}
        %table = state {name = "table", dtype = f32, shape = [96, 32]}
        %head = state {name = "head", dtype = f32, shape = [96, 32]}
        %place = iota {dtype = i32, shape = [4, 30, 96], axis = 2}
        %target = broadcast %i {shape = [4, 30, 96], axes = [0, 1]}
        %hit = eq %place, %target
        %hot = cast %hit {dtype = f32}
        %x = dot_general %hot, %table {lhs_batch = [], rhs_batch = [], lhs_contract = [2], rhs_contract = [0], dtype = f32}
        %logits = dot_general %x, %head {lhs_batch = [], rhs_batch = [], lhs_contract = [2], rhs_contract = [1], dtype = f32}
        %last = slice %logits {start = [0, 29, 0], end = [4, 30, 96]}
        output "y" = %last
        "#,
    );
    let (new, _) = simplified(&graph, true);
    assert_eq!((count(&new, "gather"), products(&new)), (1, vec![vec![4, 1, 96]]), "{new}");
}

#[test]
fn a_weight_repeated_for_each_batch_is_read_once() {
    let graph = parse(
        r#"
        %x = input {name = "x", dtype = f32, shape = [4, 6, 8]}
        %w = state {name = "w", dtype = f32, shape = [8, 5]}
        %ws = broadcast %w {shape = [4, 8, 5], axes = [1, 2]}
        %y = dot_general %x, %ws {lhs_batch = [0], rhs_batch = [0], lhs_contract = [2], rhs_contract = [1], dtype = f32}
        output "y" = %y
        "#,
    );
    let (new, _) = simplified(&graph, true);
    assert_eq!((count(&new, "broadcast"), count(&new, "dot_general")), (0, 1), "{new}");
}

/// −Σ onehot · log(softmax(x)), written with tensors of all classes throughout.
const NAIVE_LOSS: &str = r#"
    %x = state {name = "x", dtype = f32, shape = [48, 96]}
    %t = input {name = "t", dtype = i32, shape = [48]}
    %max = reduce %x {op = max, axes = [1]}
    %bmax = broadcast %max {shape = [48, 96], axes = [0]}
    %z = sub %x, %bmax
    %e = exp %z
    %s = reduce %e {op = sum, axes = [1]}
    %bs = broadcast %s {shape = [48, 96], axes = [0]}
    %p = div %e, %bs
    %logp = log %p
    %place = iota {dtype = i32, shape = [48, 96], axis = 1}
    %target = broadcast %t {shape = [48, 96], axes = [0]}
    %hit = eq %place, %target
    %hot = cast %hit {dtype = f32}
    %chosen = mul %logp, %hot
    %rows = reduce %chosen {op = sum, axes = [1]}
    %total = reduce %rows {op = sum, axes = [0]}
    %loss = neg %total
    output "loss" = %loss
"#;

/// What is zero is equal to everything times zero; rules that found forms of it in each other's forms took gigabytes.
#[test]
fn zeros_are_not_looked_into() {
    for (seed, size) in [(78_871, 22), (405_153, 37), (308_236, 27)] {
        let (mut graph, _) = random_graph(seed, size);
        let report = simplify(&mut graph, &Options::default()).expect("simplifies");
        let fired: usize = report.fired.iter().map(|(_, count)| count).sum();
        assert!(fired < 100, "seed {seed}: {report}");
    }
    let (graph, report) = simplified(
        &parse(
            r#"
            %x = input {name = "x", dtype = f32, shape = [3, 4]} : f32[3,4]
            %zero = sub %x, %x : f32[3,4]
            %scaled = mul %zero, %x : f32[3,4]
            %twice = add %scaled, %scaled : f32[3,4]
            %sum = add %twice, %zero : f32[3,4]
            output "y" = %sum
            "#,
        ),
        true,
    );
    assert_eq!(count(&graph, "add") + count(&graph, "mul"), 0, "{graph}");
    assert!(report.fired.iter().map(|(_, count)| count).sum::<usize>() < 10, "{report}");
}

#[test]
fn a_naive_loss_takes_logarithms_of_rows_only() {
    let (new, report) = simplified(&parse(NAIVE_LOSS), true);
    let largest = new.ids().filter(|&id| new[id].op.name() == "log").map(|id| new[id].ty.elements()).max();
    assert_eq!(largest, Some(48), "{new}\n{report}");
    assert_eq!((count(&new, "exp"), count(&new, "mul")), (1, 0), "{new}");
}

#[test]
fn the_gradient_of_a_naive_loss_is_softmax_less_one_hot() {
    let mut graph = parse(NAIVE_LOSS);
    let (loss, x) = (graph.output_value("loss").expect("a loss"), graph.input("x").expect("x"));
    let max = graph.ids().find(|&id| graph[id].op.name() == "reduce").expect("the maximum");
    let gradient = grad(&mut graph, loss, &[x], &BTreeSet::from([max])).expect("grad")[0];
    graph.output("dx", gradient);
    let (new, report) = simplified(&graph, true);
    let full = |name: &str| {
        new.ids().filter(|&id| new[id].op.name() == name && new[id].ty.elements() == 48 * 96).count()
    };
    // x − max, e, then e · r − onehot: no logarithm and no division by a probability.
    let ops = ["log", "div", "exp", "sub", "mul", "add", "select"].map(full);
    assert!(
        ops[0] == 0 && ops[1] <= 1 && ops[2] == 1 && ops.iter().sum::<usize>() <= 7,
        "{ops:?}\n{new}\n{report}"
    );
}

/// A stack of layers with dropout, each under its own scope.
fn layers(count: usize) -> Graph {
    let mut body = String::from(
        r#"
        %x0 = input {name = "x", dtype = f32, shape = [8, 8]}
        %seed = input {name = "seed", dtype = u32, shape = []}
        %step = input {name = "step", dtype = u32, shape = []}
        "#,
    );
    for layer in 0..count {
        let (next, node) = (layer + 1, 40 + layer);
        body += &format!(
            r#"
            %w{layer} = state {{name = "w{layer}", dtype = f32, shape = [8, 8]}}
            %t{layer} = permute %w{layer} {{axes = [1, 0]}} in "blocks.{layer}.mlp"
            %d{layer} = dot_general %x{layer}, %t{layer} {{lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [0], dtype = f32}} in "blocks.{layer}.mlp"
            %r{layer} = random_bits %seed, %step {{node = {node}, shape = [8, 8]}} in "blocks.{layer}.drop"
            %f{layer} = cast %r{layer} {{dtype = f32}} in "blocks.{layer}.drop"
            %h{layer} = mul %d{layer}, %f{layer} in "blocks.{layer}.drop"
            %x{next} = add %x{layer}, %h{layer} in "blocks.{layer}"
            "#
        );
    }
    parse(&format!("{body}\noutput \"y\" = %x{count}"))
}

#[test]
fn equal_layers_are_simplified_once_and_draw_their_own_numbers() {
    let (three, five) = (simplified(&layers(3), false), simplified(&layers(5), false));
    assert_eq!((three.1.regions.0, five.1.regions.0), (3, 5));
    assert_eq!((three.1.regions.1, five.1.regions.1), (1, 1), "one shape of region");
    assert_eq!(count(&five.0, "permute"), 0);
    let draw = |id| match &five.0[id].op {
        Op::RandomBits(bits) => Some(bits.node),
        _ => None,
    };
    let draws: BTreeSet<_> = five.0.ids().filter_map(draw).collect();
    assert_eq!(draws, (40..45).collect());
    let scopes: BTreeSet<_> = five.0.ids().map(|id| five.0[id].origin.scope.to_string()).collect();
    assert!((0..5).all(|layer| scopes.contains(&format!("blocks.{layer}.mlp"))), "{scopes:?}");
}

#[test]
fn the_same_graph_gives_the_same_text() {
    for seed in 0..8 {
        let (graph, _) = random_graph(seed, 30);
        let texts = [0, 1].map(|_| {
            let mut graph = graph.clone();
            let report = simplify(&mut graph, &Options::default()).expect("simplifies");
            (graph.to_string(), report)
        });
        assert_eq!(texts[0], texts[1]);
    }
}

#[test]
fn every_op_sample_survives_with_exact_rules() {
    for sample in all(11) {
        let arrays: BTreeMap<_, _> = sample
            .inputs
            .iter()
            .map(|(name, tensor)| (name.clone(), Array { ty: tensor.ty(), values: tensor.to_f64() }))
            .collect();
        exact(&sample.name, &sample.graph, &arrays);
    }
}

/// Under exact rules each result is the same number, rounded to its dtype after each op.
fn exact(name: &str, graph: &Graph, arrays: &BTreeMap<String, Array>) {
    let options = Options { rounding: Rounding::Exact, ..Options::default() };
    let mut new = graph.clone();
    let report = simplify(&mut new, &options).expect("simplifies");
    new.verify().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(report.cost.1 <= report.cost.0, "{name}: {report}");
    let evaluated =
        |graph: &Graph| evaluate_arrays(graph, arrays.clone(), Precision::Declared).expect("evaluates");
    let got = evaluated(&new);
    for (output, expected) in evaluated(graph) {
        let off = difference(&expected.values, &got[&output].values, 0.0);
        assert!(off.is_none(), "{name}, {output}: {off:?}\n{graph}\n{new}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_are_exact_under_exact_rules(seed in 0u64..1_000_000, size in 4usize..40) {
        let (graph, inputs) = random_graph(seed, size);
        let array = |tensor: &kernfusion_ir::Tensor| Array { ty: tensor.ty(), values: tensor.to_f64() };
        let arrays = inputs.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
        exact(&format!("seed {seed}, size {size}"), &graph, &arrays);
    }

    #[test]
    fn random_graphs_never_cost_more(seed in 0u64..1_000_000, size in 4usize..60) {
        let (mut graph, _) = random_graph(seed, size);
        run(&mut graph, &PIPELINE[..3], None, &mut |_, _| {}).expect("passes");
        let report = simplify(&mut graph, &Options::default()).expect("simplifies");
        prop_assert!(report.cost.1 <= report.cost.0);
        graph.verify().expect("a valid graph");
    }
}

/// Every node of a graph as an output, under its number.
fn values(graph: &Graph, arrays: &BTreeMap<String, Array>) -> Vec<Array> {
    let mut all = Graph::new(graph.name.clone());
    for id in graph.ids() {
        all.add_unchecked(graph[id].clone());
        all.output(id.index().to_string(), id);
    }
    let values = evaluate_arrays(&all, arrays.clone(), Precision::Double).expect("evaluates");
    graph.ids().map(|id| values[&id.index().to_string()].clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// A node after the passes has the value of each node that it stands for; outputs do; and marks change nothing.
    #[test]
    fn marks_tell_what_became_of_nodes(seed in 0u64..1_000_000, size in 4usize..60) {
        let (original, tensors) = random_graph(seed, size);
        let array = |tensor: &kernfusion_ir::Tensor| Array { ty: tensor.ty(), values: tensor.to_f64() };
        let arrays = tensors.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
        let (mut marked, mut plain) = (original.clone(), original.clone());
        marked.mark();
        run(&mut marked, PIPELINE, None, &mut |_, _| {}).expect("a valid graph");
        run(&mut plain, PIPELINE, None, &mut |_, _| {}).expect("a valid graph");
        prop_assert_eq!(marked.to_string(), plain.to_string());
        for output in original.outputs() {
            let new = marked.output_value(&output.name).expect("outputs stay");
            prop_assert!(marked[new].origin.stands_for(output.value), "{}\n{original}\n{marked}", output.name);
        }
        let (before, after) = (values(&original, &arrays), values(&marked, &arrays));
        let finite = |array: &Array| array.values.iter().all(|x| x.is_finite());
        for id in marked.ids() {
            let origin = &marked[id].origin;
            prop_assert!(!origin.sources().is_empty(), "%{} has no source\n{marked}", id.index());
            for &source in origin.sources().iter().filter(|&&source| origin.stands_for(source)) {
                let (expected, got) = (&before[source.index()], &after[id.index()]);
                prop_assert_eq!(&expected.ty, &got.ty);
                if finite(expected) && finite(got) {
                    let off = difference(&expected.values, &got.values, 1e-6);
                    let (new, old) = (id.index(), source.index());
                    prop_assert!(off.is_none(), "%{new} is not %{old}: {off:?}\n{original}\n{marked}");
                }
            }
        }
    }
}
