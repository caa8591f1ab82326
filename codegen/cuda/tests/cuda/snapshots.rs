//! The source of each family of kernels, as people read it: `snapshots/*.cu`. `KERNFUSION_BLESS=1` rewrites them.

use crate::judge::planned;
use crate::strips::Part;
use crate::{collectives, gemv, groups, products, strips};
use kernfusion_cuda::{Options, Renderer};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::Plan;
use kernfusion_ir::samples::all;
use kernfusion_passes::fuse::Fusion;
use std::path::Path;

/// A file, and the sample of the table that it shows.
const SAMPLES: [(&str, &str); 7] = [
    ("map", "tanh.[7, 13].f32"),
    ("random", "random_bits"),
    ("softmax", "rows.softmax."),
    ("layer_norm", "rows.layer_norm"),
    ("bias_gradient", "rows.bias_gradient"),
    ("scatter_add", "scatter_add."),
    ("attention", "attention.causal"),
];

fn source(plan: &Plan, options: Options) -> String {
    let mut renderer = Renderer::new(options);
    let program = renderer.program(plan).expect("renders");
    let text = |at: usize| renderer.functions()[at].text.clone();
    program.functions().into_iter().map(text).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_source_of_each_family_is_as_it_was() {
    let samples = all(1);
    let mut plans: Vec<(String, Plan)> = SAMPLES
        .iter()
        .map(|(file, name)| {
            let sample = samples.iter().find(|sample| sample.name.starts_with(name));
            let sample = sample.unwrap_or_else(|| panic!("no sample {name}"));
            ((*file).to_string(), planned(&sample.graph, Fusion::Full))
        })
        .collect();
    let names = ["product", "chain", "chain_bf16", "sums_and_product", "product_transposed"];
    plans.extend(names.into_iter().zip(products::few_small()).map(|(name, case)| (name.into(), case.plan)));
    let shape = strips::Shape { heads: 2, queries: 256, keys: 256, width: 64 };
    let causal = strips::Mask::Causal(f64::NEG_INFINITY);
    for (name, part) in [("attention_bf16", Part::Forward), ("attention_bf16_gradients", Part::Backward)] {
        plans.push((name.into(), strips::attention(shape, causal, DType::BF16, part).plan));
    }
    plans.push(("product_in_parts".into(), products::in_parts().plan));
    let few_rows = gemv::few_small().into_iter().map(|case| case.plan);
    plans.extend(
        ["gemv_of_two_products", "gemv_along_columns", "gemv"].map(String::from).into_iter().zip(few_rows),
    );
    plans.push(("group".into(), groups::updates(false).plan));
    let mut sources: Vec<_> =
        plans.into_iter().map(|(name, plan)| (name, source(&plan, Options::default()))).collect();
    let attention = strips::attention(shape, causal, DType::BF16, Part::Forward);
    sources.push(("attention_by_warpgroups".into(), source(&attention.plan, strips::by_warpgroups())));
    let sum = source(&collectives::sum(DType::BF16), collectives::second_of_four());
    sources.push(("collective".into(), sum));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/snapshots");
    for (name, got) in sources {
        let path = folder.join(format!("{name}.cu"));
        if std::env::var_os("KERNFUSION_BLESS").is_some() {
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(&path, got).expect("writable");
            continue;
        }
        let expected = std::fs::read_to_string(&path).expect("a snapshot");
        assert!(got == expected, "{} differs; the source is now\n{got}", path.display());
    }
}
