//! The pass runner: times each pass, shows its result to an observer, verifies it, and names the pass that fails.

use crate::{
    WeightType, bf16_activations, byte_tables, cse, dce, dequantized_products, fold, int8_products, loops,
    mixed_precision, quantize_weights, reuse_products, scale_products, simplify, sort_rows, split_reductions,
    window_sums, winograd,
};
use kernfusion_ir::{Body, DType, Graph, IrError, Scan, ValueId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A named pass over graphs.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    /// What users call it in `opt --passes`.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    run: fn(&mut Graph) -> Result<Notes, IrError>,
}

impl Pass {
    /// A pass; it returns a report of what it did, in lines.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&mut Graph) -> Result<Vec<String>, IrError>,
    ) -> Self {
        Pass { name, about, run }
    }
}

/// What a pass has to say about what it did, in lines.
type Notes = Vec<String>;

/// The passes between tracing (with gradients) and fusion, in the order in which they run.
pub const PIPELINE: &[Pass] = &[
    // First, since every later pass is proportional to the number of nodes: autodiff leaves gradients
    // that have no reader.
    Pass {
        name: "dce",
        about: "removes values that no output needs",
        run: |graph| quiet(dce::remove_dead_code(graph)),
    },
    // Before cse: folded tensors become equal broadcasts of equal constants.
    Pass {
        name: "fold",
        about: "computes what is constant",
        run: |graph| quiet(fold::fold_constants(graph)),
    },
    Pass {
        name: "cse",
        about: "computes equal expressions once",
        run: |graph| quiet(cse::merge_common_subexpressions(graph)),
    },
    // Before simplify, which takes a loop as it is; after cse, which finds loops that are computed twice.
    Pass {
        name: "loops",
        about: "runs all of these passes on the bodies of loops, which then compute what is read",
        run: |graph| quiet(simplify_bodies(graph)),
    },
    // After cse, so that rows are sorted once for all that choose alike; before simplify, which takes products apart and moves views.
    Pass {
        name: "sort-rows",
        about: "sorts rows by the matrix that they choose, and multiplies them in blocks",
        run: |graph| quiet(sort_rows::sort_rows(graph)),
    },
    // After cse, so that it starts from a small graph, and before anything that fixes an order of summation.
    Pass {
        name: "simplify",
        about: "rewrites to what is equal and cheaper, in e-graphs",
        run: |graph| Ok(simplify::simplify(graph, &simplify::Options::default())?.lines()),
    },
    // Regions that were simplified apart have views and constants in common.
    Pass {
        name: "cse",
        about: "computes equal expressions once",
        run: |graph| quiet(cse::merge_common_subexpressions(graph)),
    },
    // After simplify, which moves slices and pads.
    Pass {
        name: "window-sums",
        about: "pads once what a sum reads at many places",
        run: |graph| quiet(window_sums::sum_windows(graph)),
    },
    Pass {
        name: "split-reductions",
        about: "reduces to few elements in two steps",
        run: |graph| quiet(split_reductions::split_reductions(graph)),
    },
    // Folding and cse leave operands without users.
    Pass {
        name: "dce",
        about: "removes values that no output needs",
        run: |graph| quiet(dce::remove_dead_code(graph)),
    },
];

/// The pass that lets a quantized model multiply its bytes on a CPU. It stands before [`PIPELINE`], which moves scales and zero points.
pub const DEQUANTIZED_PRODUCTS: &[Pass] = &[Pass {
    name: "dequantized-products",
    about: "multiplies bytes in place of the numbers that they stand for",
    run: |graph| quiet(dequantized_products::multiply_bytes(graph)),
}];

/// Passes for CPUs, whose caches hold tables and what is made of an image. They stand after [`PIPELINE`] and [`MIXED_PRECISION`]: products of
/// bf16 are quick, and would round what is multiplied in place of the image.
pub const OF_CPUS: &[Pass] = &of_cpus(|graph| quiet(winograd::multiply_less(graph, &[DType::F32])));

/// The same, under the same names, for CPUs whose products of bf16 are those of `f32`: what is multiplied in place of an image is not rounded.
pub const OF_CPUS_OF_F32: &[Pass] =
    &of_cpus(|graph| quiet(winograd::multiply_less(graph, &[DType::F32, DType::BF16])));

