//! `kernfusion dump --format html`: the viewer's page of a program.

use crate::common::error::{CliError, read_text};
use crate::viewer::{Options, View};
use kernfusion_codegen::Peaks;
use kernfusion_ir::Graph;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What `profile --json` says that a page needs.
#[derive(Deserialize)]
struct Profile {
    bandwidth_bytes_per_s: f64,
    reads_bytes_per_s: f64,
    f32_products_per_s: f64,
    bf16_products_per_s: f64,
    int8_products_per_s: f64,
    scalars_per_s: f64,
    each: BTreeMap<String, f64>,
}

/// The page of a program; its floors are those of the machine that was measured, or of a nominal one.
pub(crate) fn page(graph: &Graph, mut options: Options, times: Option<&Path>) -> Result<String, CliError> {
    if let Some(path) = times {
        let content = |reason: String| CliError::Content { path: path.into(), reason };
        let profile: Profile = serde_json::from_str(&read_text(path)?)
            .map_err(|error| content(format!("no profile as `profile --json` writes it: {error}")))?;
        options.peaks = peaks(&profile);
        options.times = profile.each;
        let view = View::new(graph, &options)?;
        return match view.kernels.iter().find(|kernel| kernel.seconds.is_none()) {
            Some(kernel) => {
                Err(content(format!("is of another program: it has no time of kernel {}", kernel.name)))
            }
            None => Ok(view.page()),
        };
    }
    Ok(View::new(graph, &options)?.page())
}

fn peaks(profile: &Profile) -> Peaks {
    Peaks {
        bandwidth: profile.bandwidth_bytes_per_s,
        reads: profile.reads_bytes_per_s,
        f32_products: profile.f32_products_per_s,
        bf16_products: profile.bf16_products_per_s,
        int8_products: profile.int8_products_per_s,
        scalars: profile.scalars_per_s,
    }
}
