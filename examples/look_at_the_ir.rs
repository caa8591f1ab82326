//! What each stage makes of `softmax(x · wᵀ)` and its gradient: the traced graph, the graph after every pass, the
//! kernels with the fusions that were refused, and the memory plan.

use kernfusion::compile::{MemoryStrategy, Stages};
use kernfusion::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let trace = Trace::new();
    let x = trace.input("x", [8, 16], DType::F32);
    let w = trace.parameter("w", [4, 16], Init::Normal { std: 0.1 });
    let y = x.linear(&w).softmax(-1);
    let gradient = y.square().sum_all().grad(&[&w]).remove(0);
    let program = trace.finish(&[("y", &y), ("gradient", &gradient)])?;

    println!("=== traced\n{}", program.graph);
    let mut graph = program.graph;
    let stages = Stages::new(&Target::cpu(), MemoryStrategy::NONE);
    stages.simplify(&mut graph, None, &mut |report, graph| {
        println!("=== after {} ({} → {} nodes)\n{graph}", report.pass, report.nodes.0, report.nodes.1);
    })?;
    let kernels = stages.fuse(&graph)?;
    println!("=== fused\n{kernels}");
    for refusal in &kernels.refusals {
        println!("not fused: {} → {}: {}", refusal.producer, refusal.consumer, refusal.reason);
    }
    println!("=== planned\n{}", stages.plan(kernels));
    Ok(())
}