const fn of_cpus(winograd: fn(&mut Graph) -> Result<Notes, IrError>) -> [Pass; 4] {
    [
        Pass {
            name: "byte-tables",
            about: "looks up costly functions of bytes",
            run: |graph| quiet(byte_tables::look_up(graph)),
        },
        Pass { name: "winograd", about: "convolves with fewer multiplications", run: winograd },
        // Equal functions have one table, and the convolutions of a network have theirs and padding in common.
        Pass {
            name: "cse",
            about: "computes equal expressions once",
            run: |graph| quiet(cse::merge_common_subexpressions(graph)),
        },
        // It leaves windows without readers.
        Pass {
            name: "dce",
            about: "removes values that no output needs",
            run: |graph| quiet(dce::remove_dead_code(graph)),
        },
    ]
}

/// Passes for GPUs, where a kernel that multiplies twice keeps operands in shared memory, and has to compute all entries of its products once
/// more before it knows what they sum up to. They stand after [`PIPELINE`] and [`MIXED_PRECISION`], and so read what is in memory.
pub const OF_GPUS: &[Pass] = &[
    Pass {
        name: "narrow-results",
        about: "keeps results of bf16 products in bf16 where they lie in memory",
        run: |graph| quiet(mixed_precision::narrow_results(graph)),
    },
    Pass {
        name: "scale-products",
        about: "multiplies products by the factors of their operands",
        run: |graph| quiet(scale_products::scale_products(graph)),
    },
    // It reads operands in the form in which others read them.
    Pass {
        name: "cse",
        about: "computes equal expressions once",
        run: |graph| quiet(cse::merge_common_subexpressions(graph)),
    },
    Pass {
        name: "reuse-products",
        about: "takes sums of a product's weighed entries from the product of the weights",
        run: |graph| quiet(reuse_products::reuse_products(graph)),
    },
    // It leaves the weighed entries without readers.
    Pass {
        name: "dce",
        about: "removes values that no output needs",
        run: |graph| quiet(dce::remove_dead_code(graph)),
    },
];

/// The passes that make an `f32` program one of mixed precision. They stand after [`PIPELINE`]: conversions would hide
/// what its passes look for.
pub const MIXED_PRECISION: &[Pass] = &[
    Pass {
        name: "mixed-precision",
        about: "multiplies matrices in bf16",
        run: |graph| quiet(mixed_precision::use_bf16_products(graph)),
    },
    // After it, since operands of products are in memory as bf16 anyway.
    Pass {
        name: "narrow-kept",
        about: "keeps activations for backward in bf16",
        run: |graph| quiet(bf16_activations::narrow_kept_values(graph)),
    },
    // Both leave conversions without readers.
    Pass {
        name: "dce",
        about: "removes values that no output needs",
        run: |graph| quiet(dce::remove_dead_code(graph)),
    },
];

/// The passes that let an `f32` program multiply whole numbers where it only reads a matrix. They stand after [`PIPELINE`], which takes the
/// scales of a matrix of bytes behind its products.
pub const INT8_PRODUCTS: &[Pass] = &[Pass {
    name: "int8-products",
    about: "rounds matrices that are only read, and what they multiply, to int8",
    run: |graph| quiet(int8_products::use_int8_products(graph)),
}];

fn quiet(result: Result<(), IrError>) -> Result<Notes, IrError> {
    result.map(|()| vec![])
}

/// Passes that are no part of the pipeline.
pub const OTHERS: &[Pass] = &[
    Pass {
        name: "simplify-exact",
        about: "as simplify, with rules that leave every bit as it is (but the sign of a zero)",
        run: |graph| {
            let options = simplify::Options { rounding: simplify::Rounding::Exact, ..Default::default() };
            Ok(simplify::simplify(graph, &options)?.lines())
        },
    },
    // Before the pipeline: what is kept is another program's to say, which then gives other states.
    Pass {
        name: "weights-bf16",
        about: "keeps matrices that are only read as bf16",
        run: |graph| narrowed(graph, WeightType::BF16),
    },
    Pass {
        name: "weights-int8",
        about: "keeps matrices that are only read as int8, with a scale for each row",
        run: |graph| narrowed(graph, WeightType::Int8),
    },
    Pass {
        name: "weights-int4",
        about: "keeps matrices that are only read as int4, with a scale for each group of 32 numbers",
        run: |graph| narrowed(graph, WeightType::Int4),
    },
];

