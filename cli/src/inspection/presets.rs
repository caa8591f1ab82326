//! `kernfusion presets`: the model shapes known by name.

use crate::Outcome;
use crate::common::screen::{Screen, grouped};
use kernfusion::models::presets;
use serde_json::json;
use std::process::ExitCode;

/// List the model shapes known by name, with their parameter counts
#[derive(clap::Args)]
#[command(after_help = "Example: kernfusion presets --json")]
pub(crate) struct Args {
    /// As JSON, with all fields that --config takes
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    if args.json {
        let rows = presets().into_iter().map(|preset| {
            json!({
                "name": preset.name,
                "description": preset.description,
                "parameters": preset.config.parameters(),
                "batch": preset.batch,
                "config": preset.config,
            })
        });
        screen.line(format!("{:#}", json!(rows.collect::<Vec<_>>())));
        return Ok(ExitCode::SUCCESS);
    }
    screen.line(format!(
        "{:<14} {:>13} {:>6} {:>5} {:>5} {:>7} {:>10} {:>5}  about",
        "preset", "parameters", "layers", "width", "heads", "context", "vocabulary", "batch"
    ));
    for preset in presets() {
        let c = &preset.config;
        screen.line(format!(
            "{:<14} {:>13} {:>6} {:>5} {:>5} {:>7} {:>10} {:>5}  {}",
            preset.name,
            grouped(c.parameters() as u64),
            c.layers(),
            c.width(),
            c.heads().map_or("-".into(), |heads| heads.to_string()),
            c.context(),
            grouped(c.vocabulary() as u64),
            preset.batch,
            preset.description
        ));
    }
    Ok(ExitCode::SUCCESS)
}
