//! Everything of `tiny`'s training step is in the page, and journeys arrive where they should.

use super::{Code, Options, View};
use kernfusion::compile::{MemoryStrategy, Precision, Stages, Target};
use kernfusion::models::preset;
use kernfusion::optim::Optimizer;
use kernfusion_ir::Graph;
use kernfusion_ir::kernel::Plan;
use std::collections::BTreeSet;

fn tiny() -> Graph {
    let tiny = preset("tiny").unwrap();
    tiny.config.train_step(tiny.batch, &Optimizer::adamw(3e-4), None).unwrap().program.graph
}

fn view(graph: &Graph) -> View {
    View::new(graph, &Options { code: Code::Nothing, ..Options::default() }).unwrap()
}

/// The traced nodes of an op in a module.
fn traced(view: &View, op: &str, scope: &str) -> Vec<usize> {
    let is = |&node: &usize| {
        let nodes = &view.traced;
        view.strings[nodes.op[node]] == op && view.strings[nodes.scope[node]] == scope
    };
    (0..view.traced.op.len()).filter(is).collect()
}

/// The simplified nodes that have the value of a traced one.
fn images(view: &View, node: usize) -> Vec<usize> {
    let nodes = &view.simplified;
    (0..nodes.op.len()).filter(|&at| nodes.helps[at] == 0 && nodes.sources[at].contains(&node)).collect()
}

fn kernels(view: &View, node: usize) -> Vec<&str> {
    let covering = view.kernels.iter().filter(|kernel| kernel.covers.contains(&node));
    covering.map(|kernel| kernel.name.as_str()).collect()
}

/// The plan of the stages.
fn planned(stages: &Stages, graph: &Graph) -> Plan {
    let mut graph = graph.clone();
    stages.simplify(&mut graph, None, &mut |_, _| {}).unwrap();
    stages.plan(stages.fuse(&graph).unwrap())
}

/// A GPU's kernels are other ones, each with the source of all its functions.
#[test]
fn a_page_of_a_gpu_has_what_the_gpu_runs() {
    let graph = tiny();
    let cuda = kernfusion_cuda::Options::of("sm_90a");
    let options = Options {
        gpu: Some(cuda.clone()),
        precision: Precision::Bf16,
        code: Code::All,
        ..Options::default()
    };
    let view = View::new(&graph, &options).unwrap();
    let target = Target::cpu().precision(Precision::Bf16);
    let plan = planned(&Stages::of_gpu(&target, MemoryStrategy::NONE, kernfusion_cuda::accepts), &graph);
    let of_cpu = planned(&Stages::new(&target, MemoryStrategy::NONE), &graph);
    let names = |plan: &Plan| plan.graph.kernels.iter().map(|kernel| kernel.name.clone()).collect::<Vec<_>>();
    let shown: Vec<_> = view.kernels.iter().map(|kernel| kernel.name.clone()).collect();
    assert!(shown == names(&plan) && shown != names(&of_cpu));
    assert!(view.kernels.iter().all(|kernel| kernel.code.assembly.is_none()));
    let mut renderer = kernfusion_cuda::Renderer::new(cuda);
    renderer.program(&plan).unwrap();
    let shown = view.kernels.iter().flat_map(|kernel| &kernel.code.cuda).map(|&at| view.texts[at].as_str());
    let shown: BTreeSet<_> = shown.collect();
    let launched = |text: &&str| shown.contains(text);
    let functions = renderer.functions().iter().map(|function| function.text.as_str());
    assert_eq!(functions.filter(launched).count(), shown.len());
    assert!(shown.iter().any(|text| text.contains("WarpgroupStrip")), "products of warpgroups");
}

#[test]
fn every_node_kernel_and_buffer_is_there() {
    let graph = tiny();
    let view = view(&graph);
    assert_eq!(view.traced.op.len(), graph.len());
    let mut simplified = graph.clone();
    let stages = Stages::new(&Target::cpu(), MemoryStrategy::NONE);
    stages.simplify(&mut simplified, None, &mut |_, _| {}).unwrap();
    // Marks change nothing but what is known.
    assert_eq!(view.simplified.op.len(), simplified.len());
    let expected = stages.fuse(&simplified).unwrap();
    let names = |view: &View| view.kernels.iter().map(|kernel| kernel.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&view), expected.kernels.iter().map(|kernel| kernel.name.clone()).collect::<Vec<_>>());
    let buffers: Vec<_> = view.buffers.iter().map(|buffer| buffer.name.as_str()).collect();
    assert_eq!(buffers, expected.buffers.iter().map(|buffer| buffer.name.as_str()).collect::<Vec<_>>());
    assert_eq!(view.refusals.len(), expected.refusals.len());
    for refusal in &view.refusals {
        assert!(refusal.from.is_some() && refusal.to.is_some(), "{refusal:?}");
        let (Some(from), Some(to)) = refusal.kernels else { panic!("{refusal:?}") };
        assert_ne!(from, to, "{refusal:?}");
    }
    for (kernel, row) in expected.kernels.iter().zip(&view.kernels) {
        // Only copies of one node, which stand for one, can make the list shorter.
        assert!(!row.covers.is_empty() && row.covers.len() <= kernel.covers.len(), "{}", kernel.name);
    }
    for (buffer, row) in view.buffers.iter().enumerate() {
        let used = view.kernels.iter().any(|k| k.reads.contains(&buffer) || k.writes.contains(&buffer));
        assert_eq!(row.life.is_some(), used, "{}", row.name);
        assert!(row.node.is_some(), "{}", row.name);
    }
}