fn narrowed(graph: &mut Graph, kept: WeightType) -> Result<Notes, IrError> {
    let names = quantize_weights(graph, kept, |_| true)?;
    Ok(names.into_iter().map(|(name, kept)| format!("{name} as {kept}")).collect())
}

/// All passes; some stand in several lists.
pub fn all() -> impl Iterator<Item = &'static Pass> {
    [DEQUANTIZED_PRODUCTS, PIPELINE, MIXED_PRECISION, INT8_PRODUCTS, OF_CPUS, OF_GPUS, OTHERS]
        .into_iter()
        .flatten()
}

/// The pass of this name.
pub fn find(name: &str) -> Option<Pass> {
    all().find(|pass| pass.name == name).copied()
}

/// A pass that failed.
#[derive(Debug, thiserror::Error)]
#[error("pass `{pass}` (number {number}): {cause}")]
pub struct PassError {
    /// Its name.
    pub pass: &'static str,
    /// Its place in the list, from 1.
    pub number: usize,
    /// What went wrong: its own error, or an invariant that its result breaks.
    pub cause: String,
}

/// What a pass did.
#[derive(Debug, Clone, PartialEq)]
pub struct PassReport {
    /// Its name.
    pub pass: &'static str,
    /// How long it took.
    pub time: Duration,
    /// Nodes before and after.
    pub nodes: (usize, usize),
    /// What it has to say about it, in lines.
    pub notes: Vec<String>,
}

/// Sees the graph after each pass.
pub type Observer<'a> = &'a mut dyn FnMut(&PassReport, &Graph);

/// Runs passes, the first `stop_after` of them if given, verifying the graph before and after each.
///
/// # Errors
/// Names the pass that failed, or whose result breaks an invariant.
pub fn run(
    graph: &mut Graph,
    passes: &[Pass],
    stop_after: Option<usize>,
    observer: Observer<'_>,
) -> Result<Vec<PassReport>, PassError> {
    let mut reports = Vec::new();
    let failed = |pass, number, cause| PassError { pass, number, cause };
    graph.verify().map_err(|error| failed("input", 0, error.to_string()))?;
    for (index, pass) in passes.iter().enumerate().take(stop_after.unwrap_or(usize::MAX)) {
        let (start, before) = (Instant::now(), graph.len());
        let notes = (pass.run)(graph).map_err(|error| failed(pass.name, index + 1, error.to_string()))?;
        let report =
            PassReport { pass: pass.name, time: start.elapsed(), nodes: (before, graph.len()), notes };
        graph.verify().map_err(|error| failed(pass.name, index + 1, error.to_string()))?;
        observer(&report, graph);
        reports.push(report);
    }
    Ok(reports)
}

/// Simplifies the bodies of all loops.
fn simplify_bodies(graph: &mut Graph) -> Result<(), IrError> {
    let mut simple: BTreeMap<ValueId, Scan> = BTreeMap::new();
    for nodes in loops::loops(graph) {
        let wanted = nodes.iter().map(|&id| loops::scan(graph, id).result).collect();
        let (mut whole, numbers) = loops::with_results(loops::scan(graph, nodes[0]), &wanted)?;
        let mut body = whole.body.graph().clone();
        run(&mut body, PIPELINE, None, &mut |_, _| {}).map_err(|error| broken(graph, nodes[0], &error))?;
        whole.body = Body::from(body);
        for id in nodes {
            simple.insert(id, whole.with_result(numbers[&loops::scan(graph, id).result]));
        }
    }
    loops::replace(graph, &simple)
}

fn broken(graph: &Graph, id: ValueId, error: &PassError) -> IrError {
    let origin = graph[id].origin.clone();
    IrError::Type { op: "scan", operands: String::new(), reason: format!("its body: {error}"), origin }
}