/// Every result and every new state is computed by a kernel that the page leads to from the traced node.
#[test]
fn journeys_of_results_end_in_the_kernels_that_store_them() {
    let view = view(&tiny());
    for (name, node, updates) in &view.traced.outputs {
        let images = images(&view, *node);
        let simplified = view.simplified.outputs.iter().find(|(other, _, u)| other == name && u == updates);
        let (_, image, _) = simplified.unwrap_or_else(|| panic!("no result {name}"));
        assert!(images.contains(image), "{name}: %{node} became {images:?}, not %{image}");
        let storing = view
            .kernels
            .iter()
            .filter(|kernel| kernel.writes.iter().any(|&buffer| view.buffers[buffer].node == Some(*image)));
        let storing: Vec<_> = storing.collect();
        assert_eq!(storing.len(), 1, "{name}");
        assert!(storing[0].covers.contains(image), "{name}");
    }
}

#[test]
fn journeys_of_known_nodes_arrive_where_they_should() {
    let view = view(&tiny());
    // GELU of a layer: one node in forward, computed again in backward.
    let erf = traced(&view, "erf", "blocks.2.mlp");
    assert_eq!(erf.len(), 1);
    assert_eq!(view.traced.phase[erf[0]], 0);
    let image = images(&view, erf[0]);
    assert_eq!(image.len(), 1);
    assert!(kernels(&view, image[0]).iter().all(|name| name.starts_with("blocks.2.mlp")), "{image:?}");
    assert_eq!(kernels(&view, image[0]).len(), 2);
    // Its line is the user's, with the text.
    let line = &view.lines[view.traced.line[erf[0]].unwrap()];
    assert!(line.file.ends_with("src/models/gpt.rs"), "{line:?}");
    assert!(line.text.as_ref().is_some_and(|text| text.contains("forward")), "{line:?}");
    // Scores: a product of a chain with the softmax and the second product.
    let products = traced(&view, "dot_general", "blocks.1.attn");
    let forward: Vec<_> = products.iter().filter(|&&node| view.traced.phase[node] == 0).collect();
    let chains: BTreeSet<_> = forward
        .iter()
        .flat_map(|&&node| images(&view, node))
        .flat_map(|image| kernels(&view, image))
        .collect();
    assert!(chains.iter().any(|name| name.starts_with("blocks.1.attn/dot_general+")), "{chains:?}");
    // A rule that is known to find something in attention's backward pass says so, with its mathematics.
    let found: BTreeSet<_> = view.simplified.rule.iter().flatten().copied().collect();
    assert!(!found.is_empty() && found.iter().all(|rule| view.rules.contains_key(rule)), "{found:?}");
    // The optimizer's nodes are updates.
    assert!(traced(&view, "sqrt", "optimizer").iter().all(|&node| view.traced.phase[node] == 2));
}

#[test]
fn buffers_that_live_at_once_lie_apart() {
    let view = view(&tiny());
    let placed: Vec<_> = view.buffers.iter().filter(|b| b.offset.is_some() && b.alias.is_none()).collect();
    assert!(placed.len() > 100, "{}", placed.len());
    for (at, a) in placed.iter().enumerate() {
        let (start, (first, last)) = (a.offset.unwrap(), a.life.unwrap());
        assert!(start + a.bytes <= view.arena, "{}", a.name);
        for b in &placed[at + 1..] {
            let (other, (begin, end)) = (b.offset.unwrap(), b.life.unwrap());
            let at_once = first <= end && begin <= last;
            let apart = start + a.bytes <= other || other + b.bytes <= start;
            assert!(!at_once || apart, "{} and {}", a.name, b.name);
        }
    }
}

#[test]
fn a_page_holds_its_data_and_nothing_from_elsewhere() {
    let graph = tiny();
    let mut view = view(&graph);
    view.title = "</script><b>".into();
    let page = view.page();
    assert!(!page.contains("{{") && !page.contains("</script><b>"));
    for from_elsewhere in ["http://", "https://", "src=", "@import", "url("] {
        let known = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!known.contains(from_elsewhere), "{from_elsewhere}");
    }
    let data = page.split("type=\"application/json\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["title"], "</script><b>");
    assert_eq!(data["kernels"].as_array().map(Vec::len), Some(view.kernels.len()));
}
